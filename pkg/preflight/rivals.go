package preflight

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Chain is an nftables chain, which may have been created through iptables.
type Chain struct {
	Table, Name string
	// Drops means that the kernel shows it the IPv4 packets that it forwards, and that it drops those
	// that no rule accepts.
	Drops bool
}

const maxNamed = 5 // names listed; the rest is counted

// named lists names, but not too many of them.
func named(list []string) string {
	slices.Sort(list)
	list = slices.Compact(list)
	if more := len(list) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:maxNamed], ", "), more)
	}
	return strings.Join(list, ", ")
}

// kubeProxy looks for a kube-proxy: its process, the device of its IPVS mode, its chains. It
// ignores what a kubelet creates.
func (n *Node) kubeProxy() Line {
	const check = "kube-proxy"
	var found, unseen []string
	processes, err := n.processes()
	if processes["kube-proxy"] {
		found = append(found, "its process")
	}
	if err != nil {
		unseen = append(unseen, "processes ("+err.Error()+")")
	}
	if n.exists("sys/class/net/kube-ipvs0") {
		found = append(found, "device kube-ipvs0")
	}
	chains, err := n.Chains()
	if err != nil {
		unseen = append(unseen, "chains of nftables ("+err.Error()+")")
	}
	rules := 0
	for _, c := range chains {
		if isProxyChain(c) {
			rules++
		}
	}
	if rules > 0 {
		found = append(found, fmt.Sprintf("%d chains of its rules", rules))
	}
	if tables, err := n.read("proc/net/ip_tables_names"); err == nil && tables != "" {
		unseen = append(unseen, "chains of legacy iptables, which has tables here")
	}
	switch {
	case len(found) > 0:
		return Line{check, Warn, strings.Join(found, ", ") + listed("; not checked: ", unseen), "delete its DaemonSet; once the connections that its rules translate have ended, run \"kube-proxy --cleanup\" on every node; " +
			"until then its rules get whatever fairlead does not handle first"}
	case len(unseen) > 0:
		return Line{check, Unknown, "none found" + listed("; not checked: ", unseen), "run the command as root, on the node"}
	}
	return Line{check, OK, "no process, no device kube-ipvs0, no chains", ""}
}

func listed(before string, list []string) string {
	if len(list) == 0 {
		return ""
	}
	return before + strings.Join(list, ", ")
}

func isProxyChain(c Chain) bool {
	if c.Table == "kube-proxy" {
		return true
	}
	for _, prefix := range []string{"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-SVC-", "KUBE-SEP-", "KUBE-PROXY-", "KUBE-EXT-"} {
		if strings.HasPrefix(c.Name, prefix) {
			return true
		}
	}
	return false
}

// networkDevices returns the owners of devices that other plugins create, by prefix of the name.
func networkDevices() map[string]string {
	return map[string]string{
		"cni0": "bridge", "flannel": "Flannel", "cilium_": "Cilium", "cali": "Calico", "vxlan.calico": "Calico", "vxlan-v6.calico": "Calico",
		"antrea-": "Antrea", "weave": "Weave", "kube-bridge": "kube-router", "ovn-k8s-": "OVN-Kubernetes", "kindnet": "kindnet",
	}
}

// networkChains is the same for chains and tables.
func networkChains() map[string]string {
	return map[string]string{
		"cali-": "Calico", "CILIUM_": "Cilium", "FLANNEL-": "Flannel", "KUBE-ROUTER-": "kube-router", "KUBE-NWPLCY-": "kube-router", "ANTREA-": "Antrea",
		"WEAVE": "Weave", "kindnet-": "kindnet", "CNI-": "bridge or portmap",
	}
}

