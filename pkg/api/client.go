package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
)

const (
	maxAnswer     = 64 << 20
	clientTimeout = 10 * time.Second
	verifyTimeout = 90 * time.Second // checking a large node may take long if it is busy
)

// UnreachableError is the error of a Client when no agent answers. Its text says what to do.
type UnreachableError struct {
	Path string // the socket
	Err  error
}

// Error returns one sentence.
func (e *UnreachableError) Error() string {
	switch {
	case errors.Is(e.Err, ErrEnded):
		return fmt.Sprintf("the agent at %s sends no more events (%v): run the command again once an agent runs",
			e.Path, e.Err)
	case errors.Is(e.Err, fs.ErrPermission):
		return fmt.Sprintf("no access to the agent at %s: run the command as root", e.Path)
	case errors.Is(e.Err, fs.ErrNotExist), errors.Is(e.Err, unix.ECONNREFUSED):
		return fmt.Sprintf("no agent answers at %s: is it running on this node, or is --state-dir another path?", e.Path)
	}
	return fmt.Sprintf("the agent at %s does not answer (%v): look at its log, or restart it", e.Path, e.Err)
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Client talks to the agent that listens at one socket.
type Client struct {
	path string
	http *http.Client
}

// NewClient returns a Client for the socket at path. It connects with each request.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &Client{path: path, http: &http.Client{
		Timeout:   clientTimeout,
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
	}}
}

// Status returns the agent's status.
func (c *Client) Status(ctx context.Context) (observe.Status, error) {
	var status observe.Status
	err := c.do(ctx, http.MethodGet, "/v1/status", nil, &status)
	return status, err
}

// Config returns the options that the agent runs with.
func (c *Client) Config(ctx context.Context) ([]config.Origin, error) {
	var origins []config.Origin
	err := c.do(ctx, http.MethodGet, "/v1/config", nil, &origins)
	return origins, err
}

// Problems returns the problems that the agent found in objects.
func (c *Client) Problems(ctx context.Context) ([]model.ObjectProblem, error) {
	var problems []model.ObjectProblem
	err := c.do(ctx, http.MethodGet, "/v1/problems", nil, &problems)
	return problems, err
}

// LogLevel returns the agent's log level.
func (c *Client) LogLevel(ctx context.Context) (string, error) {
	var got level
	err := c.do(ctx, http.MethodGet, "/v1/log-level", nil, &got)
	return got.Level, err
}

// SetLogLevel sets the agent's log level until it restarts.
func (c *Client) SetLogLevel(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodPut, "/v1/log-level", level{name}, &level{})
}

// Verify makes the agent compare its maps with what they should contain and, if repair is true, fix
// what differs.
func (c *Client) Verify(ctx context.Context, repair bool) (observe.Verification, error) {
	method := http.MethodGet
	if repair {
		method = http.MethodPost
	}
	patient := *c
	patient.http = &http.Client{Timeout: verifyTimeout, Transport: c.http.Transport}
	var found observe.Verification
	err := patient.do(ctx, method, "/v1/verify", nil, &found)
	return found, err
}

func (c *Client) do(ctx context.Context, method, path string, send, receive any) error {
	var body io.Reader
	if send != nil {
		text, err := json.Marshal(send)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	answer, err := c.send(request)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, receive); err != nil {
		return fmt.Errorf("read the agent's answer to %s: %w", path, err)
	}
	return nil
}

// send sends a request and returns the body of the answer.
func (c *Client) send(request *http.Request) ([]byte, error) {
	response, err := c.http.Do(request)
	if err != nil {
		return nil, &UnreachableError{Path: c.path, Err: cause(err)}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, &UnreachableError{Path: c.path, Err: cause(err)}
	}
	if response.StatusCode != http.StatusOK {
		return nil, refusal(response.StatusCode, text)
	}
	return text, nil
}

// cause strips what net/http wraps around an error, because the URL in it is made up and would only
// confuse.
func cause(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return os.ErrDeadlineExceeded
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

func refusal(code int, text []byte) error {
	var said failure
	if json.Unmarshal(text, &said) == nil && said.Error != "" {
		return fmt.Errorf("the agent refused: %s", said.Error)
	}
	return fmt.Errorf("the agent answered with status %d: does it run another version?", code)
}

// Alive reports whether an agent holds the socket at path, even one that does not answer.
func Alive(path string) (bool, error) {
	file, err := os.Open(path + lockSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for an agent: %w", err)
	}
	defer file.Close()
	// F_OFD_GETLK only asks. Trying to take the lock could make an agent fail that starts now.
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("look for an agent: ask for the lock: %w", err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// Goroutines returns the stacks of the agent's goroutines, as its profiler prints them.
func (c *Client) Goroutines(ctx context.Context) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/debug/pprof/goroutine?debug=2", nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	return c.send(request)
}
