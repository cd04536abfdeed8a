package masquerade

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A version that cannot be used leaves the last good one in effect, also for the next agent, and is
// logged once. Changes are signaled.
func TestRuleFile(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	k := NewRuleFile("/etc/masq", dir, logger)
	if list, err := k.Native(); len(list) != 0 || err == nil {
		t.Errorf("before the first look: %v, %v; want no networks and an error", list, err)
	}
	select {
	case <-k.Ready():
		t.Error("ready before the first look")
	default:
	}
	const one, two = "nonMasqueradeCIDRs: [10.0.0.0/8]\nmasqLinkLocal: true\nmasqLinkLocalIPv6: true\nresyncInterval: 5s",
		"nonMasqueradeCIDRs: [10.1.0.0/16]\nmasqLinkLocal: true\nmasqLinkLocalIPv6: true"
	away := errors.New("no such file")
	for _, step := range []struct {
		name    string
		data    string
		err     error
		want    string
		fails   string
		changed bool
		logged  string
	}{
		{"away", "", away, "[]", "no such file", false, "level=ERROR"},
		{"still away", "", away, "[]", "no such file", false, ""},
		{"there", one, nil, "[10.0.0.0/8]", "", true, "resyncInterval"},
		{"the same", one, nil, "[10.0.0.0/8]", "", false, ""},
		{"bad", "nonMasqueradeCIDRs: [10.0.0.0/8, x]", nil, "[10.0.0.0/8]", `"x"`, false, "level=ERROR"},
		{"cut off", "", nil, "[10.0.0.0/8]", "empty", false, "level=ERROR"},
		{"as it was", one, nil, "[10.0.0.0/8]", "", false, ""},
		{"another", two, nil, "[10.1.0.0/16]", "", true, "networks=1"},
		{"gone", "", away, "[10.1.0.0/16]", "no such file", false, "level=ERROR"},
	} {
		log.Reset()
		k.Take([]byte(step.data), step.err)
		list, err := k.Native()
		if fmt.Sprint(list) != step.want || (err != nil) != (step.fails != "") || err != nil && !strings.Contains(err.Error(), step.fails) {
			t.Errorf("%s: %v, %v; want %s", step.name, list, err, step.want)
		}
		changed := false
		select {
		case <-k.Changed():
			changed = true
		default:
		}
		if changed != step.changed || (log.Len() > 0) != (step.logged != "") || !strings.Contains(log.String(), step.logged) {
			t.Errorf("%s: changed %t, logged\n%s", step.name, changed, &log)
		}
		if _, ok := <-k.Ready(); ok {
			t.Error("not ready after a look")
		}
	}
	if list, err := NewRuleFile("/etc/masq", dir, logger).Native(); fmt.Sprint(list) != "[10.1.0.0/16]" || err == nil {
		t.Errorf("the next agent starts with %v, %v", list, err)
	}
	log.Reset()
	if err := os.WriteFile(filepath.Join(dir, "masquerade-config"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, _ := NewRuleFile("/etc/masq", dir, logger).Native(); len(list) != 0 || !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("with a bad copy: %v, logged\n%s", list, &log)
	}
}
