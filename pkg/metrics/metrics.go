// Package metrics says in Prometheus' form how the agent and its node are doing. Nothing is gathered in the background:
// what others count anyway is read when somebody asks, and only durations are noted as they happen.
//
// Labels have few values, known beforehand: there are none for Services, addresses or pods.
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

// maxScrapes is how many may be answered at once.
const maxScrapes = 2

// scrapeTimeout is what a scrape may take: Prometheus itself gives up after ten seconds unless configured.
const scrapeTimeout = 9 * time.Second

// Build is what the agent was made of and runs on.
type Build struct {
	Version, Commit, Go, Kernel string
}

// Metrics is what there is to scrape. It is the Meter of a Reconciler.
type Metrics struct {
	registry    *prometheus.Registry
	passes      prometheus.Histogram
	programming map[model.Family][]prometheus.Observer
	answers     *prometheus.CounterVec
	requests    *prometheus.HistogramVec
}

// New returns Metrics that call read for every scrape. It may be called from several goroutines, and should take a few
// milliseconds at most.
func New(build Build, read func() Sample) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
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
	}
	m.register(build, newCollector(allFamilies(), read))
	m.registry.MustRegister(m.passes, m.answers, m.requests)
	for _, opts := range []prometheus.HistogramOpts{ours(), kubeProxys()} {
		vec := prometheus.NewHistogramVec(opts, []string{"ip_family"})
		m.registry.MustRegister(vec)
		m.programming[model.IPv4] = append(m.programming[model.IPv4], vec.WithLabelValues("IPv4"))
		m.programming[model.IPv6] = append(m.programming[model.IPv6], vec.WithLabelValues("IPv6"))
	}
	return m
}

// NewAccelerateOnly returns Metrics of an agent that lets connections go past TCP and does nothing else: whether it is well, and those of that.
func NewAccelerateOnly(build Build, read func() Sample) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.register(build, newCollector(accelerateOnlyFamilies(), read))
	return m
}

// register adds what every agent tells.
func (m *Metrics) register(build Build, collector prometheus.Collector) {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "fairlead_build_info", Help: "The agent's build and the kernel it runs on; always 1.",
		ConstLabels: prometheus.Labels{
			"version": build.Version, "commit": build.Commit, "go_version": build.Go, "kernel": build.Kernel,
		},
	})
	info.Set(1)
	m.registry.MustRegister(info, collector, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

const programmingHelp = "Time from a change of a pod or Service, as recorded by the endpoint " +
	"controller, until the change of its endpoints is in this node's maps."

func ours() prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: "fairlead_network_programming_duration_seconds", Help: programmingHelp,
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 19), // 1 ms to 4 min
	}
}

// kubeProxys is the indicator that Kubernetes' scalability tests and dashboards read, under the name and with the
// buckets that kube-proxy has for it.
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

// Pass notes how long a pass took.
func (m *Metrics) Pass(took time.Duration) { m.passes.Observe(took.Seconds()) }

// Programmed notes how long a change of endpoints took into the maps.
func (m *Metrics) Programmed(family model.Family, took time.Duration) {
	for _, observer := range m.programming[family] {
		observer.Observe(took.Seconds())
	}
}

// Answered counts an answer about this node's health. The paths are ours, so they are few.
func (m *Metrics) Answered(path string, code int) {
	m.answers.WithLabelValues(path, strconv.Itoa(code)).Inc()
}

// Asked notes a request of the plugin. Verbs and outcomes are ours, so they are few.
func (m *Metrics) Asked(verb, outcome string, took time.Duration) {
	m.requests.WithLabelValues(verb, outcome).Observe(took.Seconds())
}

// Handler answers scrapes.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout, EnableOpenMetrics: true,
	})
}
