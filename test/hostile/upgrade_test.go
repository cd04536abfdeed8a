package hostile

import (
	"net/netip"
	"testing"
)

// TestTunnelWhileUpgrading lets a node of an older version send through the tunnel from any port, as
// while nodes are upgraded. What it sends arrives. Attackers get no further than its ports do: pods
// of this version's nodes, hosts that are no nodes, and sources that do not belong behind a node are
// dropped as ever.
func TestTunnelWhileUpgrading(t *testing.T) {
	w := newNodesOnLAN(t, 2, "--routing=vxlan", "--tunnel-source-ports=any")
	near, far := w.nodes[0], w.nodes[1]
	attacker, victim := near.pod("attacker"), far.pod("victim")
	at := netip.MustParseAddrPort
	there := listen(t, victim.Netns, 400)
	to, tunnel := netip.AddrPortFrom(victim.addr[true], 400), at("198.51.100.2:8472")
	send(t, near.ns, at("198.51.100.1:40000"), tunnel, inTunnel("n2", at("10.1.1.250:99"), to, "from an older node's pod"))
	hear(t, there, "from an older node's pod")

	pod, source := near.drops("pod", "tunnel-port"), far.drops("tc", "tunnel-source")
	send(t, attacker.Netns, netip.AddrPortFrom(attacker.addr[true], 0), tunnel, inTunnel("n2", at("10.1.1.250:99"), to, "forged"))
	send(t, w.outside, at("198.51.100.200:40000"), tunnel, inTunnel("n2", at("10.1.1.250:99"), to, "forged"))
	send(t, near.ns, at("198.51.100.1:40001"), tunnel, inTunnel("n2", at("10.1.2.250:99"), to, "forged"))
	send(t, attacker.Netns, netip.AddrPortFrom(attacker.addr[true], 0), to, "honest")
	hear(t, there, "honest", "forged")
	if pods, sources := near.drops("pod", "tunnel-port")-pod, far.drops("tc", "tunnel-source")-source; pods != 1 || sources != 2 {
		t.Errorf("%d packets dropped at the pod's device and %d out of the tunnel, want 1 and 2", pods, sources)
	}
}
