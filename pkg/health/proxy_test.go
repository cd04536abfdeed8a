package health

import (
	"encoding/json"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// node is the state that a Proxy is told.
type node struct {
	waiting, updated time.Time
	leaving, idle    bool
	counted          map[string]int
}

func (n *node) proxy(now time.Time) *Proxy {
	n.counted = map[string]int{}
	return &Proxy{
		Waiting:  func() time.Time { return n.waiting },
		Updated:  func() time.Time { return n.updated },
		Eligible: func() bool { return !n.leaving },
		Serving:  func() bool { return !n.idle },
		Count:    func(path string, code int) { n.counted[path] += code },
		now:      func() time.Time { return now },
	}
}

func TestProxy(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const well, ill = 200, 503
	tests := []struct {
		name         string
		node         node
		health, live int
	}{
		{"nothing waits", node{updated: ago(time.Hour)}, well, well},
		{"a change waits a little", node{waiting: ago(59 * time.Second), updated: ago(time.Hour)}, well, well},
		{"a change waits too long", node{waiting: ago(60 * time.Second), updated: ago(time.Second)}, ill, ill},
		{"a clock that went back", node{waiting: ago(-time.Hour), updated: ago(-time.Hour)}, well, well},
		{"the node is being deleted", node{updated: ago(time.Second), leaving: true}, ill, well},
		{"nothing is served yet", node{idle: true}, ill, well},
		{"both", node{waiting: ago(time.Hour), leaving: true}, ill, ill},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.node.proxy(now)
			eligible := !tt.node.leaving
			stale := !tt.node.waiting.IsZero() && now.Sub(tt.node.waiting) >= time.Minute
			for path, want := range map[string]struct {
				code int
				body map[string]any
			}{
				"/livez":   {tt.live, map[string]any{"healthy": !stale}},
				"/healthz": {tt.health, map[string]any{"healthy": !stale && !tt.node.idle, "nodeEligible": eligible}},
			} {
				answer := httptest.NewRecorder()
				handler := p.Live()
				if path == "/healthz" {
					handler = p.Health()
				}
				handler.ServeHTTP(answer, httptest.NewRequest("GET", path, nil))
				if answer.Code != want.code {
					t.Errorf("%s answers %d, want %d", path, answer.Code, want.code)
				}
				want.body["currentTime"] = now.Format(time.RFC3339Nano)
				want.body["lastUpdated"] = now.Format(time.RFC3339Nano)
				if want.code != well {
					want.body["lastUpdated"] = tt.node.updated.Format(time.RFC3339Nano)
				}
				var body map[string]any
				if err := json.Unmarshal(answer.Body.Bytes(), &body); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want.body, body); diff != "" {
					t.Errorf("%s says (-want +have):\n%s", path, diff)
				}
				if tt.node.counted[path] != want.code {
					t.Errorf("%s was counted as %d", path, tt.node.counted[path])
				}
			}
		})
	}
}
