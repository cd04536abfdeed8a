// Package addresses assigns addresses to Services of type LoadBalancer, as a cloud's controller
// would, and tells the router in front of the cluster which nodes to reach them by: all nodes, or
// with externalTrafficPolicy Local those that have an endpoint.
package addresses

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.io/fairlead/test/cluster/plan"
)

// Run works until the context is canceled; addresses and routes stay. It reaches the API server as
// the kubeconfig file says, and router is the file of the network namespace that gets the routes.
func Run(ctx context.Context, kubeconfig, router string, family plan.Family) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	routes, err := openTable(router)
	if err != nil {
		return err
	}
	defer routes.close()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := newController(client, family.Balancers(), routes, log).run(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
