// Command addresses gives addresses to Services of type LoadBalancer, as the controller of a cloud would, and tells the
// router in front of the cluster by which nodes they are reached: by all, or with externalTrafficPolicy Local by those
// that have an endpoint. It runs until it is told to end; addresses and routes stay.
//
//	go run ./test/cluster/addresses -family ipv4     for the running cluster
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.io/fairlead/test/cluster/place"
	"fairlead.io/fairlead/test/cluster/plan"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "addresses:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("find cache: %w", err)
	}
	flags := flag.NewFlagSet("addresses", flag.ContinueOnError)
	prefix := flags.String("prefix", "fl", "prefix of the cluster, by which what follows is found")
	kubeconfig := flags.String("kubeconfig", "", "file with the API server and the credentials (default: the cluster's)")
	control := flags.String("control", "", "network namespace from which the API server is reached (default: the cluster's)")
	router := flags.String("router", "", "network namespace that gets the routes (default: the cluster's)")
	family := flags.String("family", string(plan.IPv4), "families of the cluster: ipv4, dual or ipv6")
	if err := flags.Parse(args); err != nil {
		return err
	}
	setDefault(kubeconfig, filepath.Join(cache, "fairlead", "cluster", *prefix, "kubeconfig"))
	setDefault(control, filepath.Join("/run/netns", *prefix+"-control"))
	setDefault(router, filepath.Join("/run/netns", *prefix+"-router"))
	families, err := plan.ParseFamily(*family)
	if err != nil {
		return err
	}
	client, err := newClient(*kubeconfig, place.Place{Netns: *control})
	if err != nil {
		return err
	}
	routes, err := openTable(*router)
	if err != nil {
		return err
	}
	defer routes.close()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	return newController(client, families.Balancers(), routes, log).run(ctx)
}

func setDefault(value *string, to string) {
	if *value == "" {
		*value = to
	}
}

// newClient returns a client whose connections begin in a place.
func newClient(kubeconfig string, from place.Place) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s (is the cluster up?): %w", kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(dialFrom(config, from))
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

// dialFrom makes connections begin in a place. A socket stays in the namespace in which it was made, and one of an
// address, which needs no resolver, is made by the goroutine that dials.
func dialFrom(config *rest.Config, from place.Place) *rest.Config {
	config.Dial = func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = from.Do(func() error {
			var dialer net.Dialer
			var err error
			conn, err = dialer.DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
	return config
}
