package twin

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// What honest ends see must not depend on who else sends packets. The test below has honest ends
// converse over two nodes, by the real programs: clients outside and pods, by services of every kind
// and by addresses of their own, with backends on either node, which answer by way of the node in
// front or directly. They also cut up datagrams, and say that packets are too big. Then
// they do the same again with an attacker's packets in between, and each must get the same packets,
// through the same devices, but for the ports that nodes lend. Nobody may get a packet that its
// sender did not send, nor may a node's tunnel.
//
// It sees what packets do to the rows of flows, fragments and affinity, at either node; what comes
// out of encapsulations; ports and rows that are used up. It does not see what the stack does with a
// packet (a tunnel's device only takes off headers here, and nothing is cut up on the way), fragments
// that overtake the first of their datagram, fields of the socket buffer that a test run cannot set
// (tc_index, queue_mapping), races between CPUs, the agent's servers, and objects of the API: the
// services here are what somebody has allowed. TestSocketNoninterference in test/netns is for
// sockets and their programs. Nor does it time anything: nobody waits, so exhaustion shows only as a
// packet that does not arrive. Rows have no age either, so whose port is taken, among those who are
// not established, is chance: where an attacker takes all ports, an honest client has its answer
// before another begins. What a packet says of an address from which its network lets anybody send
// is believed by everybody, and no finding; nor is what an error says, which its receiver has to judge.
//
// The size of an episode: packets of honest ends, and of the attacker before each of them.
const (
	honestSteps = 250
	strikesEach = 8
)

// interfering is the cluster in which honest ends and an attacker use the same node.
type interfering struct {
	*kernelNode
	nodes
	seed    uint64
	who     attacker
	kinds   []string
	strikes int
	met     map[string]int // what honest ends have got, by its kind
}

// newInterfering returns two nodes. They share devices and routes, which lead to any pod by the tunnel, and
// each knows which pods and addresses are its own.
func newInterfering(t *testing.T, hook string) interfering {
	t.Helper()
	config := bpf.MapsPacketConfig{SnatFirst: lentFirst, SnatLast: lentLast, Masquerade: 1, TunnelPort: tunnelPort}
	here := newKernelNodeOf(t, hook, lentRows, config)
	for addr := range podAddrs() {
		if err := here.setRoute(addr, here.way(tunnelDevice, true)); err != nil {
			t.Fatal(err)
		}
	}
	there := loadKernelNode(t, hook, lentRows, config)
	there.netns, there.handle, there.devices, there.pods, there.role = here.netns, here.handle, here.devices, here.pods, secondClusterNode()
	if err := there.setPods(maps.Proxy{}); err != nil {
		t.Fatal(err)
	}
	return interfering{kernelNode: here, nodes: nodes{here, there}, met: map[string]int{}}
}

// lentRows is the room for established flows: more than any attack makes, since a full node is no
// secret and says so.
const lentRows = 1 << 14

// act plays an episode: honest ends do what the seed says, with the strikes in between, and see
// what is returned. It ends where they see anything else than in want.
func (x *interfering) act(strikes []strike, want []string) (seen []string, err error) {
	if err := errors.Join(x.restart(x.here), x.restart(x.there), x.setPods(x.who.proxy)); err != nil {
		return nil, err
	}
	h := rand.New(rand.NewPCG(x.seed, 1))
	var open []*session
	for i := range honestSteps {
		for ; len(strikes) > 0 && strikes[0].step <= i; strikes = strikes[1:] {
			p := read(strikes[0].frame)
			if slices.ContainsFunc(open, func(s *session) bool {
				return s.isGuessed(p) || strikes[0].kind == lateReset && s.begins(p.flow)
			}) {
				continue
			}
			forged, err := x.hit(strikes[0])
			if err != nil {
				return seen, err
			}
			if forged != "" {
				return append(seen, forged), nil
			}
		}
		what, err := x.play(h, i, &open)
		if err != nil {
			return seen, err
		}
		if seen = append(seen, what); want != nil && what != want[i] {
			return seen, nil
		}
	}
	return seen, nil
}

// restart makes a node forget everything but its configuration.
func (x *interfering) restart(w *kernelNode) error {
	r, err := w.begin()
	if err == nil {
		err = r.stage()
	}
	return err
}

