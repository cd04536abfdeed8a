package node

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// serveRuntime answers calls on a socket as a container runtime does, and returns the socket's path.
func serveRuntime(t *testing.T, answer func(http.Header)) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "runtime.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "\x00\x00\x00\x00\x00" || r.URL.Path != "/runtime.v1.RuntimeService/Version" || r.Header.Get("Content-Type") != "application/grpc" {
			t.Errorf("asked %s %q with %v, %v", r.URL, body, r.Header, err)
		}
		w.Header().Set("Content-Type", "application/grpc")
		answer(w.Header())
	})}
	server.Protocols.SetUnencryptedHTTP2(true)
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return socket
}

func TestAskRuntime(t *testing.T) {
	ready := serveRuntime(t, func(h http.Header) { h.Set(http.TrailerPrefix+"Grpc-Status", "0") })
	if err := AskRuntime(t.Context(), ready); err != nil {
		t.Error(err)
	}
	for name, socket := range map[string]string{
		"not initialized yet": serveRuntime(t, func(h http.Header) {
			h.Set("Grpc-Status", "2")
			h.Set("Grpc-Message", "server is not initialized yet")
		}),
		"status 13":        serveRuntime(t, func(h http.Header) { h.Set(http.TrailerPrefix+"Grpc-Status", "13") }),
		"without a status": serveRuntime(t, func(http.Header) {}),
		"no such file":     filepath.Join(t.TempDir(), "none"),
	} {
		if err := AskRuntime(t.Context(), socket); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
	}
}
