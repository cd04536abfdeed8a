package explain

import (
	"net/netip"
	"strings"
	"testing"
)

func TestFindPeer(t *testing.T) {
	const list = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:C350 0A01600A:1F90 02 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 00000000000000000000000001000000:0050 B80D0120000000000000000001000000:0050 02 0:0 0:0 0 0 0 4712 1
   2: 0000000000000000FFFF00000100007F:0050 0000000000000000FFFF00000A01600A:0051 02 0:0 0:0 0 0 0 4713 1
   3: 0100007F:C350 0A01:1F90 02 0:0 0:0 0 0 0 4714 1
`
	for inode, want := range map[uint64]string{
		4711: "10.96.1.10:8080", 4712: "[2001:db8::1]:80", 4713: "10.96.1.10:81", 4714: "", 471: "",
	} {
		got, err := findPeer(strings.NewReader(list), inode)
		if want == "" {
			if err == nil {
				t.Errorf("%d: %s", inode, got)
			}
		} else if err != nil || got != netip.MustParseAddrPort(want) {
			t.Errorf("%d: %s, %v, want %s", inode, got, err, want)
		}
	}
}
