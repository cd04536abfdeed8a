// Command serve plays an API server in a process of its own, so that an agent's benchmark measures the agent alone. It
// prints where it listens and, when it is told to end, how much it changed.
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

// options is what the command line says.
type options struct {
	server             listwatch.Config
	churn              listwatch.Churn
	listen, kubeconfig string
}

func parse(arguments []string) (options, error) {
	var o options
	set := flag.NewFlagSet("serve", flag.ContinueOnError)
	set.StringVar(&o.listen, "listen", "127.0.0.1:0", "loopback `address` and port; port 0 takes a free one")
	set.StringVar(&o.kubeconfig, "kubeconfig", "", "write a `file` with which clients find the server")
	set.IntVar(&o.server.Fleet.Services, "services", 100_000, "how many Services and EndpointSlices there are")
	set.IntVar(&o.server.Fleet.Endpoints, "endpoints", 10, "endpoints, and pods, of each Service")
	set.IntVar(&o.server.Fleet.Nodes, "nodes", 1000, "how many nodes there are, node-0 and so on")
	set.IntVar(&o.server.Fleet.Namespaces, "namespaces", 100, "how many namespaces there are")
	set.BoolVar(&o.server.Paged, "paged", false, "refuse to stream lists, as servers before 1.34 do")
	set.Float64Var(&o.churn.Changes, "changes", 0, "slices that change in a second")
	set.Float64Var(&o.churn.Adds, "adds", 0, "Services that come in a second")
	set.Float64Var(&o.churn.Deletes, "deletes", 0, "Services that go in a second")
	if err := set.Parse(arguments); err != nil {
		return options{}, err
	}
	if set.NArg() > 0 {
		return options{}, fmt.Errorf("%q is not understood; see -h", set.Args())
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
	fmt.Fprintf(out, "%d slices changed, %d services came, %d went\n", done.Changes, done.Adds, done.Deletes)
	return err
}
