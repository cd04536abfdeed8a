package debian

import (
	"errors"
	"strings"
	"testing"
)

func TestParseTargets(t *testing.T) {
	for _, test := range []struct {
		name, targets string
		want          mirror
		err           error
	}{
		{"Debian 12", "bookworm https://m.example/debian/\nbookworm-updates https://n.example/debian/\nbookworm-security https://s.example/debian-security/\n",
			mirror{"https://m.example/debian", "https://s.example/debian-security"}, nil},
		{"no security", "sid https://m.example/debian\n", mirror{"https://m.example/debian", "https://m.example/debian-security"}, nil},
		{"beside others", "nodistro https://other.example/tool\ntrixie https://m.example/debian\n",
			mirror{"https://m.example/debian", "https://m.example/debian-security"}, nil},
		{"none", "nodistro https://other.example/tool\n", mirror{}, errNoMirror},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := parseTargets(strings.NewReader(test.targets))
			if m != test.want || !errors.Is(err, test.err) {
				t.Errorf("have %v, %v; want %v, %v", m, err, test.want, test.err)
			}
		})
	}
}

func TestMirrorOf(t *testing.T) {
	t.Setenv(mirrorVariable, "https://m.example/debian/")
	m, err := findMirror()
	if err != nil {
		t.Fatal(err)
	}
	for suite, want := range map[string]string{
		"sid": "https://m.example/debian", "bookworm-backports": "https://m.example/debian",
		"bookworm-security": "https://m.example/debian-security",
	} {
		if got := m.of(suite); got != want {
			t.Errorf("%s: %s, want %s", suite, got, want)
		}
	}
}

func TestIsDebian(t *testing.T) {
	for release, want := range map[string]bool{
		"NAME=Debian\nID=debian\n": true, "ID=\"debian\"\n": true, "ID=ubuntu\nID_LIKE=debian\n": false, "": false,
	} {
		if isDebian(release) != want {
			t.Errorf("%q: %t", release, !want)
		}
	}
}

func TestHide(t *testing.T) {
	m := mirror{"https://m.example:8080/debian", "http://s.example/sec"}
	text := "Err:1 https://m.example:8080/debian sid, m.example is away; http://s.example/sec/x: no s.example"
	if got := string(m.hide([]byte(text))); strings.Contains(got, "example") || !strings.Contains(got, "is away") {
		t.Error(got)
	}
}

func TestNetworkSettings(t *testing.T) {
	dump := `APT "";
Acquire "";
Acquire::http "";
Acquire::http::Proxy "http://p.example:1/";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "true";
Acquire::https::Verify-Peer "true";
APT::Update::Post-Invoke:: "rm -f /var/cache/apt/archives/*.deb";
`
	want := `Acquire::http "";
Acquire::http::Proxy "http://p.example:1/";
Acquire::https::Verify-Peer "true";
`
	if got := networkSettings([]byte(dump)); got != want {
		t.Error(got)
	}
}
