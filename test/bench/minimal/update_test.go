package minimal

import (
	"testing"

	"fairlead.io/fairlead/test/rig"
)

func TestTimeUpdates(t *testing.T) {
	rig.Root(t)
	for _, rows := range []int{1, 1000} {
		times, err := TimeUpdates(rows, 5000)
		if err != nil || times.Min <= 0 || times.Min > times.Median || times.Median > times.P99 {
			t.Errorf("%d rows: %+v, %v", rows, times, err)
		}
	}
	for _, tt := range [][2]int{{0, 100}, {1, 15}} {
		if times, err := TimeUpdates(tt[0], tt[1]); err == nil {
			t.Errorf("%v: %+v", tt, times)
		}
	}
}
