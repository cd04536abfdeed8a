package programs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A HAProxy between two pods. It reads and writes, and both its connections go past TCP, unless it may splice.
func TestHAProxy(t *testing.T) {
	if !*all {
		t.Skip("-all runs it")
	}
	for _, mode := range []string{"http", "tcp"} {
		for name, option := range map[string]string{"never": "", "auto": "option splice-auto", "always": "option splice-request\n\toption splice-response"} {
			t.Run(mode+",splice="+name, func(t *testing.T) {
				w := newWorld(t)
				w.as(there, root, "serve", fmt.Sprintf(":%d", app))
				w.listens(there, app)
				config := filepath.Join(w.directory(nobody), "haproxy.cfg")
				w.must(os.WriteFile(config, fmt.Appendf(nil, haproxyConfig, option, mode, app, address(there, false), app), 0o644))
				w.start(between, nobody, "haproxy", "-db", "-f", config)
				w.listens(between, app)
				c := w.client(here, fmt.Sprintf("http://%s:%d", address(between, false), app), 1, 8, 1)
				c.begin(order{Long: *load, Sizes: mixed, Sends: []int{10, 2000, 20_000}})
				w.disturb(*load)
				a := c.done()
				want := map[string]expectation{
					"never": {share: 0.25, each: 2},    // a large body is a stream
					"auto":  {may: []string{"splice"}}, // it splices what comes in quickly
					// In HTTP it splices bodies that it has not got with their head.
					"always": {excluded: []string{"splice"}, none: mode == "tcp"},
				}[name]
				w.judge("HAProxy, "+mode+", splice "+name, a.Requests, a.Failed, want)
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
