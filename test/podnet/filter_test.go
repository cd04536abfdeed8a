package podnet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/test/rig"
)

// filterRules returns the rules of another program that enforces a NetworkPolicy next to fairlead,
// which keeps one client from the servers and no other. They count packets of established
// connections, by direction.
func filterRules(denied *pod, servers ...*pod) string {
	var b strings.Builder
	b.WriteString("table inet policies {\n\tcounter there { packets 0 bytes 0 }\n\tcounter back { packets 0 bytes 0 }\n\tchain forward {\n\t\ttype filter hook forward priority filter;\n")
	for is4, family := range map[bool]string{true: "ip", false: "ip6"} {
		for _, s := range servers {
			fmt.Fprintf(&b, "\t\tct state established %s daddr %s tcp dport 7 counter name there\n", family, s.addr[is4])
			fmt.Fprintf(&b, "\t\tct state established %s saddr %s tcp sport 7 counter name back\n", family, s.addr[is4])
			fmt.Fprintf(&b, "\t\t%s saddr %s %s daddr %s tcp dport 7 reject with tcp reset\n", family, denied.addr[is4], family, s.addr[is4])
		}
	}
	b.WriteString("\t}\n}\n")
	return b.String()
}

// nft runs nft in the node's namespace, and returns what it prints.
func (n *node) nft(input string, args ...string) (out []byte) {
	n.t.Helper()
	n.must(n.ns.Do(func() (err error) {
		cmd := exec.Command("nft", args...)
		cmd.Stdin = strings.NewReader(input)
		var log bytes.Buffer
		cmd.Stderr = &log
		if out, err = cmd.Output(); err != nil {
			err = fmt.Errorf("nft %v: %w: %s", args, err, &log)
		}
		return err
	}))
	return out
}

// counted returns how many packets of established connections a node's rules have seen, to servers
// and from them.
func (n *node) counted() (there, back int) {
	n.t.Helper()
	var list struct {
		Nftables []struct {
			Counter struct {
				Name    string
				Packets int
			}
		}
	}
	n.must(json.Unmarshal(n.nft("", "--json", "list", "counters", "table", "inet", "policies"), &list))
	for _, o := range list.Nftables {
		switch o.Counter.Name {
		case "there":
			there = o.Counter.Packets
		case "back":
			back = o.Counter.Packets
		}
	}
	return there, back
}

// TestForwardChainRules checks that with --host-routing=stack, rules in the node's forward chain see
// the packets of pods, in both directions, with the addresses of the client and of the backend,
// whether the client dials the pod or a Service: so they can keep one client from a server and let
// another through. If packets bypass the stack, the rules see none of them and enforce nothing.
func TestForwardChainRules(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		rig.Lacking(t, "cluster", "there is no nft, of Debian's nftables")
	}
	for _, byStack := range []bool{true, false} {
		l := lanForm{mode: fabric.Native, addr4: true, addr6: true, pods4: true, pods6: true, byPrograms: true, byStack: byStack}
		t.Run(l.how(), func(t *testing.T) {
			k := newServingNodesOnLAN(t, l)
			k.announceNodes(k.objects)
			// The servers are on the clients' node and on another; each node enforces the policy
			// for its own.
			denied, far := k.pods[0], k.pods[1]
			allowed, near := k.nodes[0].pod("allowed"), k.nodes[0].pod("near")
			k.nodes[0].mustAdd(allowed)
			k.nodes[0].mustAdd(near)
			listenIn(t, near.Netns)
			for i, n := range k.nodes[:2] {
				n.nft(filterRules(denied, []*pod{near, far}[i]), "-f", "-")
			}
			for is4 := range outsiders {
				for i, server := range []*pod{near, far} {
					service := clusterIP(is4, 10+i)
					k.nodes[0].serve(t, service, server.addr[is4])
					for what, at := range map[string]netip.Addr{"its own address": server.addr[is4], "a Service": service} {
						if seen := talk(t, allowed.Netns, "tcp", at); seen != allowed.addr[is4].String() {
							t.Errorf("%s by %s, IPv4 %t: the one that may came from %q", server.id, what, is4, seen)
						}
						if byStack {
							talk(t, denied.Netns, "tcp-refused", at)
						} else if seen := talk(t, denied.Netns, "tcp", at); seen != denied.addr[is4].String() {
							t.Errorf("%s by %s, IPv4 %t: the other came from %q past the stack", server.id, what, is4, seen)
						}
					}
				}
			}
			for _, n := range k.nodes[:2] {
				if there, back := n.counted(); (there > 0 && back > 0) != byStack || (there > 0) != (back > 0) {
					t.Errorf("%s: the rules have seen %d packets of established connections to servers and %d from them", n.ns, there, back)
				}
			}
		})
	}
}
