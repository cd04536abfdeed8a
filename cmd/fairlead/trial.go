package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/explain"
)

// anyPort is the port of a client whose port was not given.
const anyPort = 40000

// clientOf parses ADDRESS or ADDRESS:PORT.
func clientOf(text string) (netip.AddrPort, error) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("client %q: write an IP address, with a port if it is outside, or \"node\" for a process of the node", text)
	}
	return netip.AddrPortFrom(addr.Unmap(), anyPort), nil
}

// tried is a client outside, and what the programs do with its packet.
type tried struct {
	explain.Trial
	source netip.AddrPort
	// noAgent says that no agent answered. Only an agent knows which devices lead outside, so the
	// client is assumed to be inside.
	noAgent bool
}

// outsideTrial lets the agent try the first packet of the client in a question. It returns nil for
// a client inside.
func outsideTrial(ctx context.Context, cfg *config.Config, src string, q *explain.Question, device string, probes int) (*tried, error) {
	if src == "node" || probes > 0 {
		if device != "" {
			return nil, config.UsageError{Err: errors.New("--device is for clients outside: neither a process of the node nor a probe has one")}
		}
		return nil, nil
	}
	source, err := clientOf(src)
	if err != nil {
		return nil, config.UsageError{Err: err}
	}
	if source.Addr().Is4() != q.Destination.Addr().Unmap().Is4() && device == "" {
		return nil, nil
	}
	question := explain.TrialQuestion{Source: source, Destination: q.Destination, Protocol: q.Protocol.String(), Device: device}
	trial, err := client(cfg).Try(ctx, &question)
	switch {
	case unreachable(err) && device == "":
		return &tried{noAgent: true}, nil
	case err != nil:
		return nil, err
	case trial.Outcome == explain.TrialInside, trial.Outcome == explain.TrialIdle && device == "":
		return nil, nil
	}
	return &tried{Trial: trial, source: source}, nil
}