// play is one honest step.
func (x *interfering) play(h *rand.Rand, i int, open *[]*session) (string, error) {
	if h.IntN(12) == 0 {
		return "idle", errors.Join(x.here.idle(), x.there.idle())
	}
	if len(*open) < 10 {
		s := newSession(h, i)
		if !slices.ContainsFunc(*open, func(other *session) bool { return other.client == s.client }) {
			*open = append(*open, s)
		}
	}
	n := h.IntN(len(*open))
	if begun := slices.IndexFunc(*open, (*session).isBegun); begun >= 0 && x.who.crowds {
		n = begun
	}
	s := (*open)[n]
	what, err := s.step(&x.nodes)
	x.met[s.met]++
	if s.over() {
		*open = slices.Delete(*open, n, n+1)
	}
	return fmt.Sprintf("%s dials %s (%d), packet %d: %s", s.client, s.front, s.proto, s.stage, what), err
}

// newSession returns a session of some honest client.
func newSession(h *rand.Rand, id int) *session {
	v4 := h.IntN(2) == 0
	p := pools()[v4]
	ways := honestWays(v4)
	way := ways[h.IntN(len(ways))]
	s := &session{id: id, front: way.front, proto: way.proto, next: [2]uint32{h.Uint32(), h.Uint32()}}
	outside := slices.Contains([]netip.Addr{p.clients[0], p.clients[1]}, way.front.Addr()) || way.front.Addr() == p.clusterIPs[0]
	addr := p.backends[3*h.IntN(2)]
	s.at = end{pod: podAddrs()[addr]}
	switch n := h.IntN(9); {
	case outside || n < 2:
	case n < 3:
		addr, s.at = p.far[1], end{device: tunnelDevice}
	default:
		device := 1 + n%2
		addr, s.at = p.clients[device-1], end{device: device, there: n >= 6 && slices.Contains(p.vips, way.front.Addr())}
	}
	if addr == way.front.Addr() {
		addr, s.at = p.clients[0], end{device: 1}
	}
	s.client = netip.AddrPortFrom(addr, uint16(clientPort+h.IntN(clientPorts)))
	return s
}

// hit sends a packet of the attacker, and returns what it has done to others at once: an honest
// end, or a tunnel, has got what its sender did not send.
func (x *interfering) hit(s strike) (forged string, err error) {
	from := x.who.from
	from.there = from.there || s.there
	to, err := x.travel(s.frame, from, s.mark)
	if err != nil || to.frame == nil && to.tunneled == nil || x.who.owns == nil {
		return "", err
	}
	return x.suspect(s, to)
}

// suspect judges what somebody has got from the attacker.
func (x *interfering) suspect(s strike, to end) (string, error) {
	isPod := x.who.from.pod > 0
	if to.tunneled != nil && (isPod || read(to.tunneled).flow.Source.Port() < firstTunnelPort) {
		return fmt.Sprintf("the tunnel of a node gets %s", describe(to.tunneled)), nil
	}
	p := read(to.frame)
	if p.l3 == 0 {
		return "", nil
	}
	from, dest := p.flow.Source.Addr(), p.flow.Dest.Addr()
	v4 := dest.Is4()
	if dialed := read(s.frame).flow.Dest.Addr(); x.who.proxy.Asked && !to.node && opensTCP(to.frame) && !slices.Contains(nodesOf(v4)[3:], dialed) {
		return fmt.Sprintf("%s gets past the proxy %x", to, to.frame), nil
	}
	// A pod's own tunnel may lead to what is no node as far as Node objects tell.
	_, isNode := nodeAddrs()[dest]
	if inner, ok := innerOfTunnel(to.frame); ok && isNode && to.device > 0 && isPod {
		return fmt.Sprintf("the tunnel of a node gets %s", describe(inner)), nil
	}
	pool := pools()[v4]
	if owner := belongs(from); to.device == tunnelDevice && owner > 0 && owner != x.at(to.there).role.number {
		return "", nil // the node there takes nothing with another's source from this one
	}
	honest := to.pod > 0 && to.pod != firstPod+2 || to.device > 0 && slices.Contains([]netip.Addr{pool.clients[0], pool.clients[1], pool.far[0], pool.far[1]}, dest)
	if x.who.from.device > 0 && to.device > 0 && to.device != tunnelDevice && p.flow == read(s.frame).flow {
		return "", nil // the node has only routed what the attacker can send there itself
	}
	isMasked := from == pool.snat || from == pool.peers[0] && (to.crossed || to.there)
	if !honest || x.who.owns(from) || isMasked || from == pool.vips[2] || p.content == fragment || p.content == message {
		return "", nil
	}
	return fmt.Sprintf("%s gets what %s did not send: %s", to, from, describe(to.frame)), nil
}

// nodesOf returns the addresses of nodes.
func nodesOf(v4 bool) []netip.Addr {
	p := pools()[v4]
	return append(slices.Clone(p.peers), p.open, p.closed, p.snat)
}

