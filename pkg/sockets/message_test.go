package sockets

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

func TestRemote(t *testing.T) {
	v4 := netip.MustParseAddrPort("10.1.0.2:5353")
	s := socketTo(9, model.UDP, v4)
	mapped := s
	mapped.family = unix.AF_INET6
	as16 := v4.Addr().As16()
	copy(mapped.id[20:], as16[:])
	for name, s := range map[string]Socket{"IPv4": s, "IPv4 of an IPv6 socket": mapped} {
		addr, port := s.Remote()
		if have := netip.AddrPortFrom(maps.NetipOf(addr), maps.PortOf(port)); have != v4 {
			t.Errorf("%s: %s", name, have)
		}
		if s.Cookie() != 9 {
			t.Errorf("%s: cookie %d", name, s.Cookie())
		}
	}
	if s.id.swapped().swapped() != s.id || s.id.swapped() == s.id {
		t.Error("swapped twice is not the same")
	}
}

// Take rejects sockets of another protocol.
func TestTakeAnotherSocket(t *testing.T) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := Take(fd); !errors.Is(err, unix.EPROTOTYPE) {
		t.Errorf("%v, %v", d, err)
	}
	if err := unix.Close(fd); !errors.Is(err, unix.EBADF) {
		t.Errorf("Take left the socket open: %v", err)
	}
}

// The running kernel lists and can abort sockets, or Check returns ErrUnsupported.
func TestCheck(t *testing.T) {
	d, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, protocol := range []model.Protocol{model.UDP, model.TCP} {
		if err := d.Check(protocol); err != nil && !errors.Is(err, ErrUnsupported) {
			t.Error(err)
		}
	}
	if err := d.Check(model.SCTP + 1); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a protocol that no kernel has: %v, want ErrUnsupported", err)
	}
}

// No input makes the parser read out of bounds.
func FuzzParts(f *testing.F) {
	done := make([]byte, 20)
	binary.NativeEndian.PutUint32(done, 20)
	binary.NativeEndian.PutUint16(done[4:], unix.NLMSG_DONE)
	f.Add(done)
	answer := make([]byte, unix.NLMSG_HDRLEN+answerLen)
	binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
	binary.NativeEndian.PutUint16(answer[4:], byFamily)
	f.Add(append(answer, done...))
	f.Add(answer[:30])
	f.Fuzz(func(t *testing.T, b []byte) {
		d := &Diag{}
		_, _ = d.parts(b, func(answer []byte) error {
			s, _, err := decode(model.UDP, answer)
			if err == nil {
				s.Remote()
			}
			return err
		})
	})
}
