package podnet

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.io/fairlead/test/rig"
)

// starting is how many pods start in TestPoliciesStart.
var starting = flag.Int("starting", 6, "how many pods start in TestPoliciesStart")

// rush sends datagrams to places as soon as it can, each from a socket of its own, dials them, and prints how
// often it was answered.
func rush(places []string) int {
	const datagrams = 20
	var conns []net.Conn
	for range datagrams {
		for _, place := range places {
			conn, err := net.Dial("udp", place)
			if err == nil {
				_, err = conn.Write([]byte("rush"))
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			conns = append(conns, conn)
		}
	}
	answers := make([]int, len(conns)+len(places))
	until := time.Now().Add(silence)
	var listening sync.WaitGroup
	for i, place := range places {
		listening.Go(func() {
			if conn, err := net.DialTimeout("tcp", place, silence); err == nil {
				answers[i]++
				conn.Close()
			}
		})
	}
	for i, conn := range conns {
		listening.Go(func() {
			_ = conn.SetReadDeadline(until)
			if _, err := conn.Read(make([]byte, 100)); err == nil {
				answers[len(places)+i]++
			}
			conn.Close()
		})
	}
	listening.Wait()
	sum := 0
	for _, n := range answers {
		sum += n
	}
	if err := json.NewEncoder(os.Stdout).Encode(sum); err != nil {
		return 1
	}
	return 0
}

// rushes returns how often a process in a namespace was answered.
func rushes(t *testing.T, from *rig.Netns, places ...string) (answers int) {
	t.Helper()
	out, err := rig.RunChild(nil, from, "rush", places...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &answers)
	}
	if err != nil {
		t.Errorf("rush in %s: %q, %v", from, out, err)
	}
	return answers
}

// TestPoliciesStart starts pods that may not send anything and get nothing, which send, and are sent
// something, as soon as they are attached: before their node has heard of them, or after. Nothing may pass.
func TestPoliciesStart(t *testing.T) {
	h := newOneNodeWithAgent(t, "--policies=enforce")
	server := h.pod("server")
	h.mustAdd(server)
	listenIn(t, server.Netns)
	listenIn(t, h.outside)
	objects := shopNamespace + podManifest(server) + networkPolicy("nothing", "locked", "policyTypes: [Ingress, Egress]")
	h.serveFiles(objects)
	rig.Route(t, h.outside, "10.1.0.0/24", "198.51.100.1")
	rig.Route(t, h.outside, "fd00:1::/64", "2001:db8:1::1")
	places := func(p *pod) []string { return []string{netipPort(p, true), netipPort(p, false)} }
	h.until("the server answers", func() bool { return rushes(t, h.outside, places(server)...) > 0 })
	outside := []string{netip.AddrPortFrom(outsiders[true], 7).String(), netip.AddrPortFrom(outsiders[false], 7).String()}
	locked := func(p *pod) string { return strings.ReplaceAll(podManifest(p), "app: "+p.id, "app: locked") }
	var known strings.Builder
	for i := range *starting {
		p := h.pod(fmt.Sprint("new", i))
		listenIn(t, p.Netns)
		if i%2 == 0 { // a pod of whose labels the node knows, but of course not its address
			h.serveFiles(objects, known.String(), strings.SplitAfter(locked(p), "spec: {nodeName: node-a}\n")[0])
		}
		h.mustAdd(p)
		var rushing sync.WaitGroup
		sent, got, fromServer := 0, 0, 0
		rushing.Go(func() { sent = rushes(t, p.Netns, slices.Concat(places(server), outside)...) })
		rushing.Go(func() { got = rushes(t, h.outside, places(p)...) })
		rushing.Go(func() { fromServer = rushes(t, server.Netns, places(p)...) })
		known.WriteString(locked(p))
		h.serveFiles(objects, known.String())
		rushing.Wait()
		if sent+got+fromServer != 0 {
			t.Errorf("%s: %d of its packets were answered, %d from outside, %d from a pod", p.id, sent, got, fromServer)
		}
	}
	h.until("all are known", func() bool {
		return strings.Contains(h.run("status"), fmt.Sprintf("about %d pods of this node", *starting))
	})
}
