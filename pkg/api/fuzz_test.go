package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fairlead.io/fairlead/pkg/explain"
	"fairlead.io/fairlead/pkg/monitor"
)

// ended is a stream that has ended.
type ended struct{}

func (ended) Events() <-chan monitor.Event {
	c := make(chan monitor.Event)
	close(c)
	return c
}
func (ended) End() string { return "over" }
func (ended) Close()      {}

// Whatever a request says, its answer is JSON with a code that is not the agent's fault, what the
// handlers are asked is what the request says, and the log level stays one of four.
func FuzzRequests(f *testing.F) {
	for _, seed := range [][3]string{
		{"GET", "/v1/status", ""},
		{"PUT", "/v1/log-level", `{"level":"debug"}`},
		{"PUT", "/v1/log-level", `{"level":"debug","x":1}`},
		{"PUT", "/v1/log-level", `{"level":"` + strings.Repeat("x", maxBody) + `"}`},
		{"GET", "/v1/monitor?reason=ttl&addr=10.0.0.0/8&port=53&sample=3", ""},
		{"GET", "/v1/monitor?port=-1&sample=x&addr=%zz", ""},
		{"GET", "/v1/trial?source=10.0.0.1:1&destination=[::1]:2&protocol=tcp&device=eth0", ""},
		{"POST", "/v1/verify", ""},
		{"DELETE", "/v1//../status", ""},
	} {
		f.Add(seed[0], seed[1], []byte(seed[2]))
	}
	f.Fuzz(func(t *testing.T, method, target string, body []byte) {
		if !strings.HasPrefix(target, "/v1/") {
			return // profiles take as long as they are asked to
		}
		at, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		request, err := http.NewRequest(method, target, bytes.NewReader(body))
		if err != nil {
			return
		}
		h := handlers()
		h.Monitor = func(filter monitor.Filter) (Stream, error) {
			again, err := monitor.ParseFilter(filter.Values())
			if diff := cmp.Diff(&filter, again, cmpopts.EquateComparable(filter.Addr), cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("filter sent on: %v %s", err, diff)
			}
			return ended{}, nil
		}
		h.Try = func(q explain.TrialQuestion) (explain.Trial, error) {
			if !q.Source.IsValid() || !q.Destination.IsValid() || q.Device != at.Query().Get("device") {
				t.Errorf("asked %+v", q)
			}
			return explain.Trial{}, errors.New("not here")
		}
		recorder := httptest.NewRecorder()
		h.mux().ServeHTTP(recorder, request)
		if known := []int{200, 301, 307, 308, 400, 404, 405, 500, 503}; !slices.Contains(known, recorder.Code) {
			t.Errorf("%s %q: %d", method, target, recorder.Code)
		}
		// A recorder has no deadlines, which a stream needs.
		if recorder.Code == 500 && at.Path != "/v1/monitor" {
			t.Errorf("%s %q: %s", method, target, recorder.Body)
		}
		if recorder.Header().Get("Content-Type") == "application/json" && !json.Valid(recorder.Body.Bytes()) {
			t.Errorf("%s %q: %q is not JSON", method, target, recorder.Body)
		}
		if _, err := ParseLevel(levelName(h.LogLevel.Level())); err != nil {
			t.Error(err)
		}
	})
}
