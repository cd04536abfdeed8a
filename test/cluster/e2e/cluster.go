package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"fairlead.io/fairlead/test/cluster/e2e/verdict"
	"fairlead.io/fairlead/test/cluster/place"
)

// cluster is the cluster that is judged, and where it is reached.
type cluster struct {
	verdict.Cluster
	kubeconfig string
	control    place.Place
}

// findCluster asks the cluster's own command where things are.
func findCluster(ctx context.Context, prefix, proxy string) (*cluster, error) {
	cmd := exec.CommandContext(ctx, "go", "run", "./test/cluster", "env", "-prefix", prefix)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("find cluster: %w", err)
	}
	found, err := parseEnv(string(text))
	if err != nil {
		return nil, fmt.Errorf("find cluster: %w", err)
	}
	if _, err := os.Stat(found.kubeconfig); err != nil || found.Nodes == 0 {
		return nil, fmt.Errorf("find cluster: it is not up (make cluster)")
	}
	if found.Proxy = proxy; proxy == "none" {
		found.Proxy = "fairlead"
	}
	return found, nil
}

// parseEnv reads what the command prints: a shell variable a line.
func parseEnv(text string) (*cluster, error) {
	vars := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		vars[name] = value
	}
	for _, name := range []string{"KUBECONFIG", "CONTROL_NETNS", "FAMILY", "NODES"} {
		if _, ok := vars[name]; !ok {
			return nil, fmt.Errorf("there is no %s in %q", name, text)
		}
	}
	nodes, err := strconv.Atoi(vars["NODES"])
	if err != nil {
		return nil, fmt.Errorf("read the number of nodes: %w", err)
	}
	return &cluster{
		Cluster:    verdict.Cluster{Family: vars["FAMILY"], Nodes: nodes},
		kubeconfig: vars["KUBECONFIG"],
		control:    place.Place{Netns: vars["CONTROL_NETNS"]},
	}, nil
}
