package podnet

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"

	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/test/rig"
)

// associate answers SCTP at these addresses with the address that the question came from.
func associate(addrs []string) int {
	for _, addr := range addrs {
		if err := rig.ServeSCTP(netip.AddrPortFrom(netip.MustParseAddr(addr), 7), answerSCTP); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func answerSCTP(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, 9000)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		_, _ = conn.Write(fmt.Appendf(buffer[:n], " %s\n", conn.RemoteAddr()))
	}
}

// associateIn starts an SCTP server at these addresses of a namespace.
func associateIn(t *testing.T, ns *rig.Netns, addrs ...netip.Addr) {
	t.Helper()
	var args []string
	for _, addr := range addrs {
		args = append(args, addr.String())
	}
	server := rig.NewChild(t, nil, ns, "associate", args...)
	if line, err := server.ReadLine(); err != nil || line != "ready" {
		t.Fatalf("SCTP server in %s: %q, %v", ns, line, err)
	}
}

// requireSCTP has a namespace ask another twice by SCTP from one of its addresses, and checks
// which address the other saw.
func requireSCTP(t *testing.T, what string, ns *rig.Netns, from, to, want netip.Addr) {
	t.Helper()
	for range 2 { // the second association finds the rows of the first
		if seen := talk(t, ns, "sctp-"+from.String(), to); seen != want.String() {
			t.Errorf("%s, from %s to %s: came from %s, want %s", what, from, to, seen, want)
		}
	}
}

// SCTP sockets are not pointed at backends, so what pods and nodes send to Services is balanced at
// the devices. It reaches pods of the node, the sender itself among them, as does what pods send each
// other directly.
func TestSCTP(t *testing.T) {
	rig.Root(t)
	rig.SCTP(t)
	for _, bypass := range []bool{true, false} {
		t.Run(map[bool]string{true: "past the stack", false: "by the stack"}[bypass], func(t *testing.T) {
			w := newOneNode(t, bypass)
			a, b := w.pods[0], w.pods[1]
			for _, p := range w.pods {
				associateIn(t, p.Netns, p.addr[true], p.addr[false])
			}
			associateIn(t, w.outside, outsiders[true], outsiders[false])
			for is4, outsider := range outsiders {
				rig.Route(t, w.ns, map[bool]string{true: "0.0.0.0/0", false: "::/0"}[is4], outsider.String())
				for i, to := range []struct {
					what    string
					backend netip.Addr
					seen    netip.Addr
				}{
					{"another pod", b.addr[is4], a.addr[is4]},
					{"outside of the cluster", outsider, nodeOutsideAddrs[is4]},
					{"itself", a.addr[is4], nodeOutsideAddrs[is4]},
				} {
					at := clusterIP(is4, 10+i)
					w.serve(t, at, to.backend)
					requireSCTP(t, "a pod to a Service of "+to.what, a.Netns, a.addr[is4], at, to.seen)
				}
				requireSCTP(t, "pod to pod", a.Netns, a.addr[is4], b.addr[is4], a.addr[is4])
				requireSCTP(t, "the node to a pod", w.ns, nodeOutsideAddrs[is4], b.addr[is4], nodeOutsideAddrs[is4])
				requireSCTP(t, "the node to a Service of a pod", w.ns, nodeOutsideAddrs[is4], clusterIP(is4, 10), nodeOutsideAddrs[is4])
			}
		})
	}
}

// The same between nodes, by routes and through tunnels.
func TestSCTPOfOtherNodes(t *testing.T) {
	rig.Root(t)
	rig.SCTP(t)
	for _, mode := range []string{fabric.Native, fabric.VXLAN} {
		for _, byStack := range []bool{false, true} {
			l := lanForm{mode: mode, addr4: true, addr6: true, pods4: true, pods6: true, byPrograms: true, byStack: byStack, size: 2}
			t.Run(mode+", "+l.how(), func(t *testing.T) {
				k := newNodesOnLAN(t, l)
				for _, p := range k.pods {
					associateIn(t, p.Netns, p.addr[true], p.addr[false])
				}
				k.announceNodes(k.objects)
				for i, p := range k.pods {
					other := k.pods[1-i]
					for is4, addr := range p.addr {
						requireSCTP(t, "pod to pod", p.Netns, addr, other.addr[is4], addr)
						at := clusterIP(is4, 10)
						k.nodes[i].serve(t, at, other.addr[is4])
						requireSCTP(t, "a pod to a Service of a pod", p.Netns, addr, at, addr)
					}
				}
			})
		}
	}
}
