package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"fairlead.io/fairlead/test/bench/kubeproxy"
	"fairlead.io/fairlead/test/bench/listwatch"
)

// writeRules makes kube-proxy write the rules of the given number of services into the node's
// namespace.
func (s *oneNodeTwoPods) writeRules(ctx context.Context, program *kubeproxy.Program, services int) error {
	_, err := program.Write(ctx, kubeproxy.Rules{
		Mode: "iptables", Netns: s.Netns,
		Fleet: listwatch.Fleet{Services: services, Endpoints: 1, Nodes: 1, Namespaces: 100, FirstPod: 1<<23 + 1},
		Await: func(ctx context.Context) error { return s.awaitRules(ctx, services) },
	})
	return err
}

// awaitRules waits until the rules of the given number of services exist.
func (s *oneNodeTwoPods) awaitRules(ctx context.Context, services int) error {
	save := "iptables-save"
	if path, err := exec.LookPath("iptables-legacy-save"); err == nil {
		save = path
	}
	for {
		cmd := exec.CommandContext(ctx, save, "-t", "nat")
		var rules []byte
		err := s.Netns.Do(func() (err error) {
			rules, err = cmd.Output()
			return err
		})
		count := strings.Count(string(rules), "-j KUBE-SVC-")
		if err == nil && count >= services {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), fmt.Errorf("rules exist for %d services", count), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
