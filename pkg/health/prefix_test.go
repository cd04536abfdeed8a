package health

import (
	"net"
	"testing"
	"time"

	"fairlead.io/fairlead/test/rig"
)

// TestProbeBesideAttacker checks that a probe that takes its time is answered although another host
// of its network, which counts as the same source, keeps connections open and opens ever more.
func TestProbeBesideAttacker(t *testing.T) {
	rig.Root(t)
	ns := rig.NewNetns(t, "node")
	rig.Address(t, ns, "lo", "2001:db8::1/64", "2001:db8::2/64", "2001:db8::3/64")
	var inner net.Listener
	if err := ns.Do(func() (err error) {
		inner, err = net.Listen("tcp", "[2001:db8::1]:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	listener := limitedListener{inner.(*net.TCPListener), newLimiter(nil)}
	connect := func(source string) (client, server net.Conn) {
		if err := ns.Do(func() (err error) {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: 10 * time.Second}
			client, err = dialer.Dial("tcp", inner.Addr().String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
		return client, server
	}
	for range maxPerSource {
		connect("2001:db8::3")
	}
	client, server := connect("2001:db8::2")
	for range 2 * maxPerSource {
		connect("2001:db8::3")
	}
	_, _ = server.Write([]byte("ok"))
	answer := make([]byte, 2)
	if err := client.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(answer); err != nil || string(answer) != "ok" {
		t.Errorf("the probe gets %q, %v", answer, err)
	}
	if n := listener.limit.len(); n > maxPerSource {
		t.Errorf("%d connections are open", n)
	}
}
