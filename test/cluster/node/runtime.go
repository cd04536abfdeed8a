package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// AskRuntime asks a container runtime for its version, as a kubelet does when it starts. The runtime
// listens, and answers other questions, some tenths of a second before it answers this one. A kubelet
// that is too early ends.
func AskRuntime(ctx context.Context, socket string) error {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		Protocols: new(http.Protocols),
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	// A call of gRPC whose argument, a message without fields, has no bytes: not compressed, length 0.
	call, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://runtime/runtime.v1.RuntimeService/Version", strings.NewReader("\x00\x00\x00\x00\x00"))
	if err != nil {
		return err
	}
	call.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
	answer, err := transport.RoundTrip(call)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body) // the trailers come after it
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return err
	}
	// A call that fails at once has its status in the header.
	for _, from := range []http.Header{answer.Trailer, answer.Header} {
		if status := from.Get("Grpc-Status"); status == "0" {
			return nil
		} else if status != "" {
			return fmt.Errorf("container runtime: status %s: %s", status, from.Get("Grpc-Message"))
		}
	}
	return fmt.Errorf("container runtime: %s without a status of gRPC", answer.Status)
}
