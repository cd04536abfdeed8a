package outside

import (
	"fmt"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

// SCTP associations from outside reach backends on this node and others, whether senders or devices
// compute their checksums.
func TestSCTP(t *testing.T) {
	rig.Root(t)
	rig.SCTP(t)
	for _, test := range []struct {
		name string
		settings
	}{
		{"sums left to devices", settings{sums: true, xdp: "off"}},
		{"every packet complete", settings{xdp: "off"}},
		{"XDP", settings{xdp: "native"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.services, test.sctp = true, true
			w := newNodesBehindRouter(t, test.settings)
			for _, p := range paths() {
				for _, v6 := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s %s", p.name, familyName(v6)), func(t *testing.T) {
						w.follow(t, p, v6, order{SCTP: true, Bytes: 5})
						w.follow(t, p, v6, order{SCTP: true, Bytes: 100_000})
						w.follow(t, p, v6, order{SCTP: true, Bytes: 5, From: 4001})
					})
				}
			}
		})
	}
}
