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

// Pseudonyms are addresses in the place of others. The same address has the same pseudonym throughout a bundle, and those of one
// network have pseudonyms of one network, so what leads where can still be seen. In another bundle they are others.
type Pseudonyms struct {
	key   []byte
	looks *regexp.Regexp
	cache map[string]string // what was found -> what stands for it
}

// NewPseudonyms returns Pseudonyms that nobody can undo.
func NewPseudonyms() *Pseudonyms {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails
	return &Pseudonyms{key: key, looks: looksLikeAddress(), cache: map[string]string{}}
}

// kept is how many bits at the front stay: what they say is whether an address is private, or of the link.
func kept(addr netip.Addr) int {
	if addr.Is4() {
		return 8
	}
	return 16
}

// special are addresses that are the same everywhere, and say nothing of anybody.
func special(addr netip.Addr) bool {
	return addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// address returns the pseudonym of an address. Whether a bit of it is turned depends on those before, so addresses that begin
// alike have pseudonyms that do.
func (p *Pseudonyms) address(addr netip.Addr) netip.Addr {
	if addr.Is4In6() {
		return netip.AddrFrom16(p.address(addr.Unmap()).As16())
	}
	if special(addr) {
		return addr
	}
	in := addr.WithZone("").AsSlice()
	out := append([]byte(nil), in...)
	for bit := kept(addr); bit < len(in)*8; bit++ {
		before := append([]byte{byte(len(in)), byte(bit)}, in[:bit/8+1]...)
		before[len(before)-1] &= ^byte(0xff >> (bit % 8)) // of the byte at hand the bits before
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

// looksLikeAddress finds what may be a hardware address, one of IPv6 or one of IPv4, with the length of a network behind it, and
// names of machines that are addresses, as some clouds give them.
func looksLikeAddress() *regexp.Regexp {
	const dotted, length = `\d+\.\d+\.\d+\.\d+`, `(?:/\d+)?`
	return regexp.MustCompile(`(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b|[0-9A-Fa-f]*:[0-9A-Fa-f:]*:` + dotted + length +
		`|[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:]*` + length + `|` + dotted + length + `|\bip-\d+-\d+-\d+-\d+\b`)
}

func (p *Pseudonyms) replace(text []byte) []byte {
	return p.looks.ReplaceAllFunc(text, func(found []byte) []byte {
		is := string(found)
		as, ok := p.cache[is]
		if !ok {
			as = p.of(is)
			p.cache[is] = as
		}
		return []byte(as)
	})
}

// longest is how long an address, a network, and what may be around them are. To look for one in longer text takes time without end.
const longest = 64

// of returns what stands for text that looks like an address; the text itself if there is none in it.
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
	// Around an address there may be the end of a word and a colon, or a colon and a port.
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

// ofWhole returns what stands for an address, or a network.
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

// hardware returns the pseudonym of a hardware address, one that no vendor gives.
func (p *Pseudonyms) hardware(mac net.HardwareAddr) string {
	if mac[0]&1 == 1 || mac.String() == "00:00:00:00:00:00" { // for many, or for none
		return mac.String()
	}
	is := net.HardwareAddr(p.sum(append([]byte("mac"), mac...))[:6])
	is[0] = is[0]&^1 | 2
	return is.String()
}
