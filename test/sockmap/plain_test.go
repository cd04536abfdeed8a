package sockmap

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

var (
	withTLS = flag.Bool("tls", false, "try connections with TLS in the kernel, which has to have it")
	withAO  = flag.Bool("ao", false, "try connections with TCP-AO, which the kernel has to have")
)

// TestNotPlain checks that connections with signed segments or several paths are left alone: not
// even a row is made for them. For multipath connections the kernel sees to that: a socket of MPTCP
// is read without the tracepoint that finds connections, so this holds without is_plain's check of
// is_mptcp too. The test fails once a kernel shows the subflows and is_plain does not recognize
// them.
func TestNotPlain(t *testing.T) {
	for _, how := range []string{"md5", "multipath"} {
		t.Run(how, func(t *testing.T) { testNotPlain(t, how) })
	}
}

func TestAO(t *testing.T) {
	if !*withAO {
		t.Skip("-ao runs it")
	}
	testNotPlain(t, "ao")
}

func testNotPlain(t *testing.T, how string) {
	w := newTwoPods(t, sockmap.DefaultLimits())
	c := w.dial(server4)
	c.ok("close")
	c.ok("%s", how)
	c.ask(100, 100)
	if tallies, err := w.Tallies(); err != nil || !w.isForgotten() || tallies.Watched != 0 {
		t.Errorf("%+v, %+v, %v", w.pairs(), tallies, err)
	}
}

// TestTLS checks that a connection that the kernel encrypts is excluded. Once a connection bypasses
// TCP, kernels refuse to start encrypting it, and a program goes on without that; if a kernel does
// not refuse, no data bypasses the encryption.
func TestTLS(t *testing.T) {
	if !*withTLS {
		t.Skip("-tls runs it")
	}
	t.Run("before", func(t *testing.T) {
		w := newTwoPods(t, sockmap.DefaultLimits())
		c := w.dial(server4)
		c.ask(6, 100)
		c.ok("tls")
		c.ask(20, 100)
		w.excluded(c, "ulp")
	})
	t.Run("afterwards", func(t *testing.T) {
		w, c := short(t, sockmap.DefaultLimits())
		if got := c.do("tls"); got != "ok" && got != "give the kernel keys (1): invalid argument" {
			t.Error(got)
		}
		before := w.redirected()
		c.ask(40, 1000)
		if after := w.redirected(); after != before {
			t.Errorf("%d bytes went past TCP, and past TLS, %d before", after, before)
		}
	})
}

// TestOfAnother checks that a socket that is in another program's map stays there, and is finally
// left to TCP.
func TestOfAnother(t *testing.T) {
	limits := sockmap.DefaultLimits()
	limits.Turns = 1 // the last attempt would otherwise need so many turns that it takes long
	w := newTwoPods(t, limits)
	c := w.dial(server4)
	c.ok("give")
	for n := 0; ; n++ { // how many are needed depends on when the agent looks at it
		c.ask(2000, 100)
		p := w.only()
		if p.State == "accelerated" || p.Redirected != [2]uint64{} || n > 100 {
			t.Fatalf("%+v", p)
		}
		if p.State == "excluded" {
			break
		}
	}
	w.excluded(c, "refused")
}

const client4 = "10.1.0.1"

// unlike opens a connection of an unusual kind.
func unlike(how string, from, to *rig.Netns) (e ends, err error) {
	config, dialer := net.ListenConfig{}, net.Dialer{Timeout: patience}
	config.SetMultipathTCP(how == "multipath")
	dialer.SetMultipathTCP(how == "multipath")
	switch how {
	case "md5":
		config.Control, dialer.Control = control(signMD5(client4)), control(signMD5(server4))
	case "ao":
		config.Control, dialer.Control = control(signAO(client4)), control(signAO(server4))
	}
	var listener net.Listener
	if err := to.Do(func() error {
		listener, err = config.Listen(context.Background(), "tcp4", net.JoinHostPort(server4, "0"))
		return err
	}); err != nil {
		return e, err
	}
	defer listener.Close()
	if e, err = connectBy(&dialer, from, listener, listener.Addr().String()); err != nil {
		return e, err
	}
	for _, end := range []*net.TCPConn{e.client, e.server} {
		if is, err := end.MultipathTCP(); err != nil || is != (how == "multipath") {
			return e, errors.Join(fmt.Errorf("it may go several ways: %v", is), err)
		}
	}
	return e, nil
}

func control(f func(fd int) error) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = f(int(fd)) })
		return errors.Join(err, failed)
	}
}

const secret = "of both ends"

// signMD5 has segments to and from an address signed as in RFC 2385.
func signMD5(peer string) func(fd int) error {
	return func(fd int) error {
		sig := unix.TCPMD5Sig{Addr: unix.SockaddrStorage{Family: unix.AF_INET}, Keylen: uint16(len(secret))}
		copy(sig.Addr.Data[2:], net.ParseIP(peer).To4())
		copy(sig.Key[:], secret)
		return unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &sig)
	}
}

// signAO has segments to and from an address signed as in RFC 5925.
func signAO(peer string) func(fd int) error {
	return func(fd int) error {
		// TCP_AO_ADD_KEY, and offsets in struct tcp_ao_add and its size.
		const addKey, addr, algorithm, prefix, keyLen, key, size = 38, 0, 128, 202, 207, 208, 288
		var add [size]byte
		binary.NativeEndian.PutUint16(add[addr:], unix.AF_INET)
		copy(add[addr+4:], net.ParseIP(peer).To4())
		copy(add[algorithm:], "hmac(sha1)")
		add[prefix] = 32
		add[keyLen] = byte(len(secret))
		copy(add[key:], secret)
		return unix.SetsockoptString(fd, unix.IPPROTO_TCP, addKey, string(add[:]))
	}
}

// given is another program's map.
var given *ebpf.Map

// give puts the server's socket into given.
func (e ends) give() (err error) {
	if given, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.SockHash, KeySize: 8, ValueSize: 8, MaxEntries: 1}); err != nil {
		return err
	}
	return e.raw(func(fd int) error { return given.Put(uint64(1), uint64(fd)) })
}

// encrypt has the kernel encrypt and decrypt at both ends, with one key for everything.
func (e ends) encrypt() error {
	// TLS 1.2, AES-CCM with 128 bits, TLS_TX, TLS_RX.
	const version, cipher, send, receive = 0x0303, 53, 1, 2
	info := binary.NativeEndian.AppendUint16(nil, version)
	info = binary.NativeEndian.AppendUint16(info, cipher)
	info = append(info, make([]byte, 8+16+4+8)...) // IV, key, salt and sequence number
	for _, end := range []*net.TCPConn{e.client, e.server} {
		raw, err := end.SyscallConn()
		if err != nil {
			return err
		}
		if err := control(func(fd int) error {
			if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP, "tls"); err != nil {
				return fmt.Errorf("have the kernel do TLS: %w", err)
			}
			for _, way := range []int{send, receive} {
				if err := unix.SetsockoptString(fd, unix.SOL_TLS, way, string(info)); err != nil {
					return fmt.Errorf("give the kernel keys (%d): %w", way, err)
				}
			}
			return nil
		})("", "", raw); err != nil {
			return err
		}
	}
	return nil
}
