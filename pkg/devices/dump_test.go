package devices

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestDump(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		name  string
		says  []error
		want  error
		calls int
	}{
		{"at once", []error{nil}, nil, 1},
		{"changed meanwhile", []error{netlink.ErrDumpInterrupted, nil}, nil, 2},
		{"changed twice", []error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted}, netlink.ErrDumpInterrupted, 2},
		{"another error", []error{broken}, broken, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			calls := 0
			got, err := Dump(func() ([]int, error) {
				calls++
				return []int{calls}, test.says[calls-1]
			})
			if !errors.Is(err, test.want) || calls != test.calls || got[0] != calls {
				t.Errorf("%v, %v after %d calls, want %v after %d", got, err, calls, test.want, test.calls)
			}
		})
	}
}
