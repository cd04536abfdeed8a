package programs

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fairlead.io/fairlead/test/rig"
)

// content returns what a name such as 3-4096 stands for: so many bytes, drawn from that seed.
func content(name string) ([]byte, error) {
	if drawn, ok := contents.Load(name); ok {
		return drawn.([]byte), nil
	}
	seed, size, ok := strings.Cut(name, "-")
	if !ok {
		return nil, fmt.Errorf("%q is no name of a content", name)
	}
	n, err := strconv.Atoi(size)
	if err != nil || n < 0 || n > 16<<20 {
		return nil, fmt.Errorf("%q is no name of a content", name)
	}
	drawn := make([]byte, n)
	_, err = rand.NewChaCha8(sha256.Sum256([]byte(seed))).Read(drawn)
	contents.Store(name, drawn)
	return drawn, err
}

// contents caches what content has drawn.
var contents sync.Map

// seeds is how many contents there are of each size.
const seeds = 4

// serveMain serves contents by HTTP/1 and HTTP/2, and answers with the checksum of what it was
// sent.
func serveMain(args []string) int {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := http.Server{Protocols: &protocols, Handler: http.HandlerFunc(serve)}
	fmt.Println(hosted(args[0], server.Serve))
	return 1
}

// hosted serves at an address until standard input ends, which is when the parent is gone.
func hosted(addr string, serve func(net.Listener) error) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return serve(listener)
}

func serve(w http.ResponseWriter, r *http.Request) {
	got := sha256.New()
	if _, err := io.Copy(got, r.Body); err != nil {
		return // a client that sent less than it announced sees that there is no answer
	}
	body, err := content(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("X-Got", fmt.Sprintf("%x", got.Sum(nil)))
	_, _ = w.Write(body) // likewise
}

// order is what a client is to request.
type order struct {
	Long     time.Duration // either for so long,
	Requests int           // or so many requests of each stream
	Sizes    []int         // of what is requested
	Sends    []int         // of what is sent along; none if empty
	Closing  int           // connections are closed after so many requests; 0: they stay
}

// answer is the result of an order.
type answer struct {
	Requests, Failed int
	Sent, Got        int64 // bytes on all connections since the client began
	Faults           []string
}

// client is a process that sends HTTP requests.
type client struct {
	w *threePods
	*rig.Process
}

// client starts a client: the version of HTTP, the number of connections, and of concurrent
// requests on each.
func (w *threePods) client(pod int, base string, version, connections, streams int) *client {
	w.T.Helper()
	args := []string{base, strconv.Itoa(version), strconv.Itoa(connections), strconv.Itoa(streams)}
	return &client{w, rig.NewChild(w.T, w.cgroup, w.pods[pod], "fetch", args...)}
}

func (c *client) begin(o order) {
	c.w.T.Helper()
	c.w.Must(json.NewEncoder(c.Stdin).Encode(o))
}

// done waits for the end of the order that begin sent.
func (c *client) done() (a answer) {
	c.w.T.Helper()
	line, err := c.ReadLine()
	c.w.Must(err)
	if err := json.Unmarshal([]byte(line), &a); err != nil {
		c.w.T.Fatalf("the client says %q", line)
	}
	for _, fault := range a.Faults {
		c.w.T.Error(fault)
	}
	return a
}

func (c *client) fetch(o order) answer {
	c.w.T.Helper()
	c.begin(o)
	return c.done()
}

// end has the client close its connections and exit.
func (c *client) end() {
	c.w.T.Helper()
	c.w.Must(c.Stdin.Close())
	c.w.Must(c.Wait())
}

// asker sends requests over some connections.
type asker struct {
	base       string
	sent, got  atomic.Int64
	transports []*http.Transport
	streams    int

	mu sync.Mutex
	answer
}

// counted is a connection that counts its bytes.
type counted struct {
	net.Conn
	a *asker
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.a.got.Add(int64(n))
	return n, err
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.a.sent.Add(int64(n))
	return n, err
}

func fetchMain(args []string) int {
	var numbers [3]int
	for i := range numbers {
		numbers[i], _ = strconv.Atoi(args[1+i]) // with zero, nothing is requested
	}
	a := &asker{base: args[0], streams: numbers[2]}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return counted{conn, a}, err
	}
	for range numbers[1] {
		var protocols http.Protocols
		protocols.SetHTTP1(numbers[0] == 1)
		protocols.SetUnencryptedHTTP2(numbers[0] == 2)
		a.transports = append(a.transports, &http.Transport{DialContext: dial, Protocols: &protocols, DisableCompression: true, MaxIdleConnsPerHost: numbers[2]})
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			fmt.Println(err)
			return 1
		}
		if err := json.NewEncoder(os.Stdout).Encode(a.fetch(o)); err != nil {
			return 1
		}
	}
	for _, transport := range a.transports {
		transport.CloseIdleConnections()
	}
	return 0
}

func (a *asker) fetch(o order) answer {
	a.answer = answer{}
	end := time.Now().Add(o.Long)
	var group sync.WaitGroup
	for i, transport := range a.transports {
		for j := range a.streams {
			random := rand.New(rand.NewPCG(uint64(i), uint64(j)))
			group.Go(func() {
				for n := 0; n < o.Requests || o.Requests == 0 && time.Now().Before(end); n++ {
					err := a.ask(transport, o, random)
					a.note(err)
					if o.Closing > 0 && n%o.Closing == o.Closing-1 {
						transport.CloseIdleConnections()
					}
				}
			})
		}
	}
	group.Wait()
	a.Sent, a.Got = a.sent.Load(), a.got.Load()
	return a.answer
}

func (a *asker) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Requests++
	if err != nil {
		if a.Failed++; len(a.Faults) < 5 {
			a.Faults = append(a.Faults, err.Error())
		}
	}
}

// ask requests a content, and checks each byte of it.
func (a *asker) ask(transport *http.Transport, o order, random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	method, sent := http.MethodGet, []byte(nil)
	if len(o.Sends) > 0 {
		method = http.MethodPost
		var err error
		if sent, err = content(name(o.Sends, random)); err != nil {
			return err
		}
	}
	asked := name(o.Sizes, random)
	want, err := content(asked)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, a.base+"/"+asked, bytes.NewReader(sent))
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", asked, err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w after %d bytes", asked, err, len(got))
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("ask for %s: %s: %.100s", asked, response.Status, got)
	case sha256.Sum256(got) != sha256.Sum256(want):
		return fmt.Errorf("%s has %d wrong bytes", asked, len(got))
	case sent != nil && response.Header.Get("X-Got") != fmt.Sprintf("%x", sha256.Sum256(sent)):
		return errors.New("something else arrived than what was sent")
	}
	return nil
}

func name(sizes []int, random *rand.Rand) string {
	return fmt.Sprintf("%d-%d", random.IntN(seeds), sizes[random.IntN(len(sizes))])
}
