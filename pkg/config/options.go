package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

// Kubernetes is the value of the option source that stands for the API server; every other value is a path.
const Kubernetes = "kubernetes"

// envPrefix starts the name of every environment variable that the agent reads.
const envPrefix = "FAIRLEAD_"

// maxStateDir leaves room for the socket's name: an address of a unix socket has at most 107 bytes.
const maxStateDir = 107 - len("/"+socketName)

// Option is one row of the table that the flags, the environment variables, the keys of the configuration directory
// and the reference in docs/configuration.md are all made from.
type Option struct {
	Name    string   // the flag, and the key in the configuration directory
	Usage   string   // what it decides; the first word is lower case and there is no full stop
	Default string   // what applies when nothing is given
	Shown   string   // how a Default that is looked up at start-up is described
	Values  []string // the only values allowed; nil = what check says

	field  func(*Config) *string
	derive func(*Config) string     // instead of Default, from the options before this one
	check  func(value string) error // nil = any text
}

// Env returns the environment variable that sets the option.
func (o Option) Env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(o.Name, "-", "_"))
}

// validate returns what is wrong with a value, in words that go on after "is".
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
			Usage: `where Services and their endpoints come from: "kubernetes", or a directory or file of manifests`,
			field: func(c *Config) *string { return &c.Source },
		},
		{
			Name: "mode", Default: full, Values: []string{full, AccelerateOnly},
			Usage: "what runs here: everything that the other options say; only what --sockmap=true lets bypass TCP, beside kube-proxy and whatever gives " +
				"pods their network",
			field: func(c *Config) *string { return &c.Mode },
		},
		{
			Name: "kubeconfig", Shown: "the service account of the pod",
			Usage: "file with the address of the API server and the credentials",
			field: func(c *Config) *string { return &c.Kubeconfig },
		},
		{
			Name: "api-servers", Shown: "none", check: servers,
			Usage: "further API servers, HOST:PORT separated by commas, for when the one that the credentials name cannot be reached; those that the " +
				"cluster has are remembered besides. Each needs a certificate for its own name",
			field: func(c *Config) *string { return &c.APIServers },
		},
		{
			Name: "node-name", Shown: "the host name, in lower case", check: nodeName,
			Usage: "name of this node, as in the cluster's list of nodes",
			field: func(c *Config) *string { return &c.NodeName },
		},
		{
			Name: "cgroup-root", Shown: "the root of the cgroup2 file system", check: absoluteOrEmpty,
			Usage: "cgroup2 directory whose processes are balanced at connect",
			field: func(c *Config) *string { return &c.CgroupRoot },
		},
		{
			Name: "bpffs", Default: "/sys/fs/bpf", check: absolute,
			Usage: "mounted BPF file system in which maps and programs outlive the agent",
			field: func(c *Config) *string { return &c.BPFFS },
		},
		{
			Name: "state-dir", Default: DefaultStateDir, check: stateDir,
			Usage: "directory for run-time files, among them " + socketName + ", the socket that the commands talk to",
			field: func(c *Config) *string { return &c.StateDir },
		},
		{
			Name: "log-level", Default: "info", Values: []string{"debug", "info", "warn", "error"},
			Usage: "least important messages that are logged",
			field: func(c *Config) *string { return &c.LogLevel },
		},
		{
			Name: "log-format", Default: "text", Values: []string{"text", "json"},
			Usage: "format of the log's lines",
			field: func(c *Config) *string { return &c.LogFormat },
		},
		{
			Name: "algorithm", Default: "random", check: notEmpty,
			Usage: "how a backend is chosen for Services that name no algorithm of their own",
			field: func(c *Config) *string { return &c.Algorithm },
		},
		{
			Name: "hash-seed", Shown: "none", check: hashSeed,
			Usage: "any text, the same on all nodes, that the choice of a backend for flows from outside depends on: without it nobody can make up flows " +
				"that all reach the same backend",
			field: func(c *Config) *string { return &c.HashSeed },
		},
		{
			Name: "external-ips", Default: "all", Values: []string{"all", "external-only", "deny"},
			Usage: "who may use spec.externalIPs of a Service: everybody, only clients outside the cluster, nobody",
			field: func(c *Config) *string { return &c.ExternalIPs },
		},
		{
			Name: "devices", Shown: "auto; none with a cgroup-root, which is for trials, or --mode=accelerate-only", check: notEmpty,
			Usage: "network devices that clients outside come in by: auto (those of the default routes and those with addresses of the node), none, or " +
				"names separated by commas, where * at the end matches any text",
			field: func(c *Config) *string { return &c.Devices }, derive: alone(always("none"), onlyAtRoot("auto", "none")),
		},
		{
			Name: "xdp", Default: "auto", Values: []string{"auto", "native", "generic", "off"},
			Usage: "whether XDP handles packets from outside, before tc: where the driver can be relied upon to run it, wherever the driver runs it, in " +
				"the stack, nowhere",
			field: func(c *Config) *string { return &c.XDP },
		},
		{
			Name: "nodeport-addresses", Default: "primary", check: notEmpty,
			Usage: "addresses of the node at which NodePorts are open to clients outside: primary (the node's first of each family), or prefixes separated " +
				"by commas",
			field: func(c *Config) *string { return &c.NodePortAddresses },
		},
		{
			Name: "nodeport-range", Default: "30000-32767", check: notEmpty,
			Usage: "range of NodePorts, as configured in the API server",
			field: func(c *Config) *string { return &c.NodePortRange },
		},
		{
			Name: "snat-ports", Shown: "the longest range above 1023 that neither NodePorts nor the node's own sockets use",
			Usage: "ports of this node, FIRST-LAST, for connections from outside to backends on other nodes and, in their upper half, for masqueraded " +
				"connections of pods to the outside; each port is good for one connection to each backend",
			field: func(c *Config) *string { return &c.SnatPorts },
		},
		{
			Name: "external-clusterip", Default: "false", Values: []string{"true", "false"},
			Usage: "whether clients outside the cluster may use ClusterIPs, if the network routes them here",
			field: func(c *Config) *string { return &c.ExternalClusterIP },
		},
		{
			Name: "dsr", Default: "off", Values: []string{"off", "ipip", "geneve", "opt"},
			Usage: "whether a backend on another node answers clients outside directly, and how packets reach it: it does not; in IP; in Geneve; with an " +
				"IP option",
			field: func(c *Config) *string { return &c.DSR },
		},
		{
			Name: "vip-ping", Default: "false", Values: []string{"true", "false"},
			Usage: "whether the node answers pings from outside to ClusterIPs, external IPs and load balancer addresses of Services",
			field: func(c *Config) *string { return &c.VIPPing },
		},
		{
			Name: "reset-stale-tcp", Default: "false", Values: []string{"true", "false"},
			Usage: "whether TCP connections that the node's own processes have to an endpoint that was deleted are reset, as UDP sockets always are",
			field: func(c *Config) *string { return &c.ResetStaleTCP },
		},
		{
			Name: "opt-out-runtimes", Default: "kata*,gvisor*,runsc*,firecracker*,urunc*,edera*,kubevirt",
			Usage: "pods that are not balanced at the socket, by their RuntimeClass: names where * matches any text; kubevirt for its virtual machines",
			field: func(c *Config) *string { return &c.OptOutRuntimes },
		},
		{
			Name: "opt-out-meshes", Default: "istio,istio-ambient,linkerd,kuma,consul",
			Usage: "pods that are not balanced at the socket, by the service mesh that redirects their connections",
			field: func(c *Config) *string { return &c.OptOutMeshes },
		},
		{
			Name: "cni-cache", Default: "/var/lib/cni/results", check: absolute,
			Usage: "directory in which the container runtime remembers the network namespace of each pod",
			field: func(c *Config) *string { return &c.CNICache },
		},
		{
			Name: "host-routing", Default: "bpf", Values: []string{"bpf", "stack"},
			Usage: "with --pod-network=main, how packets of pods pass through the node: by programs from device to device; through its own stack, to " +
				"filter them there",
			field: func(c *Config) *string { return &c.HostRouting },
		},
		{
			Name: "masquerade", Default: "true", Values: []string{"true", "false"},
			Usage: "with --pod-network=main, whether packets from pods to the outside get an address of the node",
			field: func(c *Config) *string { return &c.Masquerade },
		},
		{
			Name: "native-cidrs", Shown: "none", check: prefixes,
			Usage: "networks, separated by commas, that know the pods' addresses besides the cluster's own: packets to them keep their source",
			field: func(c *Config) *string { return &c.NativeCIDRs },
		},
		{
			Name: "masquerade-config", Shown: "none",
			Usage: "file in the format of ip-masq-agent, YAML or JSON, with further networks that know the pods' addresses; it is read again when it " +
				"changes",
			field: func(c *Config) *string { return &c.MasqueradeConfig },
		},
		{
			Name: "l7-proxies", Shown: "none", check: proxies,
			Usage: "with --pod-network=main, processes of the node that pods may send their TCP connections through with the annotation " +
				"fairlead.io/l7-proxy: NAME=PORT separated by commas, with :pass after one that pods may do without while nothing listens there",
			field: func(c *Config) *string { return &c.L7Proxies },
		},
		{
			Name: "routing", Default: "none", Values: []string{"none", "native", "vxlan"},
			Usage: "with --pod-network=main, how packets reach pods on other nodes: the network knows the routes; by routes to the nodes on the same " +
				"links; through a tunnel",
			field: func(c *Config) *string { return &c.Routing },
		},
		{
			Name: "pod-device", Default: "auto", Values: []string{"auto", "veth", "netkit"},
			Usage: "with --pod-network=main, the type of the devices of new pods; auto is veth",
			field: func(c *Config) *string { return &c.PodDevice },
		},
		{
			Name: "big-tcp", Default: "false", Values: []string{"true", "false"},
			Usage: "with --pod-network=main, whether TCP packets of new pods may be larger than 64 KiB inside the node, where its kernel and devices " +
				"support it",
			field: func(c *Config) *string { return &c.BigTCP },
		},
		{
			Name: "bandwidth", Default: "false", Values: []string{"true", "false"},
			Usage: "with --pod-network=main or chained, whether pods are limited to the rates of their annotations kubernetes.io/egress-bandwidth for what " +
				"they send and kubernetes.io/ingress-bandwidth for what they receive; the devices that packets leave by get fq as their queue",
			field: func(c *Config) *string { return &c.Bandwidth },
		},
		{
			Name: "bbr", Default: "false", Values: []string{"true", "annotated", "false"},
			Usage: "with --bandwidth=true, whether new connections of pods use the congestion control BBR: all except those of pods with the annotation " +
				"fairlead.io/bbr=false; only those of pods with fairlead.io/bbr=true; none. Sockets that have chosen another keep it, and \"fairlead " +
				"init\" finds out whether the node can do it",
			field: func(c *Config) *string { return &c.BBR },
		},
		{
			Name: "sockmap", Shown: "false; true with --mode=accelerate-only", Values: []string{"true", "false"},
			Usage: "whether connections within the node bypass TCP while both ends converse, for pods that the annotation fairlead.io/accelerate=true, " +
				"--accelerate-selector or a SocketAcceleration selects",
			field: func(c *Config) *string { return &c.Sockmap }, derive: alone(always("true"), always("false")),
		},
		{
			Name: "accelerate-selector", Shown: "none",
			Usage: "with --sockmap=true, labels of pods that take part by default, such as app in (web, api); an annotation fairlead.io/accelerate=false " +
				"of the pod or its namespace comes first",
			field: func(c *Config) *string { return &c.AccelerateSelector },
		},
		{
			Name: "sockmap-blocking", Default: "false", Values: []string{"true", "false"},
			Usage: "with --sockmap=true, whether sockets that are read by blocking calls may bypass TCP too, where a signal ends such a call with EAGAIN " +
				"instead of restarting it",
			field: func(c *Config) *string { return &c.SockmapBlocking },
		},
		{
			Name: "sockmap-except", Default: "nginx,haproxy", check: programs,
			Usage: "with --sockmap=true, programs that stay with TCP, by the first 15 letters of their names, separated by commas: those that may splice, " +
				"or ask how much there is to read, only after they have been watched",
			field: func(c *Config) *string { return &c.SockmapExcept },
		},
		{
			Name: "pod-network", Default: "off", Values: []string{"off", "main", "chained"},
			Usage: "whether pods get their network from the plugin fairlead-cni: they do not; it creates their devices and gives them addresses; it comes " +
				"after another plugin that does",
			field: func(c *Config) *string { return &c.PodNetwork },
		},
		{
			Name: "pod-cidrs", Shown: "those of the Node", check: apart,
			Usage: "networks, separated by commas, that the pods of this node get their addresses from: one IPv4 and one IPv6 address, as far as both are " +
				"there",
			field: func(c *Config) *string { return &c.PodCIDRs },
		},
		{
			Name: "cni-conf-dir", Shown: "none", check: absoluteOrEmpty,
			Usage: "directory in which the container runtime looks for networks, such as /etc/cni/net.d: with --pod-network=main the agent writes its own " +
				"configuration there once it can serve pods",
			field: func(c *Config) *string { return &c.CNIConfDir },
		},
		{
			Name: "cni-conf-name", Default: "05-fairlead.conflist", check: listName,
			Usage: "name of that configuration file; the runtime takes the first by name",
			field: func(c *Config) *string { return &c.CNIConfName },
		},
		{
			Name: "metrics-address", Shown: "127.0.0.1:10249; with --mode=accelerate-only 127.0.0.1:10247; none where the source is files", check: listenAddress,
			Usage:  "HOST:PORT to serve Prometheus at /metrics, and /proxyMode as kube-proxy does there; empty for nowhere",
			field:  func(c *Config) *string { return &c.MetricsAddress },
			derive: alone(inCluster("127.0.0.1:10247"), inCluster("127.0.0.1:10249")), // the other is kube-proxy's
		},
		{
			Name: "healthz-address", Shown: ":10256; none where the source is files, and with --mode=accelerate-only", check: listenAddress,
			Usage:  "HOST:PORT to serve /healthz and /livez as kube-proxy does, for load balancers; empty for nowhere",
			field:  func(c *Config) *string { return &c.HealthzAddress },
			derive: alone(always(""), inCluster(":10256")),
		},
		{
			Name: "ready-address", Shown: "127.0.0.1:10247; none where the source is files", check: loopbackAddress,
			Usage: "HOST:PORT on loopback to serve /readyz and /livez, for a kubelet; empty for nowhere",
			field: func(c *Config) *string { return &c.ReadyAddress }, derive: inCluster("127.0.0.1:10247"),
		},
		{
			Name: configDir, Shown: "none", check: absoluteOrEmpty,
			Usage: "directory with one file per option, such as a mounted ConfigMap; not itself an option in there",
			field: func(c *Config) *string { return &c.ConfigDir },
		},
	}, conntrackOptions()...)
}

