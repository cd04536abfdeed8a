package policy

import "fairlead.io/fairlead/pkg/model"

// Damage is a row of the maps that does not say what the tables say.
type Damage struct {
	Map, Where, Want, Have string
	Mended                 bool
}

// Comparison is what differs between the maps and the tables.
type Comparison struct {
	Damage []Damage
	// Widened are the pods to which damaged rows that were mended have accepted what the tables do not. Their flows
	// have to be judged again.
	Widened map[model.Name]struct{}
}
