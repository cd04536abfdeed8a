package lb

import (
	"fmt"
	"strings"

	"fairlead.io/fairlead/pkg/bpf"
)

// Algorithm is how the programs pick a number for a new connection. The table maps that number to a
// backend. The values are the ones the programs read from a service's row.
type Algorithm uint8

// The algorithms.
const (
	Random     = Algorithm(bpf.MapsAlgorithmALGORITHM_RANDOM)      // a random number
	RoundRobin = Algorithm(bpf.MapsAlgorithmALGORITHM_ROUND_ROBIN) // one more than the last
	SourceHash = Algorithm(bpf.MapsAlgorithmALGORITHM_SOURCE_HASH) // a hash of the client's address
	Maglev     = Algorithm(bpf.MapsAlgorithmALGORITHM_MAGLEV)      // a hash of the flow, the same on every node
)

// String returns the name used in the configuration.
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

// MarshalText writes the name.
func (a Algorithm) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads a name that MarshalText has written.
func (a *Algorithm) UnmarshalText(text []byte) error {
	if _, err := fmt.Sscanf(string(text), "algorithm(%d)", (*uint8)(a)); err == nil {
		return nil
	}
	parsed, err := ParseAlgorithm(string(text))
	*a = parsed
	return err
}

// Decider is what decides which slot of the table a new flow gets.
type Decider uint8

// The deciders.
const (
	ByChance Decider = iota // a random number
	ByTurn                  // the slot whose turn it is, whoever the client is
	ByClient                // a hash of the client: of its network namespace for a socket, of its address for a packet
	ByFlow                  // a hash of the client's address and port, and of the dialed port
)

// deciders says for each algorithm what decides about a socket and about the first packet of a flow.
// With affinity, the client decides about packets instead; with most algorithms only until its
// affinity lapses.
var deciders = [...]struct {
	socket, packet Decider
	outlastsLapse  bool
}{
	Random:     {socket: ByChance, packet: ByFlow},
	RoundRobin: {socket: ByTurn, packet: ByTurn},
	SourceHash: {socket: ByClient, packet: ByClient},
	Maglev:     {socket: ByChance, packet: ByFlow, outlastsLapse: true},
}

// OfSocket returns what decides about a socket that connects, on this node.
func (a Algorithm) OfSocket() Decider {
	if int(a) >= len(deciders) {
		return ByChance
	}
	return deciders[a].socket
}

// OfPacket returns what decides about the first packet of a flow. Lapsed says that the client had a
// backend by session affinity, but too long ago.
func (a Algorithm) OfPacket(affinity, lapsed bool) Decider {
	if int(a) >= len(deciders) {
		a = Random
	}
	if affinity && (!lapsed || deciders[a].outlastsLapse) {
		return ByClient
	}
	return deciders[a].packet
}

// algorithmList holds every algorithm, in the order of their values.
func algorithmList() []Algorithm { return []Algorithm{Random, RoundRobin, SourceHash, Maglev} }

// algorithmShown bounds how much of an unknown name is repeated in an error.
const algorithmShown = 40

// ParseAlgorithm returns the algorithm of that name: one of fairlead's own, or the short name of an
// equivalent IPVS scheduler. Names are case-sensitive. For any other name, the error says in one
// sentence what to use instead.
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

// AlgorithmNames returns the names that ParseAlgorithm accepts.
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

// algorithmScheduler is an IPVS scheduler: the equivalent algorithm, or why there is none and what
// to use instead.
type algorithmScheduler struct {
	name, title      string
	algorithm        Algorithm
	missing, instead string
}

// algorithmSchedulers lists the IPVS schedulers by the names that ipvsadm and kube-proxy use.
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
			name: "fo", title: "weighted failover", missing: "standby backends are chosen by weight here",
			instead: "any algorithm and the weight 0 for the standby backends",
		},
	}
}