// AddFlags adds the flags of the options with these names, or of all options if none is named. A name that is no
// option is a mistake in the program and panics.
func AddFlags(flags *pflag.FlagSet, names ...string) {
	options := Options()
	for _, name := range names {
		if !slices.ContainsFunc(options, func(o Option) bool { return o.Name == name }) {
			panic("no such option: " + name)
		}
	}
	for _, o := range options {
		if len(names) > 0 && !slices.Contains(names, o.Name) {
			continue
		}
		usage := o.Usage
		if o.Values != nil {
			usage += " (" + strings.Join(o.Values, "|") + ")"
		}
		if o.Shown != "" {
			usage += " (default " + o.Shown + ")"
		}
		flags.String(o.Name, o.Default, usage)
	}
}

func oneLine(value string) error {
	if !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl) {
		return errors.New("not one line of plain text")
	}
	return nil
}

func notEmpty(value string) error {
	if value == "" {
		return errors.New("empty")
	}
	return nil
}

// hashSeed holds a seed to what is hard to guess.
func hashSeed(value string) error {
	const fewest, most = 16, 1024
	if value != "" && (len(value) < fewest || len(value) > most) {
		return fmt.Errorf("not %d to %d bytes: take what \"openssl rand -hex 16\" prints", fewest, most)
	}
	return nil
}

func absolute(value string) error {
	if !filepath.IsAbs(value) {
		return errors.New("not an absolute path")
	}
	return nil
}

func absoluteOrEmpty(value string) error {
	if value == "" {
		return nil
	}
	return absolute(value)
}

// listName holds a name to those that runtimes read as a list of plugins.
func listName(value string) error {
	if filepath.Base(value) != value || strings.HasPrefix(value, ".") || filepath.Ext(value) != ".conflist" {
		return errors.New("not the name of a file that ends in .conflist")
	}
	return nil
}

func stateDir(value string) error {
	if len(value) > maxStateDir {
		return fmt.Errorf("longer than %d bytes, and the address of a socket in it would not fit", maxStateDir)
	}
	return absolute(value)
}

// nodeName holds a name to what Kubernetes accepts. It becomes part of field selectors, where "," and "=" have a
// meaning, so this is more than good manners.
func nodeName(value string) error {
	err := errors.New("not a node's name: lower case letters, digits, - and ., at most 253")
	if value == "" || len(value) > 253 {
		return err
	}
	for label := range strings.SplitSeq(value, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return err
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return err
			}
		}
	}
	return nil
}
