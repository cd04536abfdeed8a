package model

import "testing"

func TestParsePortRange(t *testing.T) {
	for text, want := range map[string]PortRange{
		"1-65535": {1, 65535}, "30000": {30000, 30000}, "30000 - 30001": {30000, 30001},
		"": {}, "-": {}, "0-5": {}, "5-4": {}, "1-65536": {}, "a-b": {}, "1-2-3": {},
	} {
		if got, err := ParsePortRange(text); got != want || (err != nil) != (want == PortRange{}) {
			t.Errorf("%q is read as %s, %v; want %s", text, got, err, want)
		}
	}
}

func TestOverlaps(t *testing.T) {
	for _, tt := range []struct {
		p, q PortRange
		want bool
	}{
		{PortRange{1, 5}, PortRange{5, 9}, true}, {PortRange{1, 4}, PortRange{5, 9}, false}, {PortRange{1, 9}, PortRange{3, 4}, true}, {PortRange{}, PortRange{1, 9}, false},
	} {
		if tt.p.Overlaps(tt.q) != tt.want || tt.q.Overlaps(tt.p) != tt.want {
			t.Errorf("%s and %s overlap: want %t", tt.p, tt.q, tt.want)
		}
	}
}
