package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

const (
	// exchange is the time limit for one request and its answer.
	exchange = 20 * time.Second
	// again is the pause before asking an agent that may be restarting once more.
	again = 50 * time.Millisecond
)

// Client sends requests to the agent at a socket.
type Client struct {
	Path string
	// Patience is how long to wait for an agent that is away or not ready.
	Patience time.Duration
}

// Ask sends a request, with a file if there is one, and returns the answer. Its errors are those
// that the plugin prints. If the agent is still away or not ready when the client's patience ends,
// the error tells the runtime to try again later.
func (c *Client) Ask(request *Request, file *os.File) (*Answer, error) {
	deadline := time.Now().Add(c.Patience)
	for {
		answer, err := c.ask(request, file)
		if err == nil {
			return answer, nil
		}
		var refusal *types.Error
		away := !errors.As(err, &refusal)
		if away {
			refusal = types.NewError(types.ErrTryAgainLater, fmt.Sprintf("no agent of fairlead answers at %s", c.Path), err.Error())
		}
		if (away && !restarts(err)) || refusal.Code != types.ErrTryAgainLater || time.Now().Add(again).After(deadline) {
			return nil, refusal
		}
		time.Sleep(again)
	}
}

// restarts reports whether an error may come from an agent that is being replaced.
func restarts(err error) bool {
	for _, cause := range []error{fs.ErrNotExist, unix.ECONNREFUSED, unix.ECONNRESET, unix.EPIPE, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

func (c *Client) ask(request *Request, file *os.File) (*Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), exchange)
	defer cancel()
	dialed, err := new(net.Dialer).DialContext(ctx, "unix", c.Path)
	if err != nil {
		return nil, err
	}
	defer dialed.Close()
	conn := dialed.(*net.UnixConn)
	if err := conn.SetDeadline(time.Now().Add(exchange)); err != nil {
		return nil, err
	}
	if err := send(conn, request, file); err != nil {
		return nil, err
	}
	answer := &Answer{}
	extra, err := receive(conn, answer)
	if err != nil {
		return nil, err
	}
	if extra != nil {
		extra.Close()
	}
	if answer.Error != nil {
		return nil, answer.Error
	}
	return answer, nil
}
