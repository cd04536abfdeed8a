package lb

import (
	"fmt"
	"strings"

	"fairlead.io/fairlead/pkg/bpf"
)

// Algorithm is how the programs number a new connection. Together with the table, which says what the numbers mean,
// it decides the backend. The values are those that the programs read from a service's row.
type Algorithm uint8

// The algorithms.
const (
	Random     = Algorithm(bpf.MapsAlgorithmALGORITHM_RANDOM)      // a random number
	RoundRobin = Algorithm(bpf.MapsAlgorithmALGORITHM_ROUND_ROBIN) // one more than the last
	SourceHash = Algorithm(bpf.MapsAlgorithmALGORITHM_SOURCE_HASH) // a hash of the client
	Maglev     = Algorithm(bpf.MapsAlgorithmALGORITHM_MAGLEV)      // a hash of the flow, the same on every node
)

// String returns the name that people write.
func (a Algorithm) String() string {
	switch a {
	case Random:
		return "random"
	case RoundRobin:
		return "round-robin"
	case SourceHash:
		return "source-hash"
	case Maglev:
		return "maglev"
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// algorithmList holds every algorithm, in the order of their values.
func algorithmList() []Algorithm { return []Algorithm{Random, RoundRobin, SourceHash, Maglev} }

// algorithmShown bounds how much of a name that came from outside is repeated in an error.
const algorithmShown = 40

// ParseAlgorithm returns the algorithm of that name: one of ours, or the short name of an IPVS scheduler that is the
// same thing. Names are case-sensitive. The error of any other name says in one sentence what to write instead.
func ParseAlgorithm(name string) (Algorithm, error) {
	for _, a := range algorithmList() {
		if name == a.String() {
			return a, nil
		}
	}
	for _, s := range algorithmSchedulers() {
		switch {
		case s.name != name:
		case s.missing == "":
			return s.algorithm, nil
		default:
			return 0, fmt.Errorf("algorithm %q (%s) is not available: %s; use %s", name, s.title, s.missing, s.instead)
		}
	}
	return 0, fmt.Errorf("unknown algorithm %.*q: use one of %s", algorithmShown, name, strings.Join(AlgorithmNames(), ", "))
}

// AlgorithmNames returns the names that ParseAlgorithm takes.
func AlgorithmNames() (names []string) {
	for _, a := range algorithmList() {
		names = append(names, a.String())
	}
	for _, s := range algorithmSchedulers() {
		if s.missing == "" {
			names = append(names, s.name)
		}
	}
	return names
}

// algorithmScheduler is a scheduler of IPVS: the algorithm that it is here, or why it is missing and what to use.
type algorithmScheduler struct {
	name, title      string
	algorithm        Algorithm
	missing, instead string
}

// algorithmSchedulers lists the schedulers of IPVS by the names that ipvsadm and kube-proxy know them by.
func algorithmSchedulers() []algorithmScheduler {
	const (
		uncounted = "it needs each backend's number of open connections, and connections from pods are set up without " +
			"anything on their path that could count them"
		oneDestination = "it chooses by the destination address, which is the same for every connection to a Service"
	)
	return []algorithmScheduler{
		{name: "rr", title: "round robin", algorithm: RoundRobin},
		{name: "wrr", title: "weighted round robin", algorithm: RoundRobin},
		{name: "sh", title: "source hashing", algorithm: SourceHash},
		{name: "mh", title: "maglev hashing", algorithm: Maglev},
		{name: "lc", title: "least connection", missing: uncounted, instead: "round-robin"},
		{name: "wlc", title: "weighted least connection", missing: uncounted, instead: "round-robin with weights"},
		{name: "sed", title: "shortest expected delay", missing: uncounted, instead: "round-robin with weights"},
		{name: "nq", title: "never queue", missing: uncounted, instead: "round-robin with weights"},
		{name: "ovf", title: "weighted overflow", missing: uncounted, instead: "round-robin with weights"},
		{name: "twos", title: "power of two choices", missing: uncounted, instead: "random with weights"},
		{name: "lblc", title: "locality-based least connection", missing: oneDestination, instead: "maglev"},
		{name: "lblcr", title: "locality-based least connection with replication", missing: oneDestination, instead: "maglev"},
		{name: "dh", title: "destination hashing", missing: oneDestination, instead: "source-hash or maglev"},
		{
			name: "fo", title: "weighted failover", missing: "which backends stand by is a matter of weights here",
			instead: "any algorithm and the weight 0 for the backends that stand by",
		},
	}
}
