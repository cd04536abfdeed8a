package policies

import (
	"fmt"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

// A pod that has as many flows as are free is said to have no room, with the one that has the most.
func TestRoom(t *testing.T) {
	a, b := model.Name{Namespace: "shop", Name: "a"}, model.Name{Namespace: "shop", Name: "b"}
	for name, test := range map[string]struct {
		flows map[model.Name]int
		want  string
	}{
		"little": {map[model.Name]int{a: 10, b: 20}, ""},
		"half":   {map[model.Name]int{a: 50, b: 1}, "1 pods have no room for more flows that policies accepted: the node remembers 51 of at most 100, and shop/a alone has 50."},
		"two":    {map[model.Name]int{a: 33, b: 34}, "2 pods have no room for more flows that policies accepted: the node remembers 67 of at most 100, and shop/b alone has 34."},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Room{Of: 100}
			for _, flows := range test.flows {
				r.Flows += flows
			}
			for pod, flows := range test.flows {
				r.Add(pod, flows)
			}
			said := ""
			(&Status{Room: r}).Findings(func(format string, args ...any) { said = fmt.Sprintf(format, args...) })
			if len(said) < len(test.want) || said[:len(test.want)] != test.want || test.want == "" && said != "" {
				t.Errorf("it says %q, want %q", said, test.want)
			}
		})
	}
}
