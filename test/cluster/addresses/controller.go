package addresses

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// retryAfter is the delay before the controller retries after an error.
const retryAfter = time.Second

// finalizer is the mark that cloud controllers put on a Service whose load balancer they must
// remove before it goes.
const finalizer = "service.kubernetes.io/load-balancer-cleanup"

// router sets the routes by which outside clients reach the addresses.
type router interface {
	// apply replaces all routes of the controller with the given ones.
	apply(routes) error
}

// controller keeps the addresses of Services and the routes to them up to date. On any change it
// recomputes everything, so it does not matter which changes it saw, and after a restart it
// continues from what it finds.
type controller struct {
	client   kubernetes.Interface
	informer informers.SharedInformerFactory
	pools    []netip.Prefix
	router   router
	log      *slog.Logger

	held assignment    // the last assignment; statuses in the cache may be older
	wake chan struct{} // holds one signal; more would add nothing
}

func newController(client kubernetes.Interface, pools []netip.Prefix, router router, log *slog.Logger) *controller {
	return &controller{
		client: client, informer: informers.NewSharedInformerFactory(client, 0), pools: pools, router: router, log: log,
		held: assignment{}, wake: make(chan struct{}, 1),
	}
}

// run works until the context is canceled.
func (c *controller) run(ctx context.Context) error {
	watched := []cache.SharedIndexInformer{
		c.informer.Core().V1().Services().Informer(), c.informer.Core().V1().Nodes().Informer(),
		c.informer.Discovery().V1().EndpointSlices().Informer(),
	}
	var synced []cache.InformerSynced
	for _, informer := range watched {
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { c.changed() }, UpdateFunc: func(any, any) { c.changed() }, DeleteFunc: func(any) { c.changed() },
		})
		if err != nil {
			return fmt.Errorf("watch objects: %w", err)
		}
		synced = append(synced, registration.HasSynced)
	}
	c.informer.Start(ctx.Done())
	defer c.informer.Shutdown()
	// Acting on only some of the Services could give an address out twice.
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	c.changed()
	again := time.NewTimer(retryAfter)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.wake:
		case <-again.C:
		}
		again.Stop()
		if err := c.sync(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("cannot update all addresses and routes; retrying", "error", err)
			again.Reset(retryAfter)
		}
	}
}

func (c *controller) changed() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// sync brings addresses and routes in line with the objects. A Service that cannot be served does
// not hold up the others.
func (c *controller) sync(ctx context.Context) error {
	services, err := c.informer.Core().V1().Services().Lister().List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	nodes, err := c.informer.Core().V1().Nodes().Lister().List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	given, short := assign(c.pools, services, c.held)
	problems := []error{short}
	c.held = given
	hops, err := nextHops(given, services, c.informer.Discovery().V1().EndpointSlices().Lister(), nodes)
	if err == nil {
		// A client may use an address as soon as the status shows it, so the route goes first.
		err = c.router.apply(hops)
	}
	problems = append(problems, err)
	for _, s := range services {
		if isOurs(s) || err == nil { // if apply failed, routes may remain: keep the finalizer
			problems = append(problems, c.hold(ctx, s))
		}
		problems = append(problems, c.publish(ctx, s, given[s.UID]))
	}
	return errors.Join(problems...)
}

// hold keeps a Service from being deleted while routes to its addresses may exist, as cloud
// controllers do.
func (c *controller) hold(ctx context.Context, service *corev1.Service) error {
	if service.Spec.LoadBalancerClass != nil || slices.Contains(service.Finalizers, finalizer) == isOurs(service) {
		return nil
	}
	finalizers := slices.DeleteFunc(slices.Clone(service.Finalizers), func(f string) bool { return f == finalizer })
	if isOurs(service) {
		finalizers = append(finalizers, finalizer)
	}
	patch, err := json.Marshal(map[string]any{
		// The patch replaces the whole list, so nobody else may have changed it meanwhile.
		"metadata": map[string]any{"resourceVersion": service.ResourceVersion, "finalizers": finalizers},
	})
	if err == nil {
		_, err = c.client.CoreV1().Services(service.Namespace).Patch(ctx, service.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the watch will report the change
	}
	if err != nil {
		return fmt.Errorf("write finalizers of service %s/%s: %w", service.Namespace, service.Name, err)
	}
	return nil
}

// publish writes the addresses of a Service into its status.
func (c *controller) publish(ctx context.Context, service *corev1.Service, addrs []netip.Addr) error {
	have := service.Status.LoadBalancer.Ingress
	if !isOurs(service) && !slices.ContainsFunc(statusAddrs(service), c.gives) {
		return nil // not ours, or released already
	}
	if service.Spec.LoadBalancerClass != nil || service.DeletionTimestamp != nil {
		return nil
	}
	ingress := []corev1.LoadBalancerIngress{}
	for _, addr := range addrs {
		ingress = append(ingress, corev1.LoadBalancerIngress{IP: addr.String(), IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)})
	}
	if slices.EqualFunc(have, ingress, func(a, b corev1.LoadBalancerIngress) bool {
		return a.IP == b.IP && a.Hostname == "" && ptr.Deref(a.IPMode, "") == *b.IPMode
	}) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		// The UID guards against a new Service of the same name.
		"metadata": map[string]any{"uid": service.UID},
		"status":   map[string]any{"loadBalancer": map[string]any{"ingress": ingress}},
	})
	if err == nil {
		_, err = c.client.CoreV1().Services(service.Namespace).Patch(ctx, service.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the watch will report the change
	}
	if err != nil {
		return fmt.Errorf("write status of service %s/%s: %w", service.Namespace, service.Name, err)
	}
	c.log.Info("addresses", "service", service.Namespace+"/"+service.Name, "addresses", addrs)
	return nil
}

// gives reports whether an address is in a pool, so that this controller may have given it.
func (c *controller) gives(addr netip.Addr) bool {
	return slices.ContainsFunc(c.pools, func(pool netip.Prefix) bool { return pool.Contains(addr) })
}
