package upkeep

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	// pace is the pause between two requests of the same kind to the same target. It leaves the
	// machine time for what is tested.
	pace = 20 * time.Millisecond
	// patience is how long an answer may take on a busy machine: less than the time after which a
	// TCP client gives up, and longer than three retransmissions.
	patience = 15 * time.Second
	// complaints is how many errors are kept for each target.
	complaints = 5
)

// target is a destination of requests.
type target struct {
	Name    string
	Network string // tcp or udp
	Address string
}

// tally counts the results of the requests to a target since the previous tally.
type tally struct {
	Target   string
	Requests int // each over a new connection
	Held     int // over the connection that is kept open
	Failed   int
	Again    int // datagrams sent again, as TCP would do by itself
	Slowest  time.Duration
	Errors   []string
}

// String returns the tally as a line of text.
func (t tally) String() string {
	return fmt.Sprintf("%-28s %6d requests, %5d by a connection held, %d failed, %d datagrams sent again, slowest %v %s", t.Target, t.Requests, t.Held,
		t.Failed, t.Again, t.Slowest.Round(time.Millisecond), strings.Join(t.Errors, "; "))
}

// gauge collects the tally of a target.
type gauge struct {
	target
	mu  sync.Mutex
	now tally
}

func (g *gauge) note(held bool, began time.Time, c *conversation, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c != nil {
		g.now.Again += c.again
		c.again = 0
	}
	if held {
		g.now.Held++
	} else {
		g.now.Requests++
	}
	g.now.Slowest = max(g.now.Slowest, time.Since(began))
	if err == nil {
		return
	}
	g.now.Failed++
	if len(g.now.Errors) < complaints {
		g.now.Errors = append(g.now.Errors, began.Format("15:04:05.000 ")+err.Error())
	}
}

// take returns the tally and starts a new one.
func (g *gauge) take() tally {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now
	now.Target, g.now = g.Name, tally{}
	return now
}

// sendRequests sends requests to targets, given as JSON, until its input ends. It prints "ready"
// once every target has answered, and then the tallies for each line that it reads.
func sendRequests(args []string) int {
	var targets []target
	if err := json.Unmarshal([]byte(args[0]), &targets); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var gauges []*gauge
	for _, t := range targets {
		g := &gauge{target: t}
		if err := g.begin(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		gauges = append(gauges, g)
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var all []tally
		for _, g := range gauges {
			all = append(all, g.take())
		}
		if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
			return 1
		}
	}
	return 0
}

// begin waits until the target answers, and starts sending requests.
func (g *gauge) begin() error {
	var held *conversation
	for deadline := time.Now().Add(time.Minute); held == nil; time.Sleep(pace) {
		var err error
		if held, err = dial(g.target); err == nil {
			err = held.ask(false)
		}
		if err != nil && time.Now().After(deadline) {
			return fmt.Errorf("%s at %s does not answer: %w", g.Name, g.Address, err)
		}
		if err != nil {
			held = nil
		}
	}
	go g.hold(held)
	go g.request()
	return nil
}

// request sends requests forever, each over a new connection.
func (g *gauge) request() {
	for ; ; time.Sleep(pace) {
		began := time.Now()
		c, err := dial(g.target)
		if err == nil {
			err = errors.Join(c.ask(true), c.Close())
		}
		g.note(false, began, c, err)
	}
}

// hold sends requests forever over one connection, which it replaces when it fails.
func (g *gauge) hold(c *conversation) {
	for ; ; time.Sleep(5 * pace) {
		began := time.Now()
		if c == nil {
			var err error
			if c, err = dial(g.target); err != nil {
				g.note(true, began, nil, err)
				c = nil
				continue
			}
		}
		err := c.ask(false)
		g.note(true, began, c, err)
		if err != nil {
			c.Close()
			c = nil
		}
	}
}

// conversation is a connection to a server of agnhost's netexec.
type conversation struct {
	net.Conn
	in    *bufio.Reader
	udp   bool
	asked int // questions sent by datagram
	again int // datagrams sent again
}

func dial(t target) (*conversation, error) {
	conn, err := net.DialTimeout(t.Network, t.Address, patience)
	if err != nil {
		return nil, err
	}
	return &conversation{Conn: conn, in: bufio.NewReader(conn), udp: t.Network == "udp"}, nil
}

// ask asks the server for its host name. The server may close the connection only after the last
// question.
func (c *conversation) ask(last bool) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if c.udp {
		return c.askByDatagram()
	}
	question := "GET /hostname HTTP/1.1\r\nHost: echo\r\n"
	if last {
		question += "Connection: close\r\n"
	}
	if _, err := io.WriteString(c, question+"\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	name, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || len(name) == 0) {
		err = fmt.Errorf("answered %s: %q", answer.Status, name)
	}
	return err
}

// askByDatagram sends a datagram, and sends it again after a second without an answer, which is how
// long TCP waits for one: on a busy machine a single datagram may be lost, whereas a broken flow
// stays broken. Every question is different, so a late answer is not taken for the current one.
func (c *conversation) askByDatagram() error {
	c.asked++
	question, answer := fmt.Sprintf("echo %d", c.asked), make([]byte, 512)
	for began, left := time.Now(), patience; left > 0; left = patience - time.Since(began) {
		if _, err := io.WriteString(c, question); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(min(time.Second, left))); err != nil {
			return err
		}
		for {
			n, err := c.Read(answer)
			if err == nil && "echo "+string(bytes.TrimSpace(answer[:n])) == question {
				return nil
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return err
			}
		}
		c.again++
	}
	return fmt.Errorf("no answer to %d datagrams from %s", c.again, c.LocalAddr())
}
