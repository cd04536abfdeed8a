package cni

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

// handler is a function as a Handler.
type handler func(*Request, *os.File) (*Answer, error)

func (h handler) Handle(request *Request, file *os.File) (*Answer, error) { return h(request, file) }

// serve returns the path of a socket that h answers until the test ends.
func serve(t *testing.T, h handler) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run", SocketName)
	server, err := NewServer(path, h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is still there: %v", err)
		}
	})
	return path
}

func request() *Request {
	return &Request{
		Verb: Register, Attachment: Attachment{Network: "pods", Container: "abc", IfName: "eth0"}, Pod: Pod{Namespace: "shop", Name: "web"},
		Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00::1")},
		Device: &Device{Index: 7, Name: "fl0123456789ab", MAC: "02:00:00:00:00:01", PodMAC: "02:00:00:00:00:02",
			HostPorts: []PortMapping{{HostPort: 80, ContainerPort: 8080, Protocol: "tcp", HostIP: "::"}}, Bandwidth: &Bandwidth{IngressRate: 1}},
	}
}

// A request and its file arrive as they were sent, and so does the answer.
func TestExchange(t *testing.T) {
	var got *Request
	var content [5]byte
	path := serve(t, func(r *Request, file *os.File) (*Answer, error) {
		got = r
		defer file.Close()
		_, err := file.ReadAt(content[:], 0)
		return &Answer{Addresses: r.Addresses, MTU: 9000, Settings: []Setting{{"ipv4", "rp_filter", "0"}}}, err
	})
	for _, private := range []string{path, filepath.Dir(path)} {
		if info, err := os.Stat(private); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is open to others: %v, %v", private, info.Mode(), err)
		}
	}
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	answer, err := (&Client{Path: path}).Ask(request(), file)
	if err != nil {
		t.Fatal(err)
	}
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if diff := cmp.Diff(request(), got, same); diff != "" || string(content[:]) != "hello" {
		t.Errorf("request (-sent +received), file content %q:\n%s", content, diff)
	}
	want := &Answer{Addresses: request().Addresses, MTU: 9000, Settings: []Setting{{"ipv4", "rp_filter", "0"}}}
	if diff := cmp.Diff(want, answer, same); diff != "" {
		t.Errorf("answer (-sent +received):\n%s", diff)
	}
}

// Errors keep their code, and the client waits only for an agent that is away or not ready.
func TestRefusals(t *testing.T) {
	var asked atomic.Int32
	path := serve(t, func(r *Request, _ *os.File) (*Answer, error) {
		switch {
		case r.Verb == Status:
			return nil, Refusal(ErrNotAvailable, "not now")
		case asked.Add(1) < 3:
			return nil, Refusal(types.ErrTryAgainLater, "starting")
		case r.Verb == Check:
			return nil, errors.New("plain")
		}
		return &Answer{}, nil
	})
	code := func(request *Request, patience time.Duration) uint {
		_, err := (&Client{Path: path, Patience: patience}).Ask(request, nil)
		var refusal *types.Error
		if err != nil && !errors.As(err, &refusal) {
			t.Fatalf("an error without a code: %v", err)
		}
		if refusal == nil {
			return 0
		}
		return refusal.Code
	}
	if got := code(&Request{Verb: Status}, time.Hour); got != ErrNotAvailable {
		t.Errorf("status: code %d", got)
	}
	if got := code(request(), 0); got != types.ErrTryAgainLater {
		t.Errorf("without patience: code %d", got)
	}
	if got := code(request(), time.Hour); got != 0 || asked.Load() != 3 {
		t.Errorf("with patience: code %d, asked %d times", got, asked.Load())
	}
	check := request()
	check.Verb = Check
	if got := code(check, 0); got != types.ErrInternal {
		t.Errorf("plain error: code %d", got)
	}
	if _, err := (&Client{Path: path + "x"}).Ask(request(), nil); err == nil || !strings.Contains(err.Error(), "no agent") {
		t.Errorf("no socket: %v", err)
	}
}

