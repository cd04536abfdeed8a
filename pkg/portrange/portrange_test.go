package portrange

import "testing"

func TestParse(t *testing.T) {
	for text, want := range map[string]Ports{
		"1-65535": {1, 65535}, "30000": {30000, 30000}, "30000 - 30001": {30000, 30001},
		"": {}, "-": {}, "0-5": {}, "5-4": {}, "1-65536": {}, "a-b": {}, "1-2-3": {},
	} {
		if got, err := Parse(text); got != want || (err != nil) != (want == Ports{}) {
			t.Errorf("%q is read as %s, %v; want %s", text, got, err, want)
		}
	}
}

func TestOverlaps(t *testing.T) {
	for _, tt := range []struct {
		p, q Ports
		want bool
	}{
		{Ports{1, 5}, Ports{5, 9}, true}, {Ports{1, 4}, Ports{5, 9}, false}, {Ports{1, 9}, Ports{3, 4}, true}, {Ports{}, Ports{1, 9}, false},
	} {
		if tt.p.Overlaps(tt.q) != tt.want || tt.q.Overlaps(tt.p) != tt.want {
			t.Errorf("%s and %s overlap: want %t", tt.p, tt.q, tt.want)
		}
	}
}
