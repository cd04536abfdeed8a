package config

import (
	"fmt"
	"slices"
	"strings"
)

// Kubernetes is the value of the option source that means the API server. Every other value is a
// path.
const Kubernetes = "kubernetes"

// envPrefix starts the name of every environment variable that the agent reads.
const envPrefix = "FAIRLEAD_"

// maxStateDir leaves room for the name of the socket: the address of a unix socket has at most 107
// bytes.
const maxStateDir = 107 - len("/"+socketName)

// Config holds the values of the options. Load checks them as far as it can without other packages.
type Config struct {
	Source      string // Kubernetes, or a path
	Mode        string // full or accelerate-only
	Kubeconfig  string // a file; empty = the service account of the pod
	APIServers  string // HOST:PORT with commas between them; empty = none
	NodeName    string
	CgroupRoot  string // empty = detect it
	BPFFS       string
	StateDir    string
	LogLevel    string // debug, info, warn or error
	LogFormat   string // text or json
	Algorithm   string // a name from package lb, which checks it
	HashSeed    string // empty = none
	ExternalIPs string // all, external-only or deny

	// NodeExternalIPs is true or false.
	NodeExternalIPs string

	ServiceQuota, NamespaceQuota string // limits, which package lb checks

	ServiceCIDRs string // auto, off, or comma-separated networks

	// Clients outside.
	Devices, XDP, NodePortAddresses, NodePortRange, SnatPorts, ExternalClusterIP, VIPPing, DSR, DSRAccept, TunnelSourcePorts string

	// ResetStaleTCP is true or false.
	ResetStaleTCP string
	ConfigDir     string // empty = none

	OptOutRuntimes string // comma-separated patterns, which package optout checks
	OptOutMeshes   string // comma-separated names, likewise
	CNICache       string

	PodNetwork                           string // off, main or chained
	Policies                             string // enforce, audit or off
	PolicyPods                           string // watch or slices
	HostRouting, Masquerade, NativeCIDRs string
	MasqueradeConfig                     string // a file; empty = none
	L7Proxies                            string // comma-separated proxies; empty = none
	Routing                              string // none, native or vxlan
	BigTCP                               string // true or false
	Bandwidth                            string // true or false
	BBR                                  string // true, annotated or false
	PodDevice                            string // auto, veth or netkit

	Sockmap            string // true or false
	AccelerateSelector string // a label selector, which package source parses; empty = no pods
	SockmapBlocking    string // true or false
	SockmapExcept      string // comma-separated names of programs

	// CNIConfDir and CNIConfName say where to write the runtime's network configuration; empty =
	// nowhere.
	CNIConfDir, CNIConfName string

	PodCIDRs string // comma-separated networks; empty = those of the Node

	Conntrack Conntrack

	// Where to listen, each HOST:PORT or empty to not listen.
	MetricsAddress, HealthzAddress, ReadyAddress string

	origins []Origin
}

// Option is one row of the table from which the flags, the environment variables, the keys of the
// configuration directory and the reference in docs/configuration.md are made.
type Option struct {
	Name    string   // the flag, and the key in the configuration directory
	Usage   string   // what it decides; starts in lower case and has no full stop
	Default string   // the value if nothing sets the option
	Shown   string   // describes the default if it is derived or found at start-up
	Values  []string // the only values allowed; nil = check decides

	field func(*Config) *string
	// derive computes the default from the options before this one; it replaces Default.
	derive func(*Config) string
	check  func(value string) error // nil = any text
	// idle is the value that asks for nothing, of an option that asks for something which AccelerateOnly does not
	// do; nil = it may have any value then.
	idle *string
}

// Env returns the environment variable that sets the option.
func (o Option) Env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(o.Name, "-", "_"))
}

// validate returns what is wrong with value, in words that continue "is".
func (o Option) validate(value string) error {
	if err := oneLine(value); err != nil {
		return err
	}
	if o.Values != nil && !slices.Contains(o.Values, value) {
		return fmt.Errorf("not one of %s", strings.Join(o.Values, ", "))
	}
	if o.check != nil {
		return o.check(value)
	}
	return nil
}

