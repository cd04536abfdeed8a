package ticks

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"fairlead.io/fairlead/test/rig"
)

func TestTickOf(t *testing.T) {
	for _, test := range []struct {
		jiffy time.Duration
		want  Tick // the zero value stands for an error
	}{
		{10 * time.Millisecond, Tick{7, 1280 * time.Millisecond}}, // CONFIG_HZ=100
		{4 * time.Millisecond, Tick{8, 1024 * time.Millisecond}},
		{3333333 * time.Nanosecond, Tick{8, 853333248 * time.Nanosecond}},
		{time.Millisecond, Tick{10, 1024 * time.Millisecond}},
		{time.Second, Tick{0, time.Second}},
		{time.Nanosecond, Tick{30, 1 << 30}}, // as fake clocks report
		{0, Tick{}},
		{time.Second + 1, Tick{}},
		{-1, Tick{}},
	} {
		have, err := tickOf(test.jiffy)
		if have != test.want || (err != nil) != (test.want == Tick{}) {
			t.Errorf("jiffies of %v: %+v, %v; want %+v", test.jiffy, have, err, test.want)
		}
	}
}

// The kernel's jiffies, as programs read them, advance at the rate that MeasureTick returns.
func TestMeasureTick(t *testing.T) {
	rig.Root(t)
	tick, err := Measure()
	if err != nil {
		t.Fatal(err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SocketFilter,
		Instructions: asm.Instructions{asm.FnJiffies64.Call(), asm.Return()},
		License:      "GPL",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	jiffies := func() (uint32, time.Time) {
		count, err := program.Run(&ebpf.RunOptions{Data: make([]byte, 14)})
		if err != nil {
			t.Fatal(err)
		}
		return count, time.Now()
	}
	first, began := jiffies()
	last, ended := first, began
	for last-first < 1<<tick.Shift/4 {
		last, ended = jiffies()
		if ended.Sub(began) > 30*time.Second {
			t.Fatalf("jiffies do not advance from %d", last)
		}
	}
	have := ended.Sub(began) * time.Duration(1<<tick.Shift) / time.Duration(last-first)
	t.Logf("a tick is %v; measured: %v", tick.Duration, have)
	if ratio := float64(have) / float64(tick.Duration); ratio < 0.8 || ratio > 1.25 {
		t.Errorf("a tick takes %v, but MeasureTick returns %v", have, tick.Duration)
	}
}