// otherNetworks looks for devices and chains of other plugins.
func (n *Node) otherNetworks() Line {
	const check = "other networks"
	names, err := n.list("sys/class/net")
	if err != nil {
		return unknown(check, err)
	}
	chains, unseen := n.Chains()
	found := []string{}
	note := func(name, what string, known map[string]string) {
		for prefix, owner := range known {
			if strings.HasPrefix(name, prefix) {
				found = append(found, fmt.Sprintf("%s %s (%s)", what, name, owner))
			}
		}
	}
	for _, name := range names {
		note(name, "device", networkDevices())
	}
	for _, c := range chains {
		note(c.Name, "chain", networkChains())
		note(c.Table, "table", networkChains())
	}
	rest := ""
	if unseen != nil {
		rest = "; chains of nftables were not checked: " + unseen.Error()
	}
	switch {
	case len(found) == 0 && unseen != nil:
		return Line{check, Unknown, "no devices of other plugins" + rest, "run the command as root, on the node"}
	case len(found) == 0:
		return Line{check, OK, "no devices and no chains of other plugins", ""}
	case n.Options.PodNetwork == "main":
		return Line{check, Warn, named(found) + rest, "pods of the other plugin keep its network until they are recreated; then remove what it left, or reboot the node"}
	}
	return Line{check, OK, named(found) + rest + "; pods get their network from it", ""}
}

// configuration checks which network configuration the container runtime uses: the first by name.
func (n *Node) configuration() Line {
	const check = "cni"
	dir, main := n.Options.ConfDir, n.Options.PodNetwork == "main"
	names, err := n.list(strings.TrimPrefix(dir, "/"))
	if err != nil {
		return unknown(check, err)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasSuffix(name, ".conf") && !strings.HasSuffix(name, ".conflist") && !strings.HasSuffix(name, ".json")
	})
	slices.Sort(names)
	shown := n.onHost(dir)
	if len(names) == 0 {
		if n.contained() && !n.exists(strings.TrimPrefix(dir, "/")) {
			return Line{check, Unknown, dir + " is not visible in this container", "run the command on the node"}
		}
		if main {
			return Line{check, OK, shown + " is empty; the agent writes " + n.Options.ConfName + " there when it is ready to serve pods, if --cni-conf-dir is this directory", ""}
		}
		return Line{check, Warn, shown + " is empty: pods have no network", "install a CNI plugin, or use fairlead as one (--pod-network=main)"}
	}
	first := names[0]
	plugins, err := n.plugins(dir, first)
	if err != nil {
		return unknown(check, err)
	}
	has := slices.Contains(plugins, "fairlead-cni")
	found := fmt.Sprintf("the runtime uses %s/%s (%s)", shown, first, strings.Join(plugins, ", "))
	switch {
	case main && len(plugins) > 0 && plugins[0] == "fairlead-cni" && len(names) == 1, n.Options.PodNetwork == "chained" && has, n.Options.PodNetwork == "off" && !has:
		return Line{check, OK, found, ""}
	case main && has && len(names) > 1:
		return Line{check, Warn, found + "; after it come " + named(names[1:]), "remove the others: the runtime would fall back to them"}
	case main && first < n.Options.ConfName:
		return Line{check, Fail, found + ", not the agent's " + n.Options.ConfName, "remove it, or choose a --cni-conf-name that sorts before it"}
	case main:
		return Line{check, Warn, found + " until the agent writes " + n.Options.ConfName, "remove it once that is written: the runtime would fall back to it"}
	case n.Options.PodNetwork == "chained":
		return Line{check, Warn, found + ", which does not have fairlead-cni", "add {\"type\": \"fairlead-cni\"} as the last of its plugins (docs/pod-network.md)"}
	}
	return Line{check, Warn, found + ", which needs --pod-network", "give the agent --pod-network=main or chained, or remove the file"}
}

// plugins returns the types of the plugins in a configuration.
func (n *Node) plugins(dir, name string) ([]string, error) {
	text, err := n.read(strings.TrimPrefix(dir, "/") + "/" + name)
	if err != nil {
		return nil, err
	}
	var network struct {
		Type    string
		Plugins []struct{ Type string }
	}
	if err := json.Unmarshal([]byte(text), &network); err != nil {
		return nil, fmt.Errorf("%s/%s: %w", dir, name, err)
	}
	var types []string
	if network.Type != "" {
		types = append(types, network.Type)
	}
	for _, p := range network.Plugins {
		types = append(types, p.Type)
	}
	return types, nil
}
