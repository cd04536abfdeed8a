package datapath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

// The setting of the loopback device is turned on where nothing below /proc/sys is written. It is
// noted only if it was off, and before it is changed.
func TestAcceptLocal(t *testing.T) {
	rig.Root(t)
	for _, tt := range []struct {
		was    string
		failed error
		want   string
		noted  []string
	}{
		{"0", nil, "1", []string{acceptLocal, "0", "1"}},
		{"1", nil, "1", nil},
		{"0", errors.New("no space"), "0", []string{acceptLocal, "0", "1"}},
	} {
		ns := rig.NewNetns(t, "node")
		var now []byte
		var noted []string
		d := &deviceLinks{packets: Packets{Note: func(setting, was, is string) error {
			noted = append(noted, setting, was, is)
			return tt.failed
		}}}
		err := errors.Join(ns.SetSysctl(acceptLocal, tt.was), ns.Do(func() (err error) {
			if err := d.turnOnAcceptLocal(); !errors.Is(err, tt.failed) {
				return err
			}
			now, err = os.ReadFile(filepath.Join("/proc/sys", acceptLocal))
			return err
		}))
		if err != nil {
			t.Fatal(err)
		}
		if is := strings.TrimSpace(string(now)); is != tt.want || strings.Join(noted, " ") != strings.Join(tt.noted, " ") {
			t.Errorf("was %s (%v): is %s, noted %v, want %s and %v", tt.was, tt.failed, is, noted, tt.want, tt.noted)
		}
	}
}
