// Package metrics exposes the state of the agent and its node to Prometheus. Nothing is gathered in
// the background: counters that other packages keep anyway are read on each scrape, and only
// durations are recorded as they happen.
//
// Labels have few values, known beforehand: none are names of Services or addresses, names of pods
// only label the rates that somebody has given pods, and names of policies those few that deny most.
package metrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"fairlead.io/fairlead/pkg/model"
)

// maxScrapes is how many scrapes are answered at once.
const maxScrapes = 2

// scrapeTimeout limits a scrape. Prometheus itself gives up after ten seconds by default.
const scrapeTimeout = 9 * time.Second

// Build describes the agent's build and the kernel it runs on.
type Build struct {
	Version, Commit, Go, Kernel string
}

// Metrics holds everything that can be scraped. It is the Meter of a Reconciler.
type Metrics struct {
	registry    *prometheus.Registry
	passes      prometheus.Histogram
	programming map[model.Family][]prometheus.Observer
	answers     *prometheus.CounterVec
	requests    *prometheus.HistogramVec
	evicted     prometheus.Counter
	enforcing   prometheus.Histogram
}

// New returns Metrics that call read for every scrape. read may be called from several goroutines,
// and should take a few milliseconds at most.
func New(build Build, read func() Sample) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		evicted:  newEvicted(),
		passes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fairlead_reconcile_duration_seconds", Help: "Duration of passes that had something to compile.",
			Buckets: prometheus.ExponentialBuckets(10e-6, 4, 11), // 10 us to 10 s
		}),
		programming: map[model.Family][]prometheus.Observer{},
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_health_answers_total", Help: "Answers at /healthz and /livez, and at the health check ports of Services.",
		}, []string{"path", "code"}),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fairlead_cni_request_duration_seconds", Help: "Duration of the CNI plugin's requests in the agent.",
			Buckets: prometheus.ExponentialBuckets(100e-6, 4, 9), // 100 us to 7 s
		}, []string{"verb", "outcome"}),
		enforcing: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fairlead_policy_update_duration_seconds", Help: "Time from when the agent saw a change of a policy, or of what policies select by, until it was in force.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 19), // 1 ms to 4 min
		}),
	}
	m.register(build, newCollector(allFamilies(), read))
	m.registry.MustRegister(m.passes, m.answers, m.requests, m.enforcing)
	for _, opts := range []prometheus.HistogramOpts{ours(), kubeProxys()} {
		vec := prometheus.NewHistogramVec(opts, []string{"ip_family"})
		m.registry.MustRegister(vec)
		m.programming[model.IPv4] = append(m.programming[model.IPv4], vec.WithLabelValues("IPv4"))
		m.programming[model.IPv6] = append(m.programming[model.IPv6], vec.WithLabelValues("IPv6"))
	}
	return m
}

// NewAccelerateOnly returns the Metrics of an agent in accelerate-only mode: its health, its
// sources and socket acceleration.
func NewAccelerateOnly(build Build, read func() Sample) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), evicted: newEvicted()}
	m.register(build, newCollector(accelerateOnlyFamilies(), read))
	return m
}

// register adds the metrics that every agent has.
func (m *Metrics) register(build Build, collector prometheus.Collector) {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "fairlead_build_info", Help: "The agent's build and the kernel it runs on; always 1.",
		ConstLabels: prometheus.Labels{
			"version": build.Version, "commit": build.Commit, "go_version": build.Go, "kernel": build.Kernel,
		},
	})
	info.Set(1)
	m.registry.MustRegister(info, collector, m.evicted, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

const programmingHelp = "Time from a change of a pod or Service, as recorded by the endpoint " +
	"controller, until the change of its endpoints is in this node's maps."

func ours() prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: "fairlead_network_programming_duration_seconds", Help: programmingHelp,
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 19), // 1 ms to 4 min
	}
}

// kubeProxys is the indicator that Kubernetes' scalability tests and dashboards read, with
// kube-proxy's name and buckets.
func kubeProxys() prometheus.HistogramOpts {
	buckets := []float64{0.25, 0.5}
	for _, run := range []struct{ start, width, count float64 }{{1, 1, 59}, {60, 5, 12}, {120, 30, 7}} {
		buckets = append(buckets, prometheus.LinearBuckets(run.start, run.width, int(run.count))...)
	}
	return prometheus.HistogramOpts{
		Name: "kubeproxy_network_programming_duration_seconds", Help: programmingHelp + " Has the same name as in kube-proxy.",
		Buckets: buckets,
	}
}

// Pass records how long a pass took.
func (m *Metrics) Pass(took time.Duration) { m.passes.Observe(took.Seconds()) }

// Enforced records how long a change of policies took to be in force.
func (m *Metrics) Enforced(took time.Duration) { m.enforcing.Observe(took.Seconds()) }

// Programmed records how long a change of endpoints took to reach the maps.
func (m *Metrics) Programmed(family model.Family, took time.Duration) {
	for _, observer := range m.programming[family] {
		observer.Observe(took.Seconds())
	}
}

// Answered counts an answer about this node's health. Paths come from the agent, not from clients,
// so there are few.
func (m *Metrics) Answered(path string, code int) {
	m.answers.WithLabelValues(path, strconv.Itoa(code)).Inc()
}

func newEvicted() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fairlead_http_connections_evicted_total",
		Help: "Connections to the agent's HTTP servers that were closed to make room, since their client or all clients had too many. It grows while somebody keeps connections open.",
	})
}

// Evicted counts a connection of an HTTP server that gave way to another.
func (m *Metrics) Evicted() { m.evicted.Inc() }

// Asked records a request of the CNI plugin. Verbs and outcomes come from the agent, so there are
// few.
func (m *Metrics) Asked(verb, outcome string, took time.Duration) {
	m.requests.WithLabelValues(verb, outcome).Observe(took.Seconds())
}

// Handler answers scrapes.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout, EnableOpenMetrics: true,
	})
}
