package masquerade

import (
	"fmt"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name string
		data string
		want string // the native networks
	}{
		{"ip-masq-agent's own example", "nonMasqueradeCIDRs:\n  - 10.0.0.0/8\n  - 172.16.0.0/12\n  - 192.168.0.0/16\nmasqLinkLocal: false\nresyncInterval: 60s\n",
			"[10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 169.254.0.0/16 fe80::/10]"},
		{"JSON", `{"nonMasqueradeCIDRs": ["fd00::/8", "10.0.0.0/8"], "masqLinkLocal": true, "masqLinkLocalIPv6": true}`, "[fd00::/8 10.0.0.0/8]"},
		{"nothing said", "{}", "[169.254.0.0/16 fe80::/10]"},
		{"link-local of IPv4", "masqLinkLocal: true", "[fe80::/10]"},
		{"link-local of IPv6", "masqLinkLocalIPv6: true", "[169.254.0.0/16]"},
		{"all", "nonMasqueradeCIDRs: [0.0.0.0/0, '::/0']\nmasqLinkLocal: true\nmasqLinkLocalIPv6: true", "[0.0.0.0/0 ::/0]"},
		{"an interval in numbers", "resyncInterval: 60", "[169.254.0.0/16 fe80::/10]"},
	} {
		r, err := Parse([]byte(tt.data))
		if err != nil || fmt.Sprint(r.Native) != tt.want {
			t.Errorf("%s: %v, %v; want %s", tt.name, r, err, tt.want)
		}
		if r != nil && r.Interval != strings.Contains(tt.data, "resyncInterval") {
			t.Errorf("%s: Interval is %t", tt.name, r.Interval)
		}
	}
}

// A single mistake makes the file unusable, and the error names it.
func TestParseMistakes(t *testing.T) {
	for data, says := range map[string]string{
		"":                                    "empty",
		" \n":                                 "empty",
		"null":                                "says nothing",
		"# nothing":                           "says nothing",
		"nonMasqueradeCIDR: [10.0.0.0/8]":     "nonMasqueradeCIDR",
		"nonMasqueradeCIDRs: 10.0.0.0/8":      "nonMasqueradeCIDRs",
		"nonMasqueradeCIDRs: [10.0.0.0]":      `"10.0.0.0"`,
		"nonMasqueradeCIDRs: [10.0.0.1/8]":    "10.0.0.0/8",
		"nonMasqueradeCIDRs: [10.0.0.0/33]":   "10.0.0.0/33",
		"nonMasqueradeCIDRs: ['fe80::%e/64']": "fe80",
		"nonMasqueradeCIDRs: ['::ffff:10.0.0.0/104']": "::ffff",
		"nonMasqueradeCIDRs: ['']":                    `""`,
		"masqLinkLocal: 1":                            "masqLinkLocal",
		"masqLinkLocal: true\nmasqLinkLocal: false":   "masqLinkLocal",
		"nonMasqueradeCIDRs: [10.0.0.0/8":             "line",
		"[]":                                          "array",
		"nonMasqueradeCIDRs: [" + strings.Repeat("10.0.0.0/8,", maxNetworks) + "10.0.0.0/8]": "16385",
	} {
		if r, err := Parse([]byte(data)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.60q: %v, %v; want an error with %q", data, r, err, says)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("nonMasqueradeCIDRs: [10.0.0.0/8]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Parse(data)
		if (r == nil) == (err == nil) {
			t.Fatalf("rules %v and error %v, want exactly one", r, err)
		}
		for i := 0; r != nil && i < len(r.Native); i++ {
			if prefix := r.Native[i]; !prefix.IsValid() || prefix != prefix.Masked() || prefix.Addr().Is4In6() {
				t.Fatalf("network %v", prefix)
			}
		}
	})
}
