package health

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func config(address string) ServerConfig {
	return ServerConfig{
		Option: "healthz-address", Address: address, Log: slog.New(slog.DiscardHandler), retry: time.Millisecond,
		Routes: map[string]http.Handler{"/proxyMode": Text("fairlead")},
	}
}

// run runs a Server until the test ends.
func run(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// until waits for a state that another goroutine brings about.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in 10 s: %s", what)
		}
	}
}

func listening(t *testing.T, s *Server) string {
	t.Helper()
	run(t, s)
	until(t, "listening", func() bool { return s.Addr() != nil })
	return s.Addr().String()
}

// say sends raw bytes and returns the status and body of the answer.
func say(t *testing.T, address, text string) (int, string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() { _, _ = io.WriteString(conn, text) }()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("no answer to %.60q: %v", text, err)
	}
	defer response.Body.Close()
	raw := fmt.Sprint(response.Header)
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, raw + string(body)
}

func TestRequests(t *testing.T) {
	address := listening(t, NewServer(config("127.0.0.1:0")))
	const rest = " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	tests := []struct {
		text string
		code int
	}{
		{"GET /proxyMode" + rest, 200},
		{"GET /proxyMode?needle=needle" + rest, 200},
		{"GET /needle" + rest, 404},
		{"GET //proxyMode/../needle" + rest, 404},
		{"GET /debug/pprof/?needle" + rest, 404},
		{"POST /proxyMode" + rest, 405},
		{"NEEDLE /proxyMode" + rest, 405},
		{"OPTIONS *" + rest, 404},
		{"GET /proxyMode HTTP/1.1\r\nHost: x\r\nneedle: " + strings.Repeat("needle", 10_000) + "\r\n\r\n", 431},
		{"needle\r\n\r\n", 400},
	}
	for _, tt := range tests {
		code, said := say(t, address, tt.text)
		if code != tt.code {
			t.Errorf("%.60q: %d, want %d", tt.text, code, tt.code)
		}
		if strings.Contains(strings.ToLower(said), "needle") {
			t.Errorf("%.60q: the answer repeats what was asked: %s", tt.text, said)
		}
	}
	if _, said := say(t, address, "GET /proxyMode"+rest); !strings.HasSuffix(said, "fairlead") {
		t.Errorf("/proxyMode says %q", said)
	}
}

// TestTakenAddress checks that while another process uses the port, only the answers are missing;
// they come once the port is free.
func TestTakenAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := NewServer(config(taken.Addr().String()))
	run(t, s)
	until(t, "a fault", func() bool { return s.Fault() != "" })
	for _, want := range []string{taken.Addr().String(), "in use", "--healthz-address", "kube-proxy"} {
		if !strings.Contains(s.Fault(), want) {
			t.Errorf("%q does not say %q", s.Fault(), want)
		}
	}
	if s.Addr() != nil {
		t.Errorf("listens at %v all the same", s.Addr())
	}
	taken.Close()
	until(t, "the fault is over", func() bool { return s.Fault() == "" && s.Addr() != nil })
	if code, _ := say(t, s.Addr().String(), "GET /proxyMode HTTP/1.0\r\n\r\n"); code != 200 {
		t.Errorf("answers %d", code)
	}
}
