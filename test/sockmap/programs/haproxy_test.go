package programs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestHAProxy has a HAProxy between two pods, which forwards bytes or parses HTTP. The agent leaves
// it to TCP unless told that it does not splice, because it would never get data that waits when it
// begins to splice.
func TestHAProxy(t *testing.T) {
	if !*all {
		t.Skip("-all runs it")
	}
	for _, mode := range []string{"http", "tcp"} {
		for _, c := range []struct {
			name, options string
			except        []string
			want          expectation
		}{
			{"never", "", nil, expectation{share: 0.25, each: 2}}, // a large body is a stream
			{"unknown", "", usual(), expectation{none: true, excluded: []string{"program"}}},
			{"auto", "option splice-auto", usual(), expectation{none: true, excluded: []string{"program"}}},
			// A program that reads by nothing but splice is not even found.
			{"always", "option splice-request\n\toption splice-response", usual(), expectation{none: true, may: []string{"program", "splice"}}},
		} {
			t.Run(mode+",splice="+c.name, func(t *testing.T) {
				w := newThreePodsExcept(t, c.except...)
				w.as(there, root, "serve", fmt.Sprintf(":%d", app))
				w.listens(there, app)
				config := filepath.Join(w.directory(nobody), "haproxy.cfg")
				w.Must(os.WriteFile(config, fmt.Appendf(nil, haproxyConfig, c.options, mode, app, address(there, false), app), 0o644))
				w.start(between, nobody, "haproxy", "-db", "-f", config)
				w.listens(between, app)
				client := w.client(here, fmt.Sprintf("http://%s:%d", address(between, false), app), 1, 8, 1)
				client.begin(order{Long: *load, Sizes: mixed, Sends: []int{10, 2000, 20_000}})
				w.disturb(*load)
				a := client.done()
				w.wantRequests("HAProxy, "+mode+", splice "+c.name, a.Requests, a.Failed, c.want)
				w.gone()
			})
		}
	}
}

// mixed are sizes of which few are so large that they are streams.
var mixed = []int{1, 300, 300, 1000, 1000, 5000, 5000, 5000, 20_000, 60_000, 1 << 20}

const haproxyConfig = `
global
	maxconn 1000
	nbthread 2
defaults
	timeout connect 10s
	timeout client 60s
	timeout server 60s
	%s
	mode %s
frontend in
	bind :%d
	default_backend out
backend out
	http-reuse always
	server one %s:%d
`
