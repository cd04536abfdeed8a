package main

import (
	"context"
	"log/slog"
	"time"
)

const (
	announceLook = time.Second // how often it is looked whether the node is ready
	// announceRetry is how long it waits after an error, and for what it changed to be told to it.
	announceRetry = 10 * time.Second
)

// announce tells those who start pods once this node can serve them. Before that pods would start without their network, or
// with services that nobody carries.
func (a *agent) announce(ctx context.Context, log *slog.Logger) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.looked:
	}
	pause, said := time.Duration(0), ""
	for configured := a.cfg.CNIConfDir == ""; !configured; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = announceLook
		if a.unready() != nil {
			continue
		}
		err := a.tellRuntime(log)
		if configured = err == nil; configured {
			continue
		}
		pause = announceRetry
		if err.Error() != said {
			log.Warn("telling who starts pods that this node can serve them: trying again", "error", err)
			said = err.Error()
		}
	}
	return nil
}

// unready returns why pods cannot be served yet.
func (a *agent) unready() error {
	for _, check := range a.checks() {
		if err := check.Run(); err != nil {
			return err
		}
	}
	if a.cfg.PodNetwork != "main" {
		return nil
	}
	_, err := a.podCIDRs()
	return err
}

// tellRuntime writes the configuration of the network. It stays when the agent ends, and the pods that start meanwhile wait
// for the next.
func (a *agent) tellRuntime(log *slog.Logger) error {
	placed, err := configureRuntime(a.cfg)
	if err != nil {
		return err
	}
	log.Info("the container runtime knows the pod network", "file", placed.Path, "changed", placed.Changed)
	return nil
}
