package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"fairlead.io/fairlead/test/cluster/plan"
)

// Containerd returns the configuration of the container runtime.
func Containerd(pauseImage string) string {
	return fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  # Without CAP_SYS_RESOURCE, which root lacks on some machines, nobody may lower a score, and runc fails at it.
  restrict_oom_score_adj = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`, RuntimeSocket, pauseImage)
}

// RuntimeSocket is where the container runtime listens on a node.
const RuntimeSocket = "/run/containerd/containerd.sock"

// KubeletConfig is what differs between kubelets.
type KubeletConfig struct {
	Family     plan.Family
	CgroupRoot string // of the node, as seen from the root of every hierarchy
	ClientCA   string // the path of the certificate by which clients are known
}

// Kubelet returns the configuration of a kubelet.
func Kubelet(c KubeletConfig) ([]byte, error) {
	config := object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
			"x509":      object{"clientCAFile": c.ClientCA},
		},
		"authorization":            object{"mode": "Webhook"},
		"clusterDNS":               []string{c.Family.DNS()[0].String()},
		"clusterDomain":            "cluster.local",
		"containerRuntimeEndpoint": "unix://" + RuntimeSocket,
		"resolvConf":               "/etc/resolv.conf",
		"maxPods":                  200,
		"serializeImagePulls":      false,
	}
	maps.Copy(config, shared(c.CgroupRoot))
	return config.encode()
}

// KubeletPatch returns what somebody else's configuration of a kubelet has to be patched with.
func KubeletPatch(cgroupRoot string) ([]byte, error) { return shared(cgroupRoot).encode() }

// shared returns what a kubelet has to be told because its node is namespaces of a machine that has others.
func shared(cgroupRoot string) object {
	return object{
		"cgroupDriver": "cgroupfs", // there is no systemd in a node
		"cgroupRoot":   cgroupRoot,
		"failCgroupV1": false,
		"failSwapOn":   false,
		"oomScoreAdj":  0, // lowering it needs CAP_SYS_RESOURCE
		// The disk and the memory are the machine's: nothing here is to be evicted or deleted because they run short.
		"evictionHard": object{
			"memory.available": "100Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
			"imagefs.available": "0%", "imagefs.inodesFree": "0%",
		},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"imageMinimumGCAge":           "24h",
	}
}

// Bridge returns the configuration of the bridge plugin for a node's range of pods. Masquerading is not the plugin's,
// which would do it to what goes to the pods of other nodes too.
func Bridge(pods []netip.Prefix) ([]byte, error) {
	var ranges [][]object
	var routes []object
	for _, p := range pods {
		ranges = append(ranges, []object{{"subnet": p.String()}})
		routes = append(routes, object{"dst": anywhere(p.Addr()).String()})
	}
	return object{
		"cniVersion": "1.0.0",
		"name":       "pods",
		"plugins": []object{
			{
				"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false,
				"ipam": object{"type": "host-local", "ranges": ranges, "routes": routes},
			},
			{"type": "portmap", "capabilities": object{"portMappings": true}},
			{"type": "bandwidth", "capabilities": object{"bandwidth": true}},
		},
	}.encode()
}

// Masquerade returns the nft rules by which what pods send to the outside leaves with the address of the node.
func Masquerade(f plan.Family) string {
	var b strings.Builder
	b.WriteString("table inet pods {\n\tchain postrouting {\n\t\ttype nat hook postrouting priority srcnat + 10;\n")
	for i, pods := range f.Pods() {
		family := "ip"
		if pods.Addr().Is6() {
			family = "ip6"
		}
		fmt.Fprintf(&b, "\t\t%s saddr %s %s daddr != { %s, %s } oifname eth0 masquerade\n", family, pods, family, pods, f.Underlay()[i])
	}
	b.WriteString("\t}\n}\n")
	return b.String()
}

// object is JSON, which whoever reads YAML reads too.
type object map[string]any

func (o object) encode() ([]byte, error) {
	text, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	return append(text, '\n'), nil
}

// anywhere returns the range of all addresses of the same family.
func anywhere(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
