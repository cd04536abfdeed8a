package podnet

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/model"
)

// fakePorts records its calls, and fails every Await while it has an error.
type fakePorts struct {
	received []string
	err      error
	free     func() bool // whether the network's lock is free
}

func (h *fakePorts) SetAttachment(a *model.Attachment) {
	h.received = append(h.received, fmt.Sprintf("set %s %d", a.Pod, len(a.HostPorts)))
}

func (h *fakePorts) DeleteAttachment(pod model.Name, _ string) {
	h.received = append(h.received, "delete "+pod.String())
}

func (h *fakePorts) Await(pod model.Name) error {
	h.received = append(h.received, fmt.Sprintf("await %s %t", pod, h.free()))
	return h.err
}

// The plugin gets its answer once a pod's ports are open or closed, and no other request waits
// meanwhile. A pod that cannot have its ports is not registered, one whose ports are merely late
// is, and the next agent opens the same ports.
func TestPortsAreAwaited(t *testing.T) {
	dir, ports := t.TempDir(), &fakePorts{}
	var n *Network
	start := func() {
		var err error
		if n, err = New(Config{Dir: dir, Chained: true, Ports: ports, Boot: "one", Log: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Close() })
	}
	ports.free = func() bool { return n.mu.TryLock() && func() bool { n.mu.Unlock(); return true }() }
	ask := func(verb cni.Verb, pod string, ports ...cni.PortMapping) error {
		request := &cni.Request{
			Verb: verb, Attachment: owner(1), Pod: cni.Pod{Namespace: "shop", Name: pod}, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")},
			// A device that exists everywhere.
			Device: &cni.Device{Index: 1, Name: "lo", Chained: true, MAC: "02:00:00:00:00:01", PodMAC: "02:00:00:00:00:02", HostPorts: ports},
		}
		var file *os.File
		if verb == cni.Register {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
			if err != nil {
				t.Fatal(err)
			}
			file = os.NewFile(uintptr(fd), "diag")
		}
		_, err := n.Handle(request, file)
		return err
	}
	http := mapped("", 80, "tcp")
	taken, late := cni.Refusal(cni.ErrPortTaken, "another's"), cni.Refusal(types.ErrTryAgainLater, "late")
	start()
	for _, step := range []struct {
		name     string
		err      error
		do       func() error
		fails    bool
		received string
		records  int
	}{
		{"no ports", nil, func() error { return ask(cni.Register, "a") }, false, "set shop/a 0", 1},
		{"gone", nil, func() error { return ask(cni.Release, "a") }, false, "delete shop/a", 0},
		{"port taken", taken, func() error { return ask(cni.Register, "a", http) }, true, "set shop/a 1, await shop/a true, delete shop/a", 0},
		{"port late", late, func() error { return ask(cni.Register, "a", http) }, true, "set shop/a 1, await shop/a true", 1},
		{"again", nil, func() error { return ask(cni.Register, "a", http) }, false, "set shop/a 1, await shop/a true", 1},
		{"port taken, but the pod is registered", taken, func() error { return ask(cni.Register, "a", http) }, true, "set shop/a 1, await shop/a true", 1},
		{"another agent", nil, func() error { start(); return nil }, false, "set shop/a 1", 1},
		{"another pod", nil, func() error { return ask(cni.Register, "b", http) }, false, "delete shop/a, set shop/b 1, await shop/a true, await shop/b true", 1},
		{"closed late", late, func() error { return ask(cni.Release, "b") }, false, "delete shop/b, await shop/b true", 0},
	} {
		ports.received, ports.err = nil, step.err
		if err := step.do(); (err != nil) != step.fails {
			t.Errorf("%s: %v", step.name, err)
		}
		if have := strings.Join(ports.received, ", "); have != step.received {
			t.Errorf("%s: received %q, want %q", step.name, have, step.received)
		}
		files, err := n.files.names(false)
		if err != nil || len(n.records) != step.records || len(files) != step.records {
			t.Errorf("%s: %d records and %d files, %v; want %d", step.name, len(n.records), len(files), err, step.records)
		}
	}
}

