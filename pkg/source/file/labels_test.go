package file

import (
	"unique"

	"fairlead.io/fairlead/pkg/model"
)

func label(name string) model.Label { return unique.Make(name) }