// Invalid requests never reach the handler.
func TestHostileRequests(t *testing.T) {
	path := serve(t, func(r *Request, _ *os.File) (*Answer, error) {
		t.Errorf("the handler got %+v", r)
		return &Answer{}, nil
	})
	for name, spoil := range map[string]func(*Request){
		"no verb":              func(r *Request) { r.Verb = "" },
		"unknown verb":         func(r *Request) { r.Verb = "format" },
		"no container":         func(r *Request) { r.Attachment.Container = "" },
		"path as container":    func(r *Request) { r.Attachment.Container = "../x" },
		"long container":       func(r *Request) { r.Attachment.Container = strings.Repeat("x", 300) },
		"path as interface":    func(r *Request) { r.Attachment.IfName = "a/b" },
		"long interface":       func(r *Request) { r.Attachment.IfName = strings.Repeat("x", 16) },
		"path as network":      func(r *Request) { r.Attachment.Network = "../.." },
		"pod with two lines":   func(r *Request) { r.Pod.Name = "a\nb" },
		"mapped address":       func(r *Request) { r.Addresses[0] = netip.MustParseAddr("::ffff:10.0.0.1") },
		"address with a zone":  func(r *Request) { r.Addresses[0] = netip.MustParseAddr("fe80::1%eth0") },
		"many addresses":       func(r *Request) { r.Addresses = make([]netip.Addr, 100) },
		"no device":            func(r *Request) { r.Device = nil },
		"device without index": func(r *Request) { r.Device.Index = 0 },
		"bad MAC":              func(r *Request) { r.Device.PodMAC = "x" },
		"port 0":               func(r *Request) { r.Device.HostPorts[0].HostPort = 0 },
		"port 65536":           func(r *Request) { r.Device.HostPorts[0].ContainerPort = 65536 },
		"unknown protocol":     func(r *Request) { r.Device.HostPorts[0].Protocol = "icmp" },
		"bad host address":     func(r *Request) { r.Device.HostPorts[0].HostIP = "localhost" },
		"many ports":           func(r *Request) { r.Device.HostPorts = make([]PortMapping, 5000) },
	} {
		r := request()
		spoil(r)
		if _, err := (&Client{Path: path}).Ask(r, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Bytes that are not a request end their connection, and the next request is answered.
func TestHostileBytes(t *testing.T) {
	path := serve(t, func(*Request, *os.File) (*Answer, error) { return &Answer{MTU: 1}, nil })
	for _, bytes := range [][]byte{
		{}, {0}, binary.BigEndian.AppendUint32(nil, 1<<31), binary.BigEndian.AppendUint32(nil, 0), []byte("GET / HTTP/1.1\r\n\r\n"),
		append(binary.BigEndian.AppendUint32(nil, 3), "{x}"...), append(binary.BigEndian.AppendUint32(nil, 9), "{"...),
	} {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(bytes)
		conn.Close()
	}
	if answer, err := (&Client{Path: path}).Ask(request(), nil); err != nil || answer.MTU != 1 {
		t.Errorf("request after hostile bytes: %+v, %v", answer, err)
	}
}

// A device's name is derived from the attachment alone, is valid for the kernel, and is recognized.
func TestDevice(t *testing.T) {
	seen := map[string]Attachment{}
	for _, a := range []Attachment{
		{"pods", "c1", "eth0"}, {"pods", "c1", "eth1"}, {"pods", "c2", "eth0"}, {"others", "c1", "eth0"}, {"pod", "sc1", "eth0"}, {"pods", "c1e", "th0"},
	} {
		name := a.Device()
		if len(name) != 14 || !IsDevice(name) || name != a.Device() {
			t.Errorf("%+v has the device %q", a, name)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%+v and %+v both have %s", a, other, name)
		}
		seen[name] = a
		node, pod := a.MACs()
		if node[0]&3 != 2 || pod[0]&3 != 2 || node.String() == pod.String() {
			t.Errorf("%+v has the MACs %s and %s", a, node, pod)
		}
	}
	for _, name := range []string{"", "fl", "lo", "fl0123456789a", "fl0123456789abc", "fl0123456789aB", "fx0123456789ab", "fl0123456789a/"} {
		if IsDevice(name) {
			t.Errorf("IsDevice(%q) = true", name)
		}
	}
}
