package bugreport

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"net"
	"net/netip"
	"regexp"
	"strings"
)

// Pseudonyms replaces addresses by others. An address has the same pseudonym throughout a bundle,
// and addresses of one network have pseudonyms of one network, so routes and connections can still
// be followed. Each bundle uses different pseudonyms.
type Pseudonyms struct {
	key   []byte
	forms *regexp.Regexp
	cache map[string]string // found text -> replacement
}

// NewPseudonyms returns Pseudonyms with a random key, which nobody can reverse.
func NewPseudonyms() *Pseudonyms {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails
	return &Pseudonyms{key: key, forms: addressPattern(), cache: map[string]string{}}
}

// prefixBits returns how many leading bits stay: they say whether an address is private or link-local.
func prefixBits(addr netip.Addr) int {
	if addr.Is4() {
		return 8
	}
	return 16
}

// special reports whether an address is the same everywhere and so reveals nothing.
func special(addr netip.Addr) bool {
	return addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// address returns the pseudonym of an address. Whether it flips a bit depends on the bits before,
// so addresses with a common prefix have pseudonyms with a common prefix of the same length.
func (p *Pseudonyms) address(addr netip.Addr) netip.Addr {
	if addr.Is4In6() {
		return netip.AddrFrom16(p.address(addr.Unmap()).As16())
	}
	if special(addr) {
		return addr
	}
	in := addr.WithZone("").AsSlice()
	out := append([]byte(nil), in...)
	for bit := prefixBits(addr); bit < len(in)*8; bit++ {
		before := append([]byte{byte(len(in)), byte(bit)}, in[:bit/8+1]...)
		before[len(before)-1] &= ^byte(0xff >> (bit % 8)) // of the current byte, only the bits before this one
		if p.sum(before)[0]&1 == 1 {
			out[bit/8] ^= 0x80 >> (bit % 8)
		}
	}
	is, _ := netip.AddrFromSlice(out)
	return is.WithZone(addr.Zone())
}

func (p *Pseudonyms) sum(text []byte) []byte {
	h := hmac.New(sha256.New, p.key)
	h.Write(text)
	return h.Sum(nil)
}

// addressPattern matches possible hardware, IPv6 and IPv4 addresses, with a prefix length if
// there is one, and host names made of an address, as some clouds assign them.
func addressPattern() *regexp.Regexp {
	const dotted, length = `\d+\.\d+\.\d+\.\d+`, `(?:/\d+)?`
	return regexp.MustCompile(`(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b|[0-9A-Fa-f]*:[0-9A-Fa-f:]*:` + dotted + length +
		`|[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:]*` + length + `|` + dotted + length + `|\bip-\d+-\d+-\d+-\d+\b`)
}

func (p *Pseudonyms) replace(text []byte) []byte {
	return p.forms.ReplaceAllFunc(text, func(found []byte) []byte {
		is := string(found)
		as, ok := p.cache[is]
		if !ok {
			as = p.of(is)
			p.cache[is] = as
		}
		return []byte(as)
	})
}

// longest limits an address or network and the text around it: searching longer text for one would
// take too much time.
const longest = 64

// of returns the replacement of text that looks like an address, or the text itself if it contains
// none.
func (p *Pseudonyms) of(text string) string {
	if len(text) > longest {
		return redacted
	}
	if name, ok := strings.CutPrefix(text, "ip-"); ok {
		return "ip-" + strings.ReplaceAll(p.of(strings.ReplaceAll(name, "-", ".")), ".", "-")
	}
	if mac, err := net.ParseMAC(text); err == nil && len(mac) == 6 {
		return p.hardware(mac)
	}
	// An address may follow the end of a word and a colon, and be followed by a colon and a port.
	for first := 0; first < len(text); first++ {
		if first > 0 && text[first-1] != ':' {
			continue
		}
		for last := len(text); last > first; last-- {
			if last < len(text) && text[last] != ':' && text[last] != '/' {
				continue
			}
			if is, ok := p.ofWhole(text[first:last]); ok {
				return text[:first] + is + text[last:]
			}
		}
	}
	return text
}

// ofWhole returns the replacement of an address or a network.
func (p *Pseudonyms) ofWhole(text string) (string, bool) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		is := netip.PrefixFrom(p.address(prefix.Addr()), prefix.Bits())
		if prefix == prefix.Masked() {
			is = is.Masked()
		}
		return is.String(), true
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return "", false
	}
	return p.address(addr).String(), true
}

// hardware returns the pseudonym of a hardware address. It is a locally administered address, so no
// vendor assigns it.
func (p *Pseudonyms) hardware(mac net.HardwareAddr) string {
	if mac[0]&1 == 1 || mac.String() == "00:00:00:00:00:00" { // a multicast address, or none
		return mac.String()
	}
	is := net.HardwareAddr(p.sum(append([]byte("mac"), mac...))[:6])
	is[0] = is[0]&^1 | 2
	return is.String()
}
