package bugreport

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Every address in these texts is replaced, and the text around it stays.
func TestAddresses(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"10.96.0.10:80/tcp", `^10\.\d+\.\d+\.\d+:80/tcp$`},
		{"203.0.113.7", `^203\.\d+\.\d+\.\d+$`},
		{"10.1.2.0/24", `^10\.\d+\.\d+\.0/24$`},
		{"10.1.2.3/24", `^10\.\d+\.\d+\.\d+/24$`},
		{"10.1.2.3/999", `^10\.\d+\.\d+\.\d+/999$`},
		{"[2001:db8::7]:443", `^\[2001:[0-9a-f:]+\]:443$`},
		{"2001:db8:1:2::/64 via", `^2001:[0-9a-f:]+::/64 via$`},
		{"fe80::1234%eth0", `^fe80:[0-9a-f:]+%eth0$`},
		{"to:2001:db8::7 ", `^to:2001:[0-9a-f:]+ $`},
		{"xx:2001:db8:1:2:3:4:5:6:", `^xx:2001:[0-9a-f:]+:$`},
		{"::ffff:10.96.0.10", `^::ffff:10\.\d+\.\d+\.\d+$`},
		{"02:42:ac:11:00:07,", `^[0-9a-f]{2}(:[0-9a-f]{2}){5},$`},
		{"ip-10-0-3-7.ec2.internal", `^ip-10-\d+-\d+-\d+\.ec2\.internal$`},
		{`"10.0.0.1","10.0.0.2"`, `^"10\.\d+\.\d+\.\d+","10\.\d+\.\d+\.\d+"$`},
	} {
		p := NewPseudonyms()
		got := string(p.replace([]byte(tt.text)))
		if !regexp.MustCompile(tt.want).MatchString(got) || got == tt.text {
			t.Errorf("%q became %q", tt.text, got)
		}
		if again := string(p.replace([]byte(tt.text))); again != got {
			t.Errorf("%q became %q and then %q", tt.text, got, again)
		}
	}
}

// Addresses that are the same everywhere, and what is no address, stay.
func TestNoAddresses(t *testing.T) {
	for _, text := range []string{
		"0.0.0.0/0", "127.0.0.1:10249", "::", "[::]:80", "::1/128", "224.0.0.1", "ff02::1", "ff00::/8", "255.255.255.255", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff",
		"33:33:00:00:00:01", "2031-02-03T04:05:06Z", "6.18.44", "run.go:120", "a:b", "x: y: z", "300.1.2.3", "12:34:56", "eth0: flags",
	} {
		if got := string(NewPseudonyms().replace([]byte(text))); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// Pseudonyms have the same number of leading bits in common as the addresses, no two addresses
// share one, and another bundle has different ones.
func TestPrefixesStay(t *testing.T) {
	p, other := NewPseudonyms(), NewPseudonyms()
	common := func(a, b netip.Addr) (bits int) {
		x, y := a.AsSlice(), b.AsSlice()
		for bits < len(x)*8 && (x[bits/8]^y[bits/8])&(0x80>>(bits%8)) == 0 {
			bits++
		}
		return bits
	}
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{4, 16}).Draw(t, "size")
		draw := func(name string) netip.Addr {
			addr, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, name))
			return addr
		}
		a, b := draw("a"), draw("b")
		if n := rapid.IntRange(0, size).Draw(t, "the same"); !special(a) && !a.Is4In6() {
			b, _ = netip.AddrFromSlice(append(a.AsSlice()[:n:n], b.AsSlice()[n:]...))
		}
		if special(a) || special(b) || a.Is4In6() || b.Is4In6() {
			return
		}
		if have, want := common(p.address(a), p.address(b)), common(a, b); have != want {
			t.Fatalf("%s and %s have %d bits in common, %s and %s %d", a, b, want, p.address(a), p.address(b), have)
		}
	})
	same := 0
	for i := range byte(100) {
		if a := netip.AddrFrom4([4]byte{10, 1, 2, i}); p.address(a) == other.address(a) {
			same++
		}
	}
	if same > 10 {
		t.Errorf("%d of 100 addresses have the same pseudonym in two bundles", same)
	}
}

func TestAnonymize(t *testing.T) {
	r := NewRedactor(nil)
	r.Anonymize(NewPseudonyms(), map[string]string{"worker-7": "this-node", "worker-7.example.com": "this-node", "w": "x"})
	got := string(r.Clean([]byte("worker-7.example.com, Worker-7: worker-77 w 10.0.0.1"), false))
	if !strings.HasPrefix(got, "this-node, this-node: worker-77 w 10.") || strings.HasSuffix(got, " 10.0.0.1") {
		t.Errorf("%q", got)
	}
}

// Endless text that almost looks like addresses takes little time and reveals nothing.
func TestEndless(t *testing.T) {
	for _, text := range []string{strings.Repeat("a:", 1<<17), strings.Repeat("::10.1.2.3", 1<<14), strings.Repeat("1", 1<<17) + ".2.3.4"} {
		began := time.Now()
		if got := string(NewPseudonyms().replace([]byte(text))); strings.Contains(got, "10.1.2.3") || strings.Contains(got, "a:a:") {
			t.Errorf("%.30q became %.30q", text, got)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%.30q took %v", text, took)
		}
	}
}
