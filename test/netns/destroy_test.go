package netns

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/sockets"
	"fairlead.io/fairlead/test/bench/minimal/limited"
	"fairlead.io/fairlead/test/rig"
)

// A socket is aborted only if it is still as it was when it was listed: once it has disconnected or
// connected elsewhere it is another connection, although the kernel would still find it by its
// local port.
func TestDestroyIsExact(t *testing.T) {
	rig.Root(t)
	first, second := netip.MustParseAddrPort("127.0.0.2:53"), netip.MustParseAddrPort("127.0.0.3:53")
	first6, second6 := netip.MustParseAddrPort("[::1]:53"), netip.MustParseAddrPort("[::1]:54")
	connect := func(to netip.AddrPort) func(fd, family int) error {
		return func(fd, family int) error {
			return errors.Join(disconnect(fd), unix.Connect(fd, sockaddr(family, to)))
		}
	}
	for _, test := range []struct {
		name   string
		family int
		to     netip.AddrPort
		then   func(fd, family int) error
		want   bool
	}{
		{"as it was", unix.AF_INET, first, nil, true},
		{"as it was, IPv6", unix.AF_INET6, first6, nil, true},
		{"as it was, IPv4 of an IPv6 socket", unix.AF_INET6, first, nil, true},
		{"not connected any more", unix.AF_INET, first, func(fd, _ int) error { return disconnect(fd) }, false},
		{"not connected any more, IPv6", unix.AF_INET6, first6, func(fd, _ int) error { return disconnect(fd) }, false},
		{"not connected any more, IPv4 of an IPv6 socket", unix.AF_INET6, first, func(fd, _ int) error { return disconnect(fd) }, false},
		{"connected elsewhere", unix.AF_INET, first, connect(second), false},
		{"connected elsewhere, IPv6", unix.AF_INET6, first6, connect(second6), false},
		{"connected elsewhere, IPv4 of an IPv6 socket", unix.AF_INET6, first, connect(second), false},
		{"connected again", unix.AF_INET, first, connect(first), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var done bool
			var after error
			if err := rig.NewNetns(t, "node").Do(func() error {
				return limited.Do(func() (err error) {
					done, after, err = destroyOne(test.family, test.to, test.then)
					return err
				})
			}); err != nil {
				t.Fatal(err)
			}
			if done != test.want || (test.want && !errors.Is(after, unix.ECONNABORTED)) || (!test.want && after != nil) {
				t.Errorf("aborted %v, the socket has %v", done, after)
			}
		})
	}
}

// destroyOne lists a bound, connected socket, lets then change it, aborts it, and returns what the
// abort reported and the error of the socket.
func destroyOne(family int, to netip.AddrPort, then func(fd, family int) error) (done bool, after, err error) {
	diag, err := sockets.Open()
	if err != nil {
		return false, nil, err
	}
	defer diag.Close()
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, nil, err
	}
	defer unix.Close(fd)
	any := netip.AddrPortFrom(netip.IPv4Unspecified(), 5000)
	if family == unix.AF_INET6 {
		any = netip.AddrPortFrom(netip.IPv6Unspecified(), 5000)
	}
	if err := errors.Join(unix.Bind(fd, sockaddr(family, any)), unix.Connect(fd, sockaddr(family, to))); err != nil {
		return false, nil, err
	}
	var listed []sockets.Socket
	if err := diag.Each(model.UDP, func(s sockets.Socket) { listed = append(listed, s) }); err != nil {
		return false, nil, err
	}
	if len(listed) != 1 {
		return false, nil, errors.New("the socket is not the only one")
	}
	if then != nil {
		if err := then(fd, family); err != nil {
			return false, nil, err
		}
	}
	done, err = diag.Destroy(listed[0])
	errno, optErr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if errno != 0 {
		after = unix.Errno(errno)
	}
	return done, after, errors.Join(err, optErr)
}
