package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// family is one metric with all its label values.
type family struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	read       func(s *Sample, put func(value float64, labels ...string))

	desc *prometheus.Desc
}

// collector turns a Sample into metrics.
type collector struct {
	read     func() Sample
	families []family
}

// allFamilies are the metrics of an agent that does everything.
func allFamilies() []family {
	return slices.Concat(nodeFamilies(), deviceFamilies(), mapFamilies(), reconcileFamilies(), socketFamilies(), conntrackFamilies(), routeFamilies(),
		monitorFamilies(), podFamilies(), policyFamilies(), rateFamilies(), sockmapFamilies(), sourceFamilies())
}

// accelerateOnlyFamilies are the metrics of an agent in accelerate-only mode.
func accelerateOnlyFamilies() []family {
	node := slices.DeleteFunc(nodeFamilies(), func(f family) bool { return f.name != "fairlead_degraded" && f.name != "fairlead_problems" })
	return slices.Concat(node, sockmapFamilies(), sourceFamilies())
}

func newCollector(families []family, read func() Sample) *collector {
	c := &collector{read: read, families: families}
	for i := range c.families {
		f := &c.families[i]
		f.desc = prometheus.NewDesc(f.name, f.help, f.labels, nil)
	}
	return c
}

// Describe sends the description of every metric.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for i := range c.families {
		out <- c.families[i].desc
	}
}

// Collect reads a Sample and sends its metrics.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	sample := c.read()
	for i := range c.families {
		f := &c.families[i]
		f.read(&sample, func(value float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(f.desc, f.kind, value, labels...)
		})
	}
}

// gauge and counter return a family with a single value.
func gauge(name, help string, value func(*Sample) float64) family {
	return single(prometheus.GaugeValue, name, help, value)
}

func counter(name, help string, value func(*Sample) float64) family {
	return single(prometheus.CounterValue, name, help, value)
}

func single(kind prometheus.ValueType, name, help string, value func(*Sample) float64) family {
	return family{name: name, help: help, kind: kind, read: func(s *Sample, put func(float64, ...string)) { put(value(s)) }}
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// seconds returns at in seconds since 1970, or 0 if at is zero.
func seconds(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return float64(at.UnixNano()) / 1e9
}

// age returns the seconds since at, or 0 if at is zero.
func age(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return max(0, time.Since(at).Seconds())
}
