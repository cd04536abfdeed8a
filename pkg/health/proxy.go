// Package health tells load balancers, the kubelet, and anything that reads kube-proxy's endpoints
// whether this node is healthy. It knows nothing of maps or objects; the agent passes in functions
// that report their state.
package health

import (
	"encoding/json"
	"net/http"
	"time"
)

// staleAfter is how long a change may wait before the proxy counts as stuck. kube-proxy uses twice
// its sync period, which is 30 s by default. As in kube-proxy, time counts only while a change is
// waiting: a cluster in which nothing changes, or an API server that cannot be reached, does not
// make the proxy unhealthy.
const staleAfter = 2 * 30 * time.Second

// Proxy serves what kube-proxy serves at /healthz and /livez, with the same meaning and the same
// JSON:
//
//   - Live is 200 unless a change has been waiting to reach the maps for longer than staleAfter.
//   - Health is 200 if Live is, the node is not about to go away, and the node serves. kube-proxy
//     does not check the last and is healthy from the start; a load balancer that believed it would
//     send traffic to a node without rules.
//
// With 200, lastUpdated is the current time, because older readers of kube-proxy's answer expect it
// to advance even when nothing changes; with 503 it is the time when the maps were last up to date.
type Proxy struct {
	Waiting  func() time.Time // since when the oldest change has been waiting; zero if none
	Updated  func() time.Time // when nothing was left to do; zero if never
	Eligible func() bool      // the node is known and is neither being deleted nor about to be
	Serving  func() bool      // the programs have maps to read
	Count    func(path string, code int)

	now func() time.Time // nil for time.Now
}

// proxyState is the body of an answer. The field names are kube-proxy's.
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

// Serves reports whether this node serves traffic and keeps up with changes. It is what kube-proxy
// reports as serviceProxyHealthy at the health check port of a Service.
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
