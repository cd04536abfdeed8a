package datapath

import (
	"os"
	"strings"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

// The setting of the loopback device is turned on and off where nothing below /proc/sys is written.
func TestAcceptLocal(t *testing.T) {
	rig.Root(t)
	ns := rig.NewNetns(t, "node")
	for _, accept := range []bool{true, true, false, false, true} {
		var now []byte
		err := ns.Do(func() (err error) {
			if err = setAcceptLocal(accept); err == nil {
				now, err = os.ReadFile("/proc/sys/net/ipv4/conf/lo/accept_local")
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]string{true: "1", false: "0"}[accept]; strings.TrimSpace(string(now)) != want {
			t.Errorf("accept_local is %s, want %s", now, want)
		}
	}
}
