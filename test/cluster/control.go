package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"fairlead.io/fairlead/test/cluster/pki"
	"fairlead.io/fairlead/test/cluster/place"
	"fairlead.io/fairlead/test/cluster/plan"
)

const (
	apiServerName   = "kube-apiserver"
	controllersName = "kube-controller-manager"
	schedulerName   = "kube-scheduler"
)

// apiServer returns the address at which everything in the cluster reaches the API server.
func apiServer(f plan.Family) netip.AddrPort {
	return netip.AddrPortFrom(f.Control()[0].Addr(), 6443)
}

// makeCredentials makes the certificates, keys and kubeconfig files of the control plane and the
// nodes.
func (c *Cluster) makeCredentials() error {
	dir := c.path("pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make credentials: %w", err)
	}
	ca, err := pki.NewAuthority(dir, "ca")
	if err != nil {
		return err
	}
	front, err := pki.NewAuthority(dir, "front-proxy-ca")
	if err != nil {
		return err
	}
	if err := front.Issue("front-proxy", pki.Subject{Name: "front-proxy"}); err != nil {
		return err
	}
	if err := pki.NewSigningKey(dir, "service-accounts"); err != nil {
		return err
	}
	server := pki.Subject{
		Name:  "kube-apiserver",
		DNS:   []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		Addrs: c.Family.Kubernetes(),
	}
	for _, p := range c.Family.Control() {
		server.Addrs = append(server.Addrs, p.Addr())
	}
	admins := []string{"system:masters"}
	clients := map[string]pki.Subject{
		"apiserver":         server,
		"apiserver-kubelet": {Name: "kube-apiserver-kubelet-client", Groups: admins},
		"admin":             {Name: "admin", Groups: admins},
		"controllers":       {Name: "system:kube-controller-manager"},
		"scheduler":         {Name: "system:kube-scheduler"},
		"proxy":             {Name: "system:kube-proxy"},
	}
	for _, name := range c.nodeNames() {
		clients[name] = pki.Subject{Name: "system:node:" + name, Groups: []string{"system:nodes"}}
	}
	for file, subject := range clients {
		if err := ca.Issue(file, subject); err != nil {
			return err
		}
		if err := ca.WriteKubeconfig(c.path("pki", file+".kubeconfig"), "https://"+apiServer(c.Family).String(), file); err != nil {
			return err
		}
	}
	return ca.WriteKubeconfig(c.kubeconfig(), "https://"+apiServer(c.Family).String(), "admin")
}

// startControl starts the control plane and waits until its API is ready.
func (c *Cluster) startControl() error {
	return inOrder(c.startEtcd, c.startAPIServer, c.startAddresses)
}

// startControllers starts the controller manager and the scheduler.
func (c *Cluster) startControllers() error {
	if _, err := c.startControlled(controllersName, c.controllerFlags()...); err != nil {
		return err
	}
	_, err := c.startControlled(schedulerName, "--leader-elect=false", "--kube-api-qps=200", "--kube-api-burst=400",
		"--kubeconfig="+c.path("pki", "scheduler.kubeconfig"), "--authentication-kubeconfig="+c.path("pki", "scheduler.kubeconfig"),
		"--authorization-kubeconfig="+c.path("pki", "scheduler.kubeconfig"))
	return err
}

// startAPIServer starts the API server, waits until it is ready, and starts the controllers.
func (c *Cluster) startAPIServer() error {
	server, err := c.startControlled(apiServerName, c.apiServerFlags()...)
	if err != nil {
		return err
	}
	client, err := c.apiClient()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	err = server.await(func(ctx context.Context) error {
		return get(ctx, client, "https://"+apiServer(c.Family).String()+"/readyz")
	})
	if err != nil {
		return err
	}
	return c.startControllers()
}

// stopAPIServer kills the API server, as the loss of its machine would, and returns when it is
// gone. The controllers stop with it, as elected controllers do when they cannot renew their lease
// for ten seconds: otherwise they would later take nodes for lost that merely could not report
// their health meanwhile. Everything else keeps running.
func (c *Cluster) stopAPIServer() error {
	for _, name := range []string{controllersName, schedulerName, apiServerName} {
		if err := c.stopControlled(name); err != nil {
			return err
		}
	}
	return nil
}

// stopControlled kills a program of the control plane and returns when it is gone.
func (c *Cluster) stopControlled(name string) error {
	pids, err := c.cgroups.Pids(c.name("control"))
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || program != c.program(name) {
			continue // another program, or one that has ended
		}
		return kill(pid)
	}
	return fmt.Errorf("stop %s: it is not running", name)
}

// giveAddresses is the subcommand of this program that assigns addresses to Services of type
// LoadBalancer.
const giveAddresses = "give-addresses"

