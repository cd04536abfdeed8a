// Command serve simulates an API server in a separate process, so that an agent's benchmark
// measures the agent alone. It prints the address that it listens on and, when it is terminated,
// the number of changes it made.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"fairlead.io/fairlead/test/bench/listwatch"
	"fairlead.io/fairlead/test/bench/result"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}

// options are the command line's options.
type options struct {
	server             listwatch.Config
	churn              listwatch.Churn
	listen, kubeconfig string
}

func parse(arguments []string) (options, error) {
	var o options
	set := flag.NewFlagSet("serve", flag.ContinueOnError)
	set.StringVar(&o.listen, "listen", "127.0.0.1:0", "loopback `address` and port; port 0 picks a free one")
	set.StringVar(&o.kubeconfig, "kubeconfig", "", "write a `file` by which clients find the server")
	set.IntVar(&o.server.Fleet.Services, "services", 100_000, "number of Services and EndpointSlices")
	set.IntVar(&o.server.Fleet.Endpoints, "endpoints", 10, "endpoints, and pods, of each Service")
	set.IntVar(&o.server.Fleet.Nodes, "nodes", 1000, "number of nodes, node-0 and so on")
	set.IntVar(&o.server.Fleet.Namespaces, "namespaces", 100, "number of namespaces")
	set.IntVar(&o.server.Fleet.Policies, "policies", 0, "number of NetworkPolicies")
	set.BoolVar(&o.server.Paged, "paged", false, "refuse to stream lists, as servers before 1.34 do")
	set.Float64Var(&o.churn.Changes, "changes", 0, "slices to change per second")
	set.Float64Var(&o.churn.Pods, "pods", 0, "pods to replace per second, not together with Services to add")
	set.Float64Var(&o.churn.Adds, "adds", 0, "Services to add per second")
	set.Float64Var(&o.churn.Deletes, "deletes", 0, "Services to delete per second")
	if err := set.Parse(arguments); err != nil {
		return options{}, err
	}
	if set.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected arguments %q; see -h", set.Args())
	}
	if o.churn.Pods > 0 && o.churn.Adds > 0 {
		return options{}, errors.New("-pods and -adds would both number new pods: use one of them")
	}
	return o, nil
}

func run(ctx context.Context, arguments []string, out io.Writer) error {
	o, err := parse(arguments)
	if err != nil {
		return err
	}
	server, err := listwatch.New(o.server)
	if err != nil {
		return err
	}
	listener, err := listwatch.Listen(ctx, o.listen)
	if err != nil {
		return err
	}
	if o.kubeconfig != "" {
		if err := result.WriteFile(o.kubeconfig, strings.NewReader(listwatch.Kubeconfig(listener.Addr()))); err != nil {
			return errors.Join(fmt.Errorf("write the kubeconfig: %w", err), listener.Close())
		}
	}
	fmt.Fprintf(out, "http://%s\n", listener.Addr())

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(ctx, listener)
		cancel()
	}()
	done, err := server.Run(ctx, o.churn)
	cancel()
	err = errors.Join(err, <-served)
	fmt.Fprintf(out, "%d slices changed, %d services came, %d went, %d pods were replaced\n", done.Changes, done.Adds, done.Deletes, done.Pods)
	return err
}
