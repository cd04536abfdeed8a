package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"fairlead.io/fairlead/pkg/monitor"
)

// streamTimeout limits each write to a client, so that the agent does not wait for a stopped one.
const streamTimeout = 10 * time.Second

// maxRefusal limits how much of an error response a Client reads.
const maxRefusal = 64 << 10

// ErrEnded is wrapped by the error of a stream that the agent ended, or that ended with the agent.
var ErrEnded = errors.New("it has ended")

// Stream delivers events to one monitor.
type Stream interface {
	// Events is closed when no more events follow.
	Events() <-chan monitor.Event
	// End says why Events was closed.
	End() string
	// Close ends the stream.
	Close()
}

// monitor streams events, one JSON object a line, until the stream ends or the client goes away.
func (h Handlers) monitor(w http.ResponseWriter, r *http.Request) {
	filter, err := monitor.ParseFilter(r.URL.Query())
	if err != nil {
		answer(w, http.StatusBadRequest, failure{err.Error()})
		return
	}
	stream, err := h.Monitor(*filter)
	if err != nil {
		answer(w, http.StatusServiceUnavailable, failure{err.Error()})
		return
	}
	defer stream.Close()
	control := http.NewResponseController(w)
	// The server's read deadline is meant for the request, and would end the stream.
	if err := control.SetReadDeadline(time.Time{}); err != nil {
		answer(w, http.StatusInternalServerError, failure{"stream events: " + err.Error()})
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	send(r.Context(), control, json.NewEncoder(w), stream)
}

// send writes the stream's events, and flushes when no more are waiting.
func send(ctx context.Context, control *http.ResponseController, lines *json.Encoder, stream Stream) {
	for ended := false; !ended; {
		if control.SetWriteDeadline(time.Now().Add(streamTimeout)) != nil {
			return
		}
		if len(stream.Events()) == 0 && control.Flush() != nil {
			return
		}
		var event monitor.Event
		var more bool
		select {
		case <-ctx.Done():
			return
		case event, more = <-stream.Events():
		}
		if ended = !more; ended {
			event = monitor.Event{End: stream.End()}
		}
		if control.SetWriteDeadline(time.Now().Add(streamTimeout)) != nil || lines.Encode(&event) != nil {
			return
		}
	}
}

// Monitor calls started once the agent begins to stream, and then visit with each event. It returns
// nil when the context ends, and the error of started or visit if one fails.
func (c *Client) Monitor(ctx context.Context, filter *monitor.Filter, started func() error, visit func(*monitor.Event) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/v1/monitor?"+filter.Values().Encode(), nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	patient := &http.Client{Transport: c.http.Transport} // without the overall timeout of c.http
	response, err := patient.Do(request)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return &UnreachableError{Path: c.path, Err: cause(err)}
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
		if err != nil {
			return &UnreachableError{Path: c.path, Err: cause(err)}
		}
		return refusal(response.StatusCode, text)
	}
	if err := started(); err != nil {
		return err
	}
	return c.receive(ctx, json.NewDecoder(bufio.NewReader(response.Body)), visit)
}

func (c *Client) receive(ctx context.Context, lines *json.Decoder, visit func(*monitor.Event) error) error {
	for {
		var event monitor.Event
		err := lines.Decode(&event)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil: // also for a truncated line
			return &UnreachableError{Path: c.path, Err: fmt.Errorf("%w: %w", ErrEnded, err)}
		case event.End != "":
			return &UnreachableError{Path: c.path, Err: fmt.Errorf("%w: %s", ErrEnded, event.End)}
		}
		if err := visit(&event); err != nil {
			return err
		}
	}
}