// startAddresses starts the stand-in for a cloud's controller.
func (c *Cluster) startAddresses() error {
	where := c.netns("control")
	where.Cgroup = c.cgroups.Dir(c.name("control"))
	cmd := exec.Command(c.path("cluster"), giveAddresses, c.kubeconfig(), netnsPath(c.name("router")), string(c.Family))
	_, err := c.start(where, giveAddresses, cmd)
	return err
}

// startControlled starts a program of the control plane.
func (c *Cluster) startControlled(name string, flags ...string) (*process, error) {
	where := c.netns("control")
	where.Cgroup = c.cgroups.Dir(c.name("control"))
	return c.start(where, name, exec.Command(c.program(name), flags...))
}

// startEtcd starts etcd, which only the API server reaches, over loopback.
func (c *Cluster) startEtcd() error {
	const url, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	_, err := c.startControlled("etcd", "--data-dir="+c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+url, "--advertise-client-urls="+url,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	return err
}

func (c *Cluster) apiServerFlags() []string {
	file := func(name string) string { return c.path("pki", name) }
	return []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address=" + apiServer(c.Family).Addr().String(), "--secure-port=" + strconv.Itoa(int(apiServer(c.Family).Port())),
		"--service-cluster-ip-range=" + join(c.Family.Services()),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--client-ca-file=" + file("ca.crt"), "--tls-cert-file=" + file("apiserver.crt"), "--tls-private-key-file=" + file("apiserver.key"),
		"--kubelet-client-certificate=" + file("apiserver-kubelet.crt"), "--kubelet-client-key=" + file("apiserver-kubelet.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + file("service-accounts.pub"), "--service-account-signing-key-file=" + file("service-accounts.key"),
		"--requestheader-client-ca-file=" + file("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + file("front-proxy.crt"), "--proxy-client-key-file=" + file("front-proxy.key"),
		"--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000", "--shutdown-delay-duration=0s",
	}
}

func (c *Cluster) controllerFlags() []string {
	config := c.path("pki", "controllers.kubeconfig")
	flags := []string{
		"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
		"--leader-elect=false", "--controllers=*", "--use-service-account-credentials",
		"--root-ca-file=" + c.path("pki", "ca.crt"), "--service-account-private-key-file=" + c.path("pki", "service-accounts.key"),
		"--cluster-signing-cert-file=" + c.path("pki", "ca.crt"), "--cluster-signing-key-file=" + c.path("pki", "ca.key"),
		"--allocate-node-cidrs=true", "--cluster-cidr=" + join(c.Family.Pods()), "--service-cluster-ip-range=" + join(c.Family.Services()),
		"--kube-api-qps=200", "--kube-api-burst=400", "--concurrent-service-endpoint-syncs=10",
	}
	share := c.Family.NodePods(1)
	if len(share) == 1 {
		return append(flags, fmt.Sprintf("--node-cidr-mask-size=%d", share[0].Bits()))
	}
	return append(flags, fmt.Sprintf("--node-cidr-mask-size-ipv4=%d", share[0].Bits()), fmt.Sprintf("--node-cidr-mask-size-ipv6=%d", share[1].Bits()))
}

// zones is the number of zones. The nodes are spread over them in turn, as some specs require.
const zones = 3

// registerNodes creates the nodes with the pod ranges of the plan. The controllers would assign
// ranges in the order in which kubelets register.
func (c *Cluster) registerNodes() error {
	type object = map[string]any
	var nodes []object
	for i, name := range c.nodeNames() {
		var pods []string
		for _, p := range c.Family.NodePods(i + 1) {
			pods = append(pods, p.String())
		}
		labels := object{"topology.kubernetes.io/zone": "zone" + strconv.Itoa(i%zones+1), "topology.kubernetes.io/region": "region1"}
		nodes = append(nodes, object{
			"apiVersion": "v1", "kind": "Node", "metadata": object{"name": name, "labels": labels},
			"spec": object{"podCIDR": pods[0], "podCIDRs": pods},
		})
	}
	list, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": nodes})
	if err != nil {
		return fmt.Errorf("register nodes: %w", err)
	}
	if _, err := c.runKubectl(list, "create", "-f", "-"); err != nil {
		return fmt.Errorf("register nodes: %w", err)
	}
	return nil
}

// apiClient returns an API client that connects from the control plane's network.
func (c *Cluster) apiClient() (*http.Client, error) {
	pair, err := tls.LoadX509KeyPair(c.path("pki", "admin.crt"), c.path("pki", "admin.key"))
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	ca, err := os.ReadFile(c.path("pki", "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots},
		DialContext:     dialFrom(c.netns("control")),
	}}, nil
}

// dialFrom returns a function that dials from a place. The address must be an IP address.
func dialFrom(p place.Place) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = p.Do(func() error {
			conn, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
}

func get(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}

func join[T fmt.Stringer](values []T) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ",")
}
