package config

import (
	"errors"
	"strconv"
	"time"
)

// Conntrack says how many flows are remembered and, as durations, for how long after their last
// packet.
type Conntrack struct {
	Max string // empty = depends on the processors and the memory

	TCPEstablished, TCPHalfClosed, TCPClosing, TCPReset, TCPHalfOpen string
	UDPStream, UDP                                                   string
	SCTPEstablished, SCTPClosing                                     string
}

// conntrackOptions returns the options of Conntrack. Those that kube-proxy has too have the same
// names.
func conntrackOptions() []Option {
	return []Option{
		{
			Name: "conntrack-max", check: flowsOrEmpty,
			Shown: "32768 per processor, at least 131072, but no more than fit into a sixteenth of the memory",
			Usage: "maximum number of flows from outside to remember, rounded up to a power of two. Memory is used only for flows that exist, about " +
				"512 bytes each",
			field: func(c *Config) *string { return &c.Conntrack.Max },
		},
		{
			Name: "conntrack-tcp-timeout-established", Default: "8000s", check: timeout,
			Usage: "how long an idle TCP connection from outside is remembered. The default is longer than the two hours after which TCP sends a " +
				"keepalive",
			field: func(c *Config) *string { return &c.Conntrack.TCPEstablished },
		},
		{
			Name: "conntrack-tcp-timeout-close-wait", Default: "1h", check: timeout,
			Usage: "how long an idle TCP connection is remembered after one end has closed it and the other has not",
			field: func(c *Config) *string { return &c.Conntrack.TCPHalfClosed },
		},
		{
			Name: "conntrack-tcp-timeout-closing", Default: "60s", check: timeout,
			Usage: "how long a TCP connection is remembered after both ends have closed it",
			field: func(c *Config) *string { return &c.Conntrack.TCPClosing },
		},
		{
			Name: "conntrack-tcp-timeout-reset", Default: "10s", check: timeout,
			Usage: "how long a TCP connection is remembered after one end has reset it",
			field: func(c *Config) *string { return &c.Conntrack.TCPReset },
		},
		{
			Name: "conntrack-tcp-timeout-half-open", Default: "30s", check: timeout,
			Usage: "how long a TCP connection is remembered until the client acknowledges the backend's answer",
			field: func(c *Config) *string { return &c.Conntrack.TCPHalfOpen },
		},
		{
			Name: "conntrack-udp-timeout-stream", Default: "120s", check: timeout,
			Usage: "how long an idle UDP flow is remembered once the client has sent again after an answer",
			field: func(c *Config) *string { return &c.Conntrack.UDPStream },
		},
		{
			Name: "conntrack-udp-timeout", Default: "30s", check: timeout,
			Usage: "how long an idle UDP flow is remembered before the client has sent again after an answer",
			field: func(c *Config) *string { return &c.Conntrack.UDP },
		},
		{
			Name: "conntrack-sctp-timeout-established", Default: "210s", check: timeout,
			Usage: "how long an idle SCTP association from outside is remembered. Its ends send heartbeats, on Linux every 30 seconds by default",
			field: func(c *Config) *string { return &c.Conntrack.SCTPEstablished },
		},
		{
			Name: "conntrack-sctp-timeout-closing", Default: "10s", check: timeout,
			Usage: "how long an SCTP association is remembered after one end has shut it down or aborted it",
			field: func(c *Config) *string { return &c.Conntrack.SCTPClosing },
		},
	}
}

// fewestFlows is what there is room for from the start, and mostFlows take 30 GB.
const (
	fewestFlows = 65536
	mostFlows   = 1 << 26
)

func flowsOrEmpty(value string) error {
	if value == "" {
		return nil
	}
	if n, err := strconv.ParseUint(value, 10, 32); err != nil || n < fewestFlows || n > mostFlows {
		return errors.New("not a number of flows from 65536 to 67108864")
	}
	return nil
}

// mostTimeout is longer than anyone waits, and far from where the programs' ticks overflow.
const mostTimeout = 1000 * time.Hour

func timeout(value string) error {
	d, err := time.ParseDuration(value)
	if err != nil || d < time.Second || d > mostTimeout {
		return errors.New("not a duration from 1s to 1000h, such as 90s or 2h")
	}
	return nil
}
