package hostfs

import (
	"fmt"
	"os"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) {
	child := func(run func([]string) error) func([]string) int {
		return func(args []string) int {
			if err := run(args); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			return 0
		}
	}
	os.Exit(rig.Main(m, rig.Funcs{"contained": child(rig.Contained), "find": child(runFind), "mount": child(runMount)}))
}
