package podnet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.io/fairlead/test/rig"
)

const (
	// besiegers and besieged are the ports of either end between which flows are opened: more flows than a
	// node remembers.
	besiegers, besieged = 520, 520
	firstBesieged       = 2000
)

// mirror answers datagrams to all besieged ports until its input ends.
func mirror([]string) int {
	for port := range besieged {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: firstBesieged + port})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		go func() {
			buffer := make([]byte, 100)
			for {
				n, from, err := conn.ReadFromUDPAddrPort(buffer)
				if err != nil {
					return
				}
				_, _ = conn.WriteToUDPAddrPort(buffer[:n], from)
			}
		}()
	}
	fmt.Println("ready")
	bufio.NewScanner(os.Stdin).Scan()
	return 0
}

// besiege opens flows from many ports, the first of which is each line of its input, to all besieged ports, and
// prints how many of them were answered.
func besiege(args []string) int {
	to, err := netip.ParseAddr(args[0])
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); err == nil && lines.Scan(); {
		var first, answered int
		if first, err = strconv.Atoi(lines.Text()); err == nil {
			answered, err = besiegeFrom(first, to)
			fmt.Println(answered)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func besiegeFrom(first int, to netip.Addr) (sum int, err error) {
	answered, failed := make([]int, besiegers), make([]error, besiegers)
	var working sync.WaitGroup
	turns := make(chan struct{}, 2) // more at once would lose datagrams
	for i := range besiegers {
		turns <- struct{}{}
		working.Go(func() {
			defer func() { <-turns }()
			var conn *net.UDPConn
			if conn, failed[i] = net.ListenUDP("udp4", &net.UDPAddr{Port: first + i}); failed[i] == nil {
				answered[i] = askAll(conn, to)
				failed[i] = conn.Close()
			}
		})
	}
	working.Wait()
	for _, n := range answered {
		sum += n
	}
	return sum, errors.Join(failed...)
}

// askAll opens flows from one socket to all besieged ports, a few at a time, and returns how many were answered.
func askAll(conn *net.UDPConn, to netip.Addr) (answered int) {
	const few = 20
	buffer := make([]byte, 100)
	for port := range besieged {
		_, _ = conn.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(to, uint16(firstBesieged+port)))
		if port%few != few-1 {
			continue
		}
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		for range few {
			if _, _, err := conn.ReadFromUDPAddrPort(buffer); err != nil {
				break
			}
			answered++
		}
	}
	return answered
}

// recite accepts a connection, and for each line of its input is the first to say something over it and prints
// whether that comes back.
func recite(args []string) int {
	listener, err := net.Listen("tcp", ":"+args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	conn, err := listener.Accept()
	for lines := bufio.NewScanner(os.Stdin); err == nil && lines.Scan(); {
		err = conn.SetDeadline(time.Now().Add(patience))
		if err == nil {
			_, err = conn.Write([]byte("x"))
		}
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		fmt.Println("came back:", err)
	}
	return 0
}

// parrot dials a place and gives back what comes. It never sends anything of its own, not even to keep the
// connection alive: that would begin it anew.
func parrot(args []string) int {
	dialer := net.Dialer{Timeout: patience, KeepAlive: -1}
	conn, err := dialer.Dial("tcp", args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(conn, conn)
	return 0
}

// TestPoliciesShare lets a pod open more flows than a node remembers, all answered by an accomplice. A connection
// that another pod opens then has to go on while the attacker goes on too, although what its server sends is
// accepted only because the connection is remembered.
func TestPoliciesShare(t *testing.T) {
	h := newOneNodeWithAgent(t, "--policies=enforce")
	policies := networkPolicy("friends", "server", "policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]") +
		networkPolicy("nobody", "attacker", "policyTypes: [Ingress]")
	// Pods that are there before their policies may have connections from before, for an hour.
	h.serveFiles(shopNamespace, policies)
	h.until("the policies are known", func() bool { return strings.Contains(h.run("status"), "2 NetworkPolicies") })
	server, friend, attacker, accomplice := h.pod("server"), h.pod("friend"), h.pod("attacker"), h.pod("accomplice")
	objects := shopNamespace + policies
	for _, p := range []*pod{server, friend, attacker, accomplice} {
		h.mustAdd(p)
		objects += podManifest(p)
	}
	h.serveFiles(objects)
	h.until("the policies are enforced", func() bool { return strings.Contains(h.run("status"), "about 2 pods of this node") })
	start := func(p *pod, name string, args ...string) *rig.Process {
		process := rig.NewChild(t, nil, p.Netns, name, args...)
		if line, err := process.ReadLine(); err != nil || line != "ready" {
			t.Fatalf("%s in %s: %q, %v", name, p.Netns, line, err)
		}
		return process
	}
	start(accomplice, "mirror")
	talk := start(server, "recite", "80")
	attack := start(attacker, "besiege", accomplice.addr[true].String())
	round := func(first int) {
		t.Helper()
		if _, err := fmt.Fprintln(attack.Stdin, first); err != nil {
			t.Fatal(err)
		}
		line, err := attack.ReadLine()
		t.Logf("%s flows of the attacker were answered", line)
		if err != nil || line == "0" {
			t.Fatalf("the attacker says %q, %v", line, err)
		}
	}
	round(20000)
	start(friend, "parrot", netip.AddrPortFrom(server.addr[true], 80).String())
	goesOn := func() {
		t.Helper()
		if _, err := fmt.Fprintln(talk.Stdin, "say"); err != nil {
			t.Fatal(err)
		}
		if line, err := talk.ReadLine(); err != nil || line != "came back: <nil>" {
			t.Fatalf("the connection of an honest pod: %q, %v\n%s", line, err, h.statusText())
		}
	}
	goesOn()
	round(30000) // other flows, which push each other out of where they are not yet remembered
	goesOn()
	h.until("the status says who has no room", func() bool {
		return strings.Contains(h.statusText(), "1 pods have no room for more flows that policies accepted") && strings.Contains(h.statusText(), "shop/attacker alone has 13")
	})
	if drops := h.run("drops"); !strings.Contains(drops, "flows-full") {
		t.Errorf("what found no room is not counted:\n%s", drops)
	}
}
