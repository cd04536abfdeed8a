package file

import (
	"os"
	"strings"
	"testing"
)

func TestSameObjectInTwoFiles(t *testing.T) {
	type files map[string]string
	x1, x2, v, z := service("x", "10.0.0.1"), service("x", "10.0.0.2"), service("v", "10.0.0.3"), service("z", "10.0.0.4")
	tests := []struct {
		name     string
		before   files
		after    files
		services string
		errors   string
		says     string
	}{
		{
			"at the start the first by name has it",
			nil, files{"a.yaml": x1, "b.yaml": x2 + "---\n" + v},
			"x=10.0.0.1", "b.yaml:1", "Service default/x is also at a.yaml:1",
		},
		{
			"who served it keeps it",
			files{"b.yaml": v + "---\n" + x1}, files{"a.yaml": x2 + "---\n" + z},
			"v=10.0.0.3 x=10.0.0.1", "a.yaml:1", "is also at b.yaml:6",
		},
		{
			"the newcomer keeps what it had",
			files{"a.yaml": z, "b.yaml": x1}, files{"a.yaml": v + "---\n" + x2},
			"x=10.0.0.1 z=10.0.0.4", "a.yaml:6", "is also at b.yaml:1",
		},
		{
			"even if the owner changes at the same time",
			files{"b.yaml": x1}, files{"a.yaml": x2, "b.yaml": x2 + "---\n" + v},
			"v=10.0.0.3 x=10.0.0.2", "a.yaml:1", "is also at b.yaml:1",
		},
		{
			"a wrong file does not give it away",
			files{"b.yaml": x1}, files{"a.yaml": x2, "b.yaml": "nonsense"},
			"x=10.0.0.1", "a.yaml:1 b.yaml:1", "is also at b.yaml:1",
		},
		{
			"it moves in one change",
			files{"a.yaml": x1 + "---\n" + v, "b.yaml": z}, files{"a.yaml": v, "b.yaml": z + "---\n" + x2},
			"v=10.0.0.3 x=10.0.0.2 z=10.0.0.4", "", "",
		},
		{
			"two are exchanged in one change",
			files{"a.yaml": x1, "b.yaml": v}, files{"a.yaml": v, "b.yaml": x1},
			"v=10.0.0.3 x=10.0.0.1", "", "",
		},
		{
			"falling back takes along who took over",
			files{"a.yaml": x1, "b.yaml": v, "c.yaml": z}, files{"a.yaml": v, "b.yaml": z, "c.yaml": "nonsense"},
			"v=10.0.0.3 x=10.0.0.1 z=10.0.0.4", "a.yaml:1 b.yaml:1 c.yaml:1", "is also at b.yaml:1",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, t.TempDir())
			for name, text := range test.before {
				r.write(name, text)
			}
			if test.before != nil {
				r.scan()
			}
			for name, text := range test.after {
				r.write(name, text)
			}
			r.scan()
			r.want(test.services, test.errors)
			if errs := r.source.Status().Errors; len(errs) > 0 && !strings.Contains(errs[0].Error(), test.says) {
				t.Errorf("got error %q, want it to say %q", errs[0].Error(), test.says)
			}
			r.scan()
			r.want(test.services, test.errors)
		})
	}
}

// TestConflictEnds resolves a conflict by a change to the file that was valid.
func TestConflictEnds(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("x", "10.0.0.1"))
	r.scan()
	r.write("b.yaml", service("x", "10.0.0.2"))
	r.scan()
	r.want("x=10.0.0.1", "b.yaml:1")
	r.must(os.Remove(r.path("a.yaml")))
	r.scan()
	r.want("x=10.0.0.2", "")
}
