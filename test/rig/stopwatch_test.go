package rig

import (
	"testing"
	"time"
)

func TestPressure(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"some avg10=4.64 avg60=31.93 avg300=47.63 total=11861594997\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n": 11861594997 * time.Microsecond,
		"full avg10=0.00 avg60=0.00 avg300=0.00 total=0\nsome avg10=0.00 avg60=0.00 avg300=0.00 total=7\n":             7 * time.Microsecond,
		"": -1, "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n": -1, "some nonsense\n": -1,
	} {
		have, err := pressure(text)
		if err != nil {
			have = -1
		}
		if have != want {
			t.Errorf("%q: %v, want %v", text, have, want)
		}
	}
}

// The time that a process sleeps counts, however busy other processes are, and Took is never
// negative.
func TestStopwatch(t *testing.T) {
	watch := NewStopwatch(t)
	if took := watch.Took(); took < 0 || took > time.Second {
		t.Errorf("no work took %v", took)
	}
	time.Sleep(50 * time.Millisecond)
	if took, all := watch.Took(), time.Since(watch.began); took > all || took < 0 {
		t.Errorf("%v of %v counted", took, all)
	}
	if n := Times(t, 300); n != 300 {
		t.Errorf("300 times are %d", n)
	}
}

// On a machine called slower, a second counts for a fraction of one, and repetitions become fewer.
func TestStopwatchOfASlowMachine(t *testing.T) {
	t.Setenv("MACHINE_SLOWER", "1000")
	if few, many := Times(t, 300), Times(t, 300_000); few != 1 || many != 300 {
		t.Errorf("300 times are %d, 300,000 are %d", few, many)
	}
	watch := NewStopwatch(t)
	time.Sleep(50 * time.Millisecond)
	if took, all := watch.Took(), time.Since(watch.began); took > all/1000 {
		t.Errorf("%v of %v counted", took, all)
	}
}
