package programs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestNginx has nginx serve files to wrk and to a client that checks each byte, and proxy requests
// to another pod. The agent leaves nginx to TCP from the start unless told otherwise, because as a
// proxy it asks how much there is to read, and waits forever if the kernel does not know.
func TestNginx(t *testing.T) {
	if !*all {
		t.Skip("-all runs it")
	}
	sizes := []int{100, 4096, 30_000, 300_000}
	for _, c := range []struct {
		name, sendfile string
		except         []string
		want           expectation
	}{
		// It waits to be told of more after a read that returned less than it might.
		{"serves", "off", nil, expectation{excluded: []string{"edge"}}},
		{"sends files", "on", nil, expectation{excluded: []string{"edge"}}},
		{"unknown", "on", usual(), expectation{none: true, excluded: []string{"program"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newThreePodsExcept(t, c.except...)
			w.nginx(c.sendfile, sizes)
			base := fmt.Sprintf("http://%s:%d", address(between, false), app)
			wrk := w.start(here, nobody, "wrk", "-t2", "-c16", fmt.Sprintf("-d%ds", int(load.Seconds())), base+"/0-100")
			client := w.client(here, base, 1, 4, 1)
			client.begin(order{Long: *load, Sizes: sizes, Closing: 100})
			w.disturb(*load)
			a := client.done()
			requests, failed := wrkSays(t, wrk.ended())
			w.wantRequests("nginx and wrk, "+c.name, a.Requests+requests, a.Failed+failed, c.want)
			w.gone()
		})
	}
	t.Run("proxy", func(t *testing.T) {
		w := newThreePods(t)
		w.nginx("off", nil)
		w.as(there, root, "serve", fmt.Sprintf(":%d", app))
		w.listens(there, app)
		c := w.client(here, fmt.Sprintf("http://[%s]:%d", address(between, true), app+1), 1, 8, 1)
		c.begin(order{Long: *load, Sizes: mixed, Sends: []int{10, 2000, 20_000}})
		w.disturb(*load)
		a := c.done()
		w.wantRequests("nginx as a proxy", a.Requests, a.Failed, expectation{none: true, excluded: []string{"program"}})
		w.gone()
	})
}

// nginx starts nginx, which serves contents of these sizes at one port and proxies to another pod
// at the next.
func (w *threePods) nginx(sendfile string, sizes []int) {
	w.T.Helper()
	dir := w.directory(nobody)
	for _, size := range sizes {
		for seed := range seeds {
			name := fmt.Sprintf("%d-%d", seed, size)
			file, err := content(name)
			w.Must(err)
			w.Must(os.WriteFile(filepath.Join(dir, name), file, 0o644))
		}
	}
	config := filepath.Join(dir, "nginx.conf")
	w.Must(os.WriteFile(config, []byte(strings.NewReplacer("DIR", dir, "SENDFILE", sendfile, "APP", strconv.Itoa(app), "NEXT", strconv.Itoa(app+1),
		"THERE", fmt.Sprintf("%s:%d", address(there, false), app)).Replace(nginxConfig)), 0o644))
	w.start(between, nobody, "nginx", "-e", "stderr", "-c", config)
	w.listens(between, app)
}

const nginxConfig = `
daemon off;
worker_processes 2;
pid DIR/pid;
error_log stderr;
events { worker_connections 1024; }
http {
	access_log off;
	sendfile SENDFILE;
	tcp_nopush SENDFILE;
	keepalive_requests 1000000;
	client_body_temp_path DIR/client;
	proxy_temp_path DIR/proxy;
	fastcgi_temp_path DIR/fastcgi;
	uwsgi_temp_path DIR/uwsgi;
	scgi_temp_path DIR/scgi;
	upstream other {
		server THERE;
		keepalive 16;
	}
	server {
		listen APP;
		listen [::]:APP;
		root DIR;
	}
	server {
		listen NEXT;
		listen [::]:NEXT;
		location / {
			proxy_pass http://other;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
		}
	}
}
`

// wrkSays returns how many requests wrk sent, and how many of them failed.
func wrkSays(t *testing.T, said string) (requests, failed int) {
	t.Helper()
	count := func(form string) (n int) {
		for _, found := range regexp.MustCompile(form).FindAllStringSubmatch(said, -1) {
			for _, number := range found[1:] {
				one, err := strconv.Atoi(number)
				if err != nil {
					t.Fatal(err)
				}
				n += one
			}
		}
		return n
	}
	requests = count(`(\d+) requests in`)
	failed = count(`Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)`) + count(`Non-2xx or 3xx responses: (\d+)`)
	if requests == 0 || failed > 0 {
		t.Errorf("wrk says:\n%s", said)
	}
	return requests, failed
}