// Options returns the table of all options, in the order in which they are shown.
func Options() []Option {
	return append([]Option{
		{
			Name: "source", Default: Kubernetes, check: notEmpty,
			Usage: `where to read Services and endpoints: "kubernetes", or a directory or file of manifests`,
			field: func(c *Config) *string { return &c.Source },
		},
		{
			Name: "mode", Default: full, Values: []string{full, AccelerateOnly},
			Usage: "what the agent does. full: everything the other options ask for; accelerate-only: only socket acceleration (--sockmap=true), " +
				"beside kube-proxy and another pod network",
			field: func(c *Config) *string { return &c.Mode },
		},
		{
			Name: "kubeconfig", Shown: "the pod's service account",
			Usage: "file with the API server's address and the credentials",
			field: func(c *Config) *string { return &c.Kubeconfig },
		},
		{
			Name: "api-servers", Shown: "none", check: servers,
			Usage: "more API servers, as comma-separated HOST:PORT, for when the one in the credentials cannot be reached. The agent also remembers " +
				"the cluster's own API servers. Each needs a certificate for its own name",
			field: func(c *Config) *string { return &c.APIServers },
		},
		{
			Name: "node-name", Shown: "the host name in lower case", check: nodeName,
			Usage: "name of this node, as in the cluster's list of nodes",
			field: func(c *Config) *string { return &c.NodeName },
		},
		{
			Name: "cgroup-root", Shown: "the root of the cgroup2 file system", check: absoluteOrEmpty, idle: new(""),
			Usage: "cgroup2 directory. Sockets of its processes are balanced when they connect",
			field: func(c *Config) *string { return &c.CgroupRoot },
		},
		{
			Name: "bpffs", Default: "/sys/fs/bpf", check: absolute,
			Usage: "mounted BPF file system that keeps maps and programs while no agent runs",
			field: func(c *Config) *string { return &c.BPFFS },
		},
		{
			Name: "state-dir", Default: DefaultStateDir, check: stateDir,
			Usage: "directory for runtime files, such as " + socketName + ", the socket that the commands talk to",
			field: func(c *Config) *string { return &c.StateDir },
		},
		{
			Name: "log-level", Default: "info", Values: []string{"debug", "info", "warn", "error"},
			Usage: "lowest level of messages to log",
			field: func(c *Config) *string { return &c.LogLevel },
		},
		{
			Name: "log-format", Default: "text", Values: []string{"text", "json"},
			Usage: "format of log lines",
			field: func(c *Config) *string { return &c.LogFormat },
		},
		{
			Name: "algorithm", Default: "random", check: notEmpty,
			Usage: "how to choose a backend for Services that do not name an algorithm",
			field: func(c *Config) *string { return &c.Algorithm },
		},
		{
			Name: "hash-seed", Shown: "none", check: hashSeed,
			Usage: "secret text, the same on all nodes, that is mixed into the choice of a backend for flows from outside. Someone who does not know " +
				"it cannot craft flows that all reach the same backend",
			field: func(c *Config) *string { return &c.HashSeed },
		},
		{
			Name: "external-ips", Default: "all", Values: []string{"all", "external-only", "deny"},
			Usage: "who may use a Service's spec.externalIPs. all: everyone; external-only: only clients outside the cluster; deny: no one",
			field: func(c *Config) *string { return &c.ExternalIPs },
		},
		{
			Name: "node-external-ips", Default: "false", Values: []string{"true", "false"},
			Usage: "whether a Service's spec.externalIPs and load balancer addresses may be addresses that this node's own Node lists. Whoever may " +
				"create a Service can then take over any port of the node, also SSH's, the kubelet's and the API server's",
			field: func(c *Config) *string { return &c.NodeExternalIPs },
		},
		{
			Name: "devices", Shown: "auto; none with a cgroup-root, which is for trials, or --mode=accelerate-only", check: notEmpty, idle: new("none"),
			Usage: "network devices on which clients outside are served: auto (devices with default routes or with addresses of the node), none, or " +
				"comma-separated names. A name may end in * to match any suffix",
			field: func(c *Config) *string { return &c.Devices }, derive: alone(always("none"), onlyAtRoot("auto", "none")),
		},
		{
			Name: "xdp", Default: "auto", Values: []string{"auto", "native", "generic", "off"},
			Usage: "where packets from outside are handled by XDP, before tc. auto: where the driver's XDP is known to be reliable; native: wherever " +
				"the driver has it; generic: in the kernel's stack; off: nowhere",
			field: func(c *Config) *string { return &c.XDP },
		},
		{
			Name: "nodeport-addresses", Default: "primary", check: primaryOrPrefixes,
			Usage: "addresses of the node on which NodePorts are open to clients outside: primary (the node's first address of each family), or " +
				"comma-separated prefixes",
			field: func(c *Config) *string { return &c.NodePortAddresses },
		},
		{
			Name: "nodeport-range", Default: "30000-32767", check: ports,
			Usage: "the cluster's range of NodePorts. Must match the API server's",
			field: func(c *Config) *string { return &c.NodePortRange },
		},
		{
			Name: "snat-ports", Shown: "the longest range above 1023 that is used by neither NodePorts nor the node's own sockets", check: portsOrEmpty,
			Usage: "range of this node's ports, FIRST-LAST, used as source ports for connections from outside to backends on other nodes. If " +
				"pods are masqueraded, the upper half is for their connections and only the lower half for those from outside. Each port " +
				"serves one connection to each backend",
			field: func(c *Config) *string { return &c.SnatPorts },
		},
		{
			Name: "external-clusterip", Default: "false", Values: []string{"true", "false"}, idle: new("false"),
			Usage: "whether clients outside the cluster may use ClusterIPs, if the network routes them to this node",
			field: func(c *Config) *string { return &c.ExternalClusterIP },
		},
		{
			Name: "dsr", Default: "off", Values: []string{"off", "ipip", "geneve", "opt"}, idle: new("off"),
			Usage: "whether a backend on another node answers clients outside directly (direct server return), and how packets reach it. off: no, " +
				"replies return through this node; ipip: in an IP header; geneve: in Geneve; opt: with an IP option",
			field: func(c *Config) *string { return &c.DSR },
		},
		{
			Name: "dsr-accept", Default: "auto", Values: []string{"auto", "true", "false"}, idle: new("auto"),
			Usage: "whether other nodes may forward packets to backends on this node, to be answered directly, and whether Services may ask for that by " +
				"annotation. auto: if dsr is not off. Set it on all nodes before any of them forwards packets",
			field: func(c *Config) *string { return &c.DSRAccept },
		},
		{
			Name: "tunnel-source-ports", Default: "reserved", Values: []string{"reserved", "any"}, idle: new("reserved"),
			Usage: "the source ports from which this node takes what other nodes send through the tunnel (--routing=vxlan) and in Geneve (--dsr=geneve). " +
				"reserved: those that nodes use for nothing else; any: also others, while nodes are upgraded from a version that uses others",
			field: func(c *Config) *string { return &c.TunnelSourcePorts },
		},
		{
			Name: "vip-ping", Default: "false", Values: []string{"true", "false"}, idle: new("false"),
			Usage: "whether the node answers pings from outside to ClusterIPs, external IPs and load balancer addresses",
			field: func(c *Config) *string { return &c.VIPPing },
		},
		{
			Name: "reset-stale-tcp", Default: "false", Values: []string{"true", "false"}, idle: new("false"),
			Usage: "whether to reset TCP connections from processes on this node to an endpoint that was deleted. UDP sockets are always aborted",
			field: func(c *Config) *string { return &c.ResetStaleTCP },
		},
		{
			Name: "opt-out-runtimes", Default: "kata*,gvisor*,runsc*,firecracker*,urunc*,edera*,kubevirt",
			Usage: "pods that are not balanced at the socket, by RuntimeClass. * matches any text; kubevirt stands for KubeVirt's virtual machines",
			field: func(c *Config) *string { return &c.OptOutRuntimes },
		},
		{
			Name: "opt-out-meshes", Default: "istio,istio-ambient,linkerd,kuma,consul",
			Usage: "pods that are not balanced at the socket, by the service mesh that redirects their connections",
			field: func(c *Config) *string { return &c.OptOutMeshes },
		},
		{
			Name: "cni-cache", Default: "/var/lib/cni/results", check: absolute,
			Usage: "directory where the container runtime records each pod's network namespace",
			field: func(c *Config) *string { return &c.CNICache },
		},
		{
			Name: "host-routing", Default: "bpf", Values: []string{"bpf", "stack"},
			Usage: "with --pod-network=main, how pods' packets cross the node. bpf: programs send them from device to device; stack: through the " +
				"node's network stack, where they can be filtered",
			field: func(c *Config) *string { return &c.HostRouting },
		},
		{
			Name: "masquerade", Default: "true", Values: []string{"true", "false"},
			Usage: "with --pod-network=main, whether packets that pods send out of the cluster get an address of the node",
			field: func(c *Config) *string { return &c.Masquerade },
		},
		{
			Name: "native-cidrs", Shown: "none", check: prefixes, idle: new(""),
			Usage: "comma-separated networks, besides the cluster's own, that can route pod addresses. Packets to them keep the pod's address",
			field: func(c *Config) *string { return &c.NativeCIDRs },
		},
		{
			Name: "masquerade-config", Shown: "none", idle: new(""),
			Usage: "file in ip-masq-agent's format, YAML or JSON, with more networks that can route pod addresses. It is read again when it changes",
			field: func(c *Config) *string { return &c.MasqueradeConfig },
		},
		{
			Name: "l7-proxies", Shown: "none", check: proxies, idle: new(""),
			Usage: "with --pod-network=main, proxies on the node that a pod can choose for its TCP connections with the annotation " +
				"fairlead.io/l7-proxy: comma-separated NAME=PORT. Add :pass to let the pods connect directly while the proxy is not listening",
			field: func(c *Config) *string { return &c.L7Proxies },
		},
		{
			Name: "routing", Default: "none", Values: []string{"none", "native", "vxlan"}, idle: new("none"),
			Usage: "with --pod-network=main, how packets reach pods on other nodes. none: the network does it; native: routes to nodes on the same " +
				"links; vxlan: through a tunnel",
			field: func(c *Config) *string { return &c.Routing },
		},
		{
			Name: "pod-device", Default: "auto", Values: []string{"auto", "veth", "netkit"},
			Usage: "with --pod-network=main, the type of device for new pods. auto means veth",
			field: func(c *Config) *string { return &c.PodDevice },
		},
		{
			Name: "big-tcp", Default: "false", Values: []string{"true", "false"}, idle: new("false"),
			Usage: "with --pod-network=main, whether TCP packets within the node may be larger than 64 KiB, for new pods, if the kernel and the " +
				"devices support it",
			field: func(c *Config) *string { return &c.BigTCP },
		},
		{
			Name: "bandwidth", Default: "false", Values: []string{"true", "false"}, idle: new("false"),
			Usage: "with --pod-network=main or chained, whether to enforce the rates in pods' annotations kubernetes.io/egress-bandwidth (what they " +
				"send) and kubernetes.io/ingress-bandwidth (what they receive). Devices that this traffic leaves by get the fq queue",
			field: func(c *Config) *string { return &c.Bandwidth },
		},
		{
			Name: "bbr", Default: "false", Values: []string{"true", "annotated", "false"}, idle: new("false"),
			Usage: "with --bandwidth=true, which pods use the congestion control BBR for new connections. true: all except those with the annotation " +
				"fairlead.io/bbr=false; annotated: only those with fairlead.io/bbr=true; false: none. A program that chooses a congestion control " +
				"itself keeps it. \"fairlead init\" finds out whether the node supports BBR",
			field: func(c *Config) *string { return &c.BBR },
		},
		{
			Name: "sockmap", Shown: "false; true with --mode=accelerate-only", Values: []string{"true", "false"}, idle: new("true"),
			Usage: "whether connections within the node bypass TCP while both ends take turns, for pods selected by the annotation " +
				"fairlead.io/accelerate=true, by --accelerate-selector or by a SocketAcceleration",
			field: func(c *Config) *string { return &c.Sockmap }, derive: alone(always("true"), always("false")),
		},
		{
			Name: "accelerate-selector", Shown: "none",
			Usage: "with --sockmap=true, label selector of pods to accelerate without an annotation, such as app in (web, api). The annotation " +
				"fairlead.io/accelerate=false on the pod or its namespace takes precedence",
			field: func(c *Config) *string { return &c.AccelerateSelector },
		},
		{
			Name: "sockmap-blocking", Default: "false", Values: []string{"true", "false"},
			Usage: "with --sockmap=true, whether to accelerate sockets that are read by blocking calls too. On them, whatever wakes such a call without " +
				"data, as a signal or a reset does, ends it with EAGAIN",
			field: func(c *Config) *string { return &c.SockmapBlocking },
		},
		{
			Name: "sockmap-except", Default: "nginx,haproxy", check: programs,
			Usage: "with --sockmap=true, programs whose connections always stay with TCP: comma-separated names, of longer ones the first 15 letters. " +
				"List programs that use splice, or ask how much there is to read, only some time after a connection begins",
			field: func(c *Config) *string { return &c.SockmapExcept },
		},
		{
			Name: "pod-network", Default: "off", Values: []string{"off", "main", "chained"}, idle: new("off"),
			Usage: "whether the CNI plugin fairlead-cni gives pods their network. off: no; main: it creates their devices and assigns addresses; " +
				"chained: it runs after another plugin that does",
			field: func(c *Config) *string { return &c.PodNetwork },
		},
		{
			Name: "policies", Shown: "enforce with --pod-network=main, else off", Values: []string{"enforce", "audit", "off"}, idle: new("off"),
			Usage: "with --pod-network=main, what becomes of NetworkPolicies and ClusterNetworkPolicies. enforce: pods get and send only what they " +
				"accept; audit: what they deny is only reported; off: they are ignored, and counted",
			field: func(c *Config) *string { return &c.Policies }, derive: withPodNetwork("enforce", "off"),
		},
		{
			Name: "policy-pods", Default: "watch", Values: []string{"watch", "slices"}, idle: new("watch"),
			Usage: "how the pods of all nodes become known while policies name pods. watch: each agent watches them; slices: fairlead controller watches " +
				"them and writes PodSlices, which agents read",
			field: func(c *Config) *string { return &c.PolicyPods },
		},
		{
			Name: "service-cidrs", Default: "auto", check: autoOffOrPrefixes,
			Usage: "the networks from which Services get their ClusterIPs. What pods and processes of the node send to where no Service is in these, or to a " +
				"port that a ClusterIP does not have, is refused at once. auto: as the cluster's ServiceCIDRs say, which Kubernetes has from 1.33 on; off: " +
				"nothing is refused; or comma-separated networks",
			field: func(c *Config) *string { return &c.ServiceCIDRs },
		},
		{
			Name: "pod-cidrs", Shown: "the Node's spec.podCIDRs", check: apart, idle: new(""),
			Usage: "comma-separated networks from which pods on this node get addresses: one IPv4 and one IPv6 address each, if there are networks of " +
				"both families",
			field: func(c *Config) *string { return &c.PodCIDRs },
		},
		{
			Name: "cni-conf-dir", Shown: "none", check: absoluteOrEmpty, idle: new(""),
			Usage: "directory where the container runtime looks for network configurations, such as /etc/cni/net.d. With --pod-network=main, the agent " +
				"writes its own there when it is ready to serve pods",
			field: func(c *Config) *string { return &c.CNIConfDir },
		},
		{
			Name: "cni-conf-name", Default: "05-fairlead.conflist", check: listName,
			Usage: "name of fairlead's file in that directory. The runtime uses the file whose name sorts first",
			field: func(c *Config) *string { return &c.CNIConfName },
		},
		{
			Name: "metrics-address", Shown: "127.0.0.1:10249; 127.0.0.1:10247 with --mode=accelerate-only; none if --source is files", check: listenAddress,
			Usage: "HOST:PORT that serves Prometheus metrics at /metrics, and /proxyMode as kube-proxy does. Empty: not served",
			field: func(c *Config) *string { return &c.MetricsAddress },
			// 10249 is kube-proxy's, which may be running.
			derive: alone(inCluster("127.0.0.1:10247"), inCluster("127.0.0.1:10249")),
		},
		{
			Name: "healthz-address", Shown: ":10256; none if --source is files or with --mode=accelerate-only", check: listenAddress, idle: new(""),
			Usage:  "HOST:PORT that serves /healthz and /livez as kube-proxy does, for load balancers. Empty: not served",
			field:  func(c *Config) *string { return &c.HealthzAddress },
			derive: alone(always(""), inCluster(":10256")),
		},
		{
			Name: "ready-address", Shown: "127.0.0.1:10247; none if --source is files", check: loopbackAddress,
			Usage: "loopback HOST:PORT that serves /readyz and /livez, for the kubelet. Empty: not served",
			field: func(c *Config) *string { return &c.ReadyAddress }, derive: inCluster("127.0.0.1:10247"),
		},
		{
			Name: configDir, Shown: "none", check: absoluteOrEmpty,
			Usage: "directory with one file per option, such as a mounted ConfigMap. This option itself cannot be in it",
			field: func(c *Config) *string { return &c.ConfigDir },
		},
	}, append(conntrackOptions(), quotaOptions()...)...)
}
