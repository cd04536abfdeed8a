package health

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.io/fairlead/test/rig"
)

// balancer is Services on this machine's loopback, and a load balancer that asks them.
type balancer struct {
	*Services
	ill    atomic.Bool
	faults chan string
}

func newBalancer(t *testing.T) *balancer {
	t.Helper()
	b := &balancer{faults: make(chan string, 100)}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	b.Services = NewServices(ServicesConfig{
		Healthy: func() bool { return !b.ill.Load() }, Count: func(int) {}, Log: slog.New(slog.DiscardHandler),
		Start: func(run func(context.Context)) { running.Go(func() { run(ctx) }) },
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return b
}

func (b *balancer) set(name string, checks ...ServiceCheck) {
	b.Set("shop", name, checks, func(fault string) { b.faults <- fault })
}

// ask returns the code, weight and body of the answer, or 0 if nobody listens.
func ask(t *testing.T, host string, port uint16) (int, string, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	answer, err := client.Get(fmt.Sprintf("http://%s/whatever", net.JoinHostPort(host, fmt.Sprint(port))))
	if err != nil {
		return 0, "", ""
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, answer.Header.Get("X-Load-Balancing-Endpoint-Weight"), string(body)
}

// freePorts returns ports at which nobody listens.
func freePorts(t *testing.T, n int) []uint16 {
	t.Helper()
	var ports []uint16
	for range n {
		l, err := net.Listen("tcp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, uint16(l.Addr().(*net.TCPAddr).Port))
	}
	return ports
}

func (b *balancer) becomes(t *testing.T, port uint16, want int) {
	t.Helper()
	until(t, fmt.Sprintf("port %d answers %d", port, want), func() bool {
		code, _, _ := ask(t, "127.0.0.1", port)
		return code == want
	})
}

func TestServices(t *testing.T) {
	b, port := newBalancer(t), freePorts(t, 1)[0]
	b.set("web", ServiceCheck{"tcp4", port, 2})
	b.becomes(t, port, 200)
	code, weight, body := ask(t, "127.0.0.1", port)
	// This is what kube-proxy 1.36 answers.
	want := "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"
	if code != 200 || weight != "2" || body != want {
		t.Errorf("%d, weight %s:\n%s\nwant:\n%s", code, weight, body, want)
	}

	// The count changes while the port stays open.
	b.set("web", ServiceCheck{"tcp4", port, 0})
	if code, weight, body := ask(t, "127.0.0.1", port); code != 503 || weight != "0" || !strings.Contains(body, `"localEndpoints": 0`) {
		t.Errorf("without endpoints: %d, weight %s:\n%s", code, weight, body)
	}
	b.set("web", ServiceCheck{"tcp4", port, 1})
	b.ill.Store(true)
	if code, _, body := ask(t, "127.0.0.1", port); code != 503 || !strings.Contains(body, `"serviceProxyHealthy": false`) {
		t.Errorf("on a node that does not serve: %d:\n%s", code, body)
	}
	b.ill.Store(false)
	b.set("web")
	b.becomes(t, port, 0)
}

// TestServicePortMoves checks that a Service may change its port, and another Service may get the
// old one.
func TestServicePortMoves(t *testing.T) {
	b, ports := newBalancer(t), freePorts(t, 2)
	b.set("web", ServiceCheck{"tcp4", ports[0], 1})
	b.becomes(t, ports[0], 200)
	b.set("web", ServiceCheck{"tcp4", ports[1], 1})
	b.set("db", ServiceCheck{"tcp4", ports[0], 0})
	b.becomes(t, ports[1], 200)
	b.becomes(t, ports[0], 503)
}

// TestServiceFamilies checks that each family has its own endpoints, and a port in one family is
// not open in the other.
func TestServiceFamilies(t *testing.T) {
	if l, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		rig.Lacking(t, "ipv6", "this machine has no IPv6 on its loopback")
	} else {
		l.Close()
	}
	b, ports := newBalancer(t), freePorts(t, 2)
	b.set("web", ServiceCheck{"tcp4", ports[0], 1}, ServiceCheck{"tcp6", ports[0], 3})
	b.set("six", ServiceCheck{"tcp6", ports[1], 3})
	b.becomes(t, ports[0], 200)
	until(t, "both ports answer over IPv6", func() bool {
		a, _, _ := ask(t, "::1", ports[0])
		b, _, _ := ask(t, "::1", ports[1])
		return a == 200 && b == 200
	})
	_, four, _ := ask(t, "127.0.0.1", ports[0])
	_, six, _ := ask(t, "::1", ports[0])
	if none, _, _ := ask(t, "127.0.0.1", ports[1]); four != "1" || six != "3" || none != 0 {
		t.Errorf("weights %s and %s, and %d where IPv4 has no port; want 1, 3 and 0", four, six, none)
	}
}

// TestServicePortTaken checks that a port that is in use is reported once, and opened when it is
// free.
func TestServicePortTaken(t *testing.T) {
	taken, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	b, port := newBalancer(t), uint16(taken.Addr().(*net.TCPAddr).Port)
	b.set("web", ServiceCheck{"tcp4", port, 1})
	if fault := <-b.faults; !strings.Contains(fault, "address already in use") || !strings.Contains(fault, "another healthCheckNodePort") {
		t.Errorf("told %q", fault)
	}
	taken.Close()
	b.becomes(t, port, 200)
	if len(b.faults) > 0 {
		t.Errorf("told again: %q", <-b.faults)
	}
}

// TestServicesHostile checks that hostile names are quoted, and a request that is nonsense gets an
// error at most.
func TestServicesHostile(t *testing.T) {
	b, port := newBalancer(t), freePorts(t, 1)[0]
	b.Set("shop\"", "<b>", []ServiceCheck{{"tcp4", port, 1}}, func(string) {})
	b.becomes(t, port, 200)
	_, _, body := ask(t, "127.0.0.1", port)
	if !strings.Contains(body, `"shop\""`) {
		t.Errorf("the name is not quoted:\n%s", body)
	}
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(bytes.Repeat([]byte("x"), 64<<10)); err != nil {
		t.Logf("cut off while sending: %v", err)
	}
	if answer, _ := io.ReadAll(conn); !bytes.HasPrefix(answer, []byte("HTTP/1.1 4")) && len(answer) > 0 {
		t.Errorf("nonsense was answered with %q", answer)
	}
	b.becomes(t, port, 200)
}
