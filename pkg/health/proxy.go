// Package health answers those who ask from outside whether this node is well: load balancers, a kubelet, and whatever
// reads what kube-proxy serves. It knows nothing of maps or objects; it is told by functions.
package health

import (
	"encoding/json"
	"net/http"
	"time"
)

// staleAfter is how long a change may wait before the proxy counts as stuck. kube-proxy says twice its sync period, and
// its sync period is 30 s unless configured. As there, time counts only while something waits: a cluster in which
// nothing changes, or an API server that is away, makes no proxy unhealthy.
const staleAfter = 2 * 30 * time.Second

// Proxy answers what kube-proxy does at /healthz and /livez, with the same meaning and the same JSON:
//
//   - Live is 200 unless a change has been waiting to be in the maps for longer than staleAfter.
//   - Health is 200 if Live is, the node is not about to go away, and the node serves. The last is more than kube-proxy
//     asks, which is well from its first moment on: a load balancer that believed it would send to a node without rules.
//
// With 200, lastUpdated is the present, as old readers of kube-proxy's expect it to move even when nothing changes; with
// 503 it is when the maps were last up to date.
type Proxy struct {
	Waiting  func() time.Time // since when the oldest change waits; zero for none
	Updated  func() time.Time // when nothing was left to do; zero for never
	Eligible func() bool      // the node is known, and neither being deleted nor marked for it
	Serving  func() bool      // the programs have maps to read
	Count    func(path string, code int)

	now func() time.Time // nil for time.Now
}

// proxyState is the body of an answer; the names are kube-proxy's.
type proxyState struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"`
	Healthy      bool      `json:"healthy"`
}

// Live answers /livez.
func (p *Proxy) Live() http.Handler {
	return p.handler("/livez", func(*proxyState) bool { return true })
}

// Health answers /healthz.
func (p *Proxy) Health() http.Handler {
	return p.handler("/healthz", func(s *proxyState) bool {
		eligible := p.Eligible()
		s.NodeEligible = &eligible
		s.Healthy = s.Healthy && p.Serving()
		return eligible
	})
}

// Serves reports whether this node serves what it is sent, with changes followed in time: what kube-proxy says of itself
// where load balancers ask about a Service.
func (p *Proxy) Serves() bool { return p.state().Healthy && p.Serving() }

func (p *Proxy) handler(path string, more func(*proxyState) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s := p.state()
		code := http.StatusServiceUnavailable
		if ok := more(&s); ok && s.Healthy {
			code, s.LastUpdated = http.StatusOK, s.CurrentTime
		}
		p.Count(path, code)
		text, err := json.Marshal(s)
		if err != nil { // a clock beyond the year 9999
			code, text = http.StatusInternalServerError, []byte("{}")
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write(text)
	})
}

func (p *Proxy) state() proxyState {
	now := p.now
	if now == nil {
		now = time.Now
	}
	s := proxyState{LastUpdated: p.Updated(), CurrentTime: now(), Healthy: true}
	if waiting := p.Waiting(); !waiting.IsZero() {
		s.Healthy = s.CurrentTime.Sub(waiting) < staleAfter
	}
	return s
}
