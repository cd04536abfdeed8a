package config

import (
	"errors"
	"strconv"
	"time"
)

// Conntrack is how long flows of packets are remembered after their last packet, each a duration, and how many.
type Conntrack struct {
	Max string // empty = by the processors and the memory

	TCPEstablished, TCPHalfClosed, TCPClosing, TCPReset, TCPHalfOpen string
	UDPStream, UDP                                                   string
	SCTPEstablished, SCTPClosing                                     string
}

// conntrackOptions are called as kube-proxy calls them where it has them.
func conntrackOptions() []Option {
	return []Option{
		{
			Name: "conntrack-max", check: flowsOrEmpty,
			Shown: "32768 for each processor and at least 131072, as far as a sixteenth of the memory has room for them",
			Usage: "how many flows from outside may be remembered, rounded up to a power of two; memory is taken for those that there are, about 450 bytes each",
			field: func(c *Config) *string { return &c.Conntrack.Max },
		},
		{
			Name: "conntrack-tcp-timeout-established", Default: "8000s", check: timeout,
			Usage: "how long a TCP connection from outside may be silent before it is forgotten; more than the two hours after which TCP asks whether the other end is there",
			field: func(c *Config) *string { return &c.Conntrack.TCPEstablished },
		},
		{
			Name: "conntrack-tcp-timeout-close-wait", Default: "1h", check: timeout,
			Usage: "the same once one end has closed and the other has not",
			field: func(c *Config) *string { return &c.Conntrack.TCPHalfClosed },
		},
		{
			Name: "conntrack-tcp-timeout-closing", Default: "60s", check: timeout,
			Usage: "the same once both ends have closed",
			field: func(c *Config) *string { return &c.Conntrack.TCPClosing },
		},
		{
			Name: "conntrack-tcp-timeout-reset", Default: "10s", check: timeout,
			Usage: "the same once one end has reset it",
			field: func(c *Config) *string { return &c.Conntrack.TCPReset },
		},
		{
			Name: "conntrack-tcp-timeout-half-open", Default: "30s", check: timeout,
			Usage: "the same until the client has acknowledged what the backend answered",
			field: func(c *Config) *string { return &c.Conntrack.TCPHalfOpen },
		},
		{
			Name: "conntrack-udp-timeout-stream", Default: "120s", check: timeout,
			Usage: "how long UDP between two ports may be silent before it is forgotten, once the client has sent again after an answer",
			field: func(c *Config) *string { return &c.Conntrack.UDPStream },
		},
		{
			Name: "conntrack-udp-timeout", Default: "30s", check: timeout,
			Usage: "the same before that",
			field: func(c *Config) *string { return &c.Conntrack.UDP },
		},
		{
			Name: "conntrack-sctp-timeout-established", Default: "210s", check: timeout,
			Usage: "how long an SCTP association from outside may be silent before it is forgotten; its ends send heartbeats, every 30 seconds as Linux has it",
			field: func(c *Config) *string { return &c.Conntrack.SCTPEstablished },
		},
		{
			Name: "conntrack-sctp-timeout-closing", Default: "10s", check: timeout,
			Usage: "the same once one end has shut it down or aborted it",
			field: func(c *Config) *string { return &c.Conntrack.SCTPClosing },
		},
	}
}

// The fewest flows are what there is room for from the start, and the most take 30 GB.
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

// mostTimeout is longer than anybody waits, and far from where ticks overflow.
const mostTimeout = 1000 * time.Hour

func timeout(value string) error {
	d, err := time.ParseDuration(value)
	if err != nil || d < time.Second || d > mostTimeout {
		return errors.New("not a duration from 1s to 1000h, such as 90s or 2h")
	}
	return nil
}
