package health

import (
	"bufio"
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Whatever a stranger asks, the answer is one of a few that do not depend on what was asked, so that
// nothing of a request comes back.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "GET /readyz?verbose HTTP/1.0\r\n\r\n", "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://a/proxyMode?%zz=;; HTTP/1.1\r\nHost: b\r\n\r\n", "HEAD //healthz/../livez HTTP/1.1\r\nHost:\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	healthy := &node{updated: time.Unix(1, 0).UTC()}
	proxy := healthy.proxy(time.Unix(2, 0).UTC())
	all := routes{
		"/proxyMode": Text("fairlead"), "/healthz": proxy.Health(), "/livez": proxy.Live(),
		"/readyz": Ready([]Check{{"maps", func() error { return nil }}, {"sync", func() error { return errors.New("not yet") }}}),
	}
	const state = `{"lastUpdated":"1970-01-01T00:00:02Z","currentTime":"1970-01-01T00:00:02Z"`

	answers := []string{
		"200 fairlead", "200 " + state + `,"nodeEligible":true,"healthy":true}`, "200 " + state + `,"healthy":true}`,
		"503 [+]maps ok\n[-]sync failed: not yet\nreadyz check failed\n", "404 not found\n", "405 method not allowed\n",
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		request, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			return
		}
		recorder := httptest.NewRecorder()
		all.ServeHTTP(recorder, request)
		if answer := strconv.Itoa(recorder.Code) + " " + recorder.Body.String(); !slices.Contains(answers, answer) {
			t.Errorf("%q is answered %q", raw, answer)
		}
		for name := range recorder.Header() {
			if !slices.Contains([]string{"Content-Type", "X-Content-Type-Options", "Allow"}, name) {
				t.Errorf("%q is answered with a header %q", raw, name)
			}
		}
	})
}
