package render

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/snapshot"
)

func dumpClusterNodes(w io.Writer, s *snapshot.Snapshot) {
	fmt.Fprintln(w, "ADDRESS\tNODE\tTHIS NODE")
	for _, node := range s.ClusterNodes() {
		fmt.Fprintf(w, "%s\t%d\t%t\n", node.Address, node.Node, node.Self)
	}
}

func dumpNodeSources(w io.Writer, s *snapshot.Snapshot) {
	fmt.Fprintln(w, "PREFIX\tNODE")
	for _, source := range s.NodeSources() {
		fmt.Fprintf(w, "%s\t%d\n", source.Prefix, source.Node)
	}
}

func dumpOptout(w io.Writer, s *snapshot.Snapshot) {
	fmt.Fprintln(w, "KIND\tID\tPOD\tADDRESSES\tWHY")
	for i := range s.Optouts {
		o := &s.Optouts[i]
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", o.Kind, o.ID, o.Pod, cmp.Or(joined(o.Addrs), "-"), o.Why)
	}
}

func joined(addrs []netip.Addr) string {
	texts := make([]string, 0, len(addrs))
	for _, addr := range addrs {
		texts = append(texts, addr.String())
	}
	return strings.Join(texts, ",")
}

func dumpPods(w io.Writer, s *snapshot.Snapshot) {
	fmt.Fprintln(w, "ADDRESSES\tDEVICE\tINTERFACE\tMAC\tSOURCES\tBBR\tPROXY")
	for i := range s.Pods {
		p := &s.Pods[i]
		sources := "its own"
		if p.Unchecked {
			sources = "any"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%t\t%s\n", cmp.Or(joined(p.Addresses), "-"), cmp.Or(p.Device, "-"), p.Interface, p.MAC, sources, p.BBR, snapshot.ProxyText(p.Proxy))
	}
}

func dumpNative(w io.Writer, s *snapshot.Snapshot) {
	fmt.Fprintln(w, "PREFIX")
	for _, prefix := range s.Native {
		fmt.Fprintln(w, prefix)
	}
}

func dumpRanges(w io.Writer, s *snapshot.Snapshot) {
	labels := map[uint32]string{maps.Inside: "(inside the cluster)", maps.ClusterIPs: "(ranges of ClusterIPs)"}
	for i := range s.Services {
		labels[s.Services[i].Index] = s.Services[i].Label()
	}
	fmt.Fprintln(w, "INDEX\tRANGE\tSERVICE")
	for _, r := range s.Ranges() {
		fmt.Fprintf(w, "%d\t%s\t%s\n", r.Service, r.Range, cmp.Or(labels[r.Service], "(none)"))
	}
}