func mapped(host string, port int, protocol string) cni.PortMapping {
	return cni.PortMapping{HostIP: host, HostPort: port, ContainerPort: 80, Protocol: protocol}
}

// A port belongs to one container, for each address and protocol, however the address is written.
func TestVacant(t *testing.T) {
	for _, tt := range []struct {
		name   string
		owner  string
		has    cni.PortMapping
		wants  cni.PortMapping
		vacant bool
	}{
		{"the same", "b", mapped("", 80, "tcp"), mapped("", 80, "tcp"), false},
		{"the same container", "a", mapped("", 80, "tcp"), mapped("", 80, "tcp"), true},
		{"another port", "b", mapped("", 80, "tcp"), mapped("", 81, "tcp"), true},
		{"another protocol", "b", mapped("", 80, "tcp"), mapped("", 80, "udp"), true},
		{"one address and all", "b", mapped("", 80, "tcp"), mapped("127.0.0.1", 80, "tcp"), true},
		{"two addresses", "b", mapped("127.0.0.1", 80, "tcp"), mapped("192.0.2.1", 80, "tcp"), true},
		{"all, written differently", "b", mapped("::", 80, "tcp"), mapped("0.0.0.0", 80, "tcp"), false},
		{"one, written differently", "b", mapped("::ffff:192.0.2.1", 80, "tcp"), mapped("192.0.2.1", 80, "tcp"), false},
		{"an IPv6 address, written differently", "b", mapped("2001:db8:0::1", 80, "tcp"), mapped("2001:db8::1", 80, "tcp"), false},
	} {
		record := func(container string, m cni.PortMapping) *Record {
			return &Record{
				Owner: cni.Attachment{Network: "pods", Container: container, IfName: "eth0"}, Pod: cni.Pod{Namespace: "shop", Name: container},
				Device: cni.Device{HostPorts: []cni.PortMapping{m}},
			}
		}
		opener := portOpener{ports: &fakePorts{}}
		err := opener.vacant(record("a", tt.wants), map[string]*Record{"fl": record(tt.owner, tt.has)})
		if (err == nil) != tt.vacant {
			t.Errorf("%s: %v", tt.name, err)
		}
		var refusal *types.Error
		if err != nil && (!errors.As(err, &refusal) || refusal.Code != cni.ErrPortTaken) {
			t.Errorf("%s: got %v, want a refusal with code ErrPortTaken", tt.name, err)
		}
	}
}

// An attachment has the ports that the runtime asked for. A pod without a name is named after its
// container.
func TestAttachment(t *testing.T) {
	record := &Record{
		Owner: owner(1), Pod: cni.Pod{Namespace: "shop", Name: "web", UID: "u"}, Since: time.Unix(7, 8),
		Device: cni.Device{HostPorts: []cni.PortMapping{mapped("0.0.0.0", 80, "udp"), mapped("::1", 81, "sctp"), mapped("::ffff:127.0.0.1", 82, "tcp")}},
	}
	want := &model.Attachment{
		Pod: model.Name{Namespace: "shop", Name: "web"}, UID: "u", Device: owner(1).Device(), Created: 7,
		HostPorts: []model.HostPort{
			{Port: 80, ContainerPort: 80, Protocol: model.UDP},
			{HostIP: prefixes("::1/128")[0].Addr(), Port: 81, ContainerPort: 80, Protocol: model.SCTP},
			{HostIP: prefixes("127.0.0.1/32")[0].Addr(), Port: 82, ContainerPort: 80, Protocol: model.TCP},
		},
	}
	if got := record.attachment(); !reflect.DeepEqual(got, want) {
		t.Errorf("attachment %+v, want %+v", got, want)
	}
	record.Pod = cni.Pod{Namespace: "shop"}
	want.Pod, want.UID = model.Name{Name: "c1"}, "c1"
	if got := record.attachment(); !reflect.DeepEqual(got, want) {
		t.Errorf("attachment of a pod without a name: %+v, want %+v", got, want)
	}
}