// compare plays an honest episode with and without an attack, and returns what was seen.
func (x *interfering) compare(seed uint64) (seen, want []string, list []strike, err error) {
	x.seed = seed
	if want, err = x.act(nil, nil); err != nil {
		return nil, nil, nil, err
	}
	if list, err = x.attack(); err != nil {
		return nil, nil, nil, err
	}
	x.strikes += len(list)
	seen, err = x.act(list, want)
	return seen, want, list, err
}

// episode fails if honest ends can tell an attack. It says what they see, and the fewest strikes
// that were found to be enough.
func (x *interfering) episode(seed uint64) error {
	seen, want, list, err := x.compare(seed)
	if err != nil || slices.Equal(seen, want) {
		return err
	}
	list = x.shorten(list, want)
	if seen, err = x.act(list, want); err != nil {
		return err
	}
	var story strings.Builder
	for _, s := range list[max(0, len(list)-maxEpochAhead):] {
		fmt.Fprintf(&story, "before step %d, %s: %s\n", s.step, s.kind, describe(s.frame))
	}
	last := len(seen) - 1
	return fmt.Errorf("%s, step %d:\nsees %s\nwant %s\nafter %d packets, the last of which are\n%srepeat it with -seed %d (%s)",
		x.who.name, last, seen[last], want[last], len(list), &story, seed, x.hook)
}

// maxEpochAhead is how many packets of an attack are printed.
const maxEpochAhead = 20

// attack makes the strikes of the episode.
func (x *interfering) attack() (list []strike, err error) {
	r, err := x.begin()
	if err != nil {
		return nil, err
	}
	f := &forger{generator: newGenerator(x.seed, r.node), who: x.who}
	for i := range honestSteps {
		for range strikesEach {
			s := f.strike(x.kernelNode, x.kinds)
			s.step = i
			list = append(list, s)
		}
	}
	return list, nil
}

// shorten removes the strikes that an interference does not need.
func (x *interfering) shorten(list []strike, want []string) []strike {
	for size, trials := len(list)/2, 0; size > 0; size /= 2 {
		for at := 0; at < len(list) && trials < mostTrials; trials++ {
			without := slices.Concat(list[:at], list[min(at+size, len(list)):])
			if seen, err := x.act(without, want); err == nil && !slices.Equal(seen, want) {
				list = slices.DeleteFunc(without, func(s strike) bool { return s.step >= len(seen) })
			} else {
				at += size
			}
		}
	}
	return list
}

// TestNoninterference has honest ends do the same twice, with an attacker's packets in between the
// second time, and fails if they see anything else.
func TestNoninterference(t *testing.T) {
	eachInterfering(t, func(t *testing.T, x interfering) error {
		all := attackers()
		began, total := time.Now(), 0
		for seed := *from; total < *packets/2; seed++ {
			if *only != 0 {
				seed, total = *only, *packets
			}
			x.who, x.strikes = all[seed%uint64(len(all))], 0
			if x.kinds = x.who.unmended(false); len(x.kinds) == 0 {
				continue
			}
			if err := x.episode(seed); err != nil {
				return err
			}
			total += x.strikes
		}
		if *only == 0 {
			requireCoverage(t, "what honest ends get", honestClasses(), x.met, total, fewestMet)
		}
		t.Logf("%d packets of attackers from seed %d on, in %s", total, *from, time.Since(began).Round(time.Second))
		return nil
	})
}

// TestKnownInterference checks that what is known to interfere still does: what is mended has to
// leave the list.
func TestKnownInterference(t *testing.T) {
	listed := 0
	for _, who := range attackers() {
		listed += len(who.unmended(true))
	}
	if listed != len(knownInterference()) {
		t.Errorf("only %d of the %d lines name an attacker and what it sends", listed, len(knownInterference()))
	}
	eachInterfering(t, func(t *testing.T, x interfering) error {
		for _, who := range attackers() {
			for _, kind := range who.unmended(true) {
				x.who, x.kinds, x.strikes = who, []string{kind}, 0
				found := false
				for seed := uint64(1); !found && x.strikes < mostKnown; seed++ {
					seen, want, _, err := x.compare(seed)
					if err != nil {
						return err
					}
					found = !slices.Equal(seen, want)
				}
				if !found {
					t.Errorf("%s can no longer interfere by %q: delete its line", who.name, kind)
				}
			}
		}
		return nil
	})
}

// mostKnown is the number of packets in which what is known must show.
const mostKnown = 40_000

func eachInterfering(t *testing.T, test func(t *testing.T, x interfering) error) {
	t.Helper()
	for _, hook := range []string{"tc", "xdp"} {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			x := newInterfering(t, hook)
			if err := x.netns.Do(func() error { return test(t, x) }); err != nil {
				t.Fatal(err)
			}
		})
	}
}
