package programs

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// TestHTTP speaks HTTP/1 and HTTP/2 between two pods without a proxy.
func TestHTTP(t *testing.T) {
	if !*all {
		t.Skip("-all runs it")
	}
	for _, version := range []int{1, 2} {
		t.Run(strconv.Itoa(version), func(t *testing.T) {
			w := newThreePods(t)
			w.as(there, root, "serve", fmt.Sprintf(":%d", app))
			w.listens(there, app)
			c := w.client(here, fmt.Sprintf("http://%s:%d", address(there, false), app), version, 4, []int{1, 8}[version-1])
			c.begin(order{Long: *load, Sizes: mixed, Sends: []int{10, 2000, 20_000}, Closing: 500})
			w.disturb(*load)
			a := c.done()
			// With many streams at once, most frames follow one another in the same direction. And the
			// server gets few of them past TCP, since it asks for just as many bytes as there are.
			w.wantRequests(fmt.Sprintf("HTTP/%d", version), a.Requests, a.Failed, expectation{share: []float64{0.5, 0.05}[version-1], each: 1})
			w.gone()
		})
	}
}

// TestRPC speaks gRPC, by unary calls and by streams.
func TestRPC(t *testing.T) {
	if !*all {
		t.Skip("-all runs it")
	}
	w := newThreePods(t)
	dir := w.directory(root)
	build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "rpc"), ".")
	build.Dir = "rpc"
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build it: %v\n%s", err, out)
	}
	path := filepath.Join(mounted, "rpc")
	w.startIn(dir, there, nobody, path, "serve", fmt.Sprintf(":%d", app))
	w.listens(there, app)
	asks := w.startIn(dir, here, nobody, path, "ask", fmt.Sprintf("[%s]:%d", address(there, true), app), "4", "4", load.String())
	w.disturb(*load)
	said := asks.ended()
	var a answer
	if err := json.Unmarshal([]byte(said), &a); err != nil {
		t.Fatalf("the client says:\n%s", said)
	}
	for _, fault := range a.Faults {
		t.Error(fault)
	}
	w.wantRequests("gRPC", a.Requests, a.Failed, expectation{share: 0.4, each: 1})
	w.gone()
}
