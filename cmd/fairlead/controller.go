package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/source/kube"
)

// ownNamespace is the file in which a pod finds the name of its namespace.
const ownNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

func newControllerCommand(inv *invocation) *cobra.Command {
	var elect bool
	var namespace, lease string
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Write what is written once for the cluster: conditions of policies, slices of pods",
		Long: `Write what is written once for the cluster, and not by every node. It needs no node: it only talks to the API server, as
any user. The chart runs it as a Deployment where policies are followed.

It writes the condition fairlead.io/Accepted into the status of each ClusterNetworkPolicy, which says whether agents
follow it as it is written, or else what is wrong and what they make of it. "kubectl describe" shows it. It writes a
condition only if it differs from what is there, and leaves all others alone.

With --policy-pods=slices it also watches the pods of all nodes and writes PodSlices, from which agents with the same
option learn addresses and labels of pods that policies name.

Several may run: one is elected by a Lease and writes, the others wait to take over.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			log, _, err := newLog(inv.env, cfg)
			if err != nil {
				return err
			}
			if elect && namespace == "" {
				if namespace, err = readNamespace(); err != nil {
					return config.UsageError{Err: err}
				}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			server := kube.Config{Kubeconfig: cfg.Kubeconfig, Version: version(), Log: log}
			lead, err := newLead(server, cfg.PolicyPods == "slices")
			if err != nil {
				return err
			}
			if !elect {
				lead(ctx)
				return nil
			}
			return runElected(ctx, server, namespace, lease, lead)
		},
	}
	config.AddFlags(cmd.Flags(), "kubeconfig", "log-format", "log-level", "policy-pods")
	cmd.Flags().BoolVar(&elect, "leader-elect", true, "write only while elected; false if no other controller runs")
	cmd.Flags().StringVar(&namespace, "lease-namespace", "", "namespace of the Lease (default that of the pod)")
	cmd.Flags().StringVar(&lease, "lease-name", "fairlead-controller", "name of the Lease, the same for all that stand for election")
	return cmd
}

// newLead returns what the one that is elected does: it writes conditions, and slices of pods if somebody reads them.
func newLead(server kube.Config, slices bool) (func(context.Context), error) {
	conditions, err := kube.NewConditions(server)
	if err != nil || !slices {
		return conditions.Run, err
	}
	pods, err := kube.NewPodSlices(server)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		var running sync.WaitGroup
		running.Go(func() { conditions.Run(ctx) })
		running.Go(func() { pods.Run(ctx) })
		running.Wait()
	}, nil
}

// runElected runs something while this process is elected, until the context ends.
func runElected(ctx context.Context, server kube.Config, namespace, lease string, lead func(context.Context)) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read host name: %w", err)
	}
	// A container that is started again in its pod is another candidate.
	election, err := kube.NewElection(server, namespace, lease, host+"_"+rand.Text())
	if err != nil {
		return err
	}
	election.Run(ctx, lead)
	return nil
}

func readNamespace() (string, error) {
	text, err := os.ReadFile(ownNamespace)
	if errors.Is(err, os.ErrNotExist) {
		return "", errors.New("this is not a pod: set --lease-namespace, or --leader-elect=false if no other controller runs")
	}
	if err != nil {
		return "", fmt.Errorf("read the pod's namespace: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
