package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// await connects to NETWORK ADDRESS, says so, waits for an answer, and then says what came of it.
func await(args []string) int {
	conn, err := net.Dial(args[0], args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("connected")
	_ = conn.SetReadDeadline(time.Now().Add(3 * time.Second))
	switch _, err := conn.Read(make([]byte, 1)); {
	case errors.Is(err, unix.ECONNABORTED):
		fmt.Println("aborted")
	case errors.Is(err, os.ErrDeadlineExceeded):
		fmt.Println("waited in vain")
	default:
		fmt.Println(err)
	}
	return 0
}

// echoes writes the manifests of a Service for UDP and TCP with these backends.
func (n *node) echoes(addrs ...string) {
	n.t.Helper()
	text := `
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: shop}
spec: {clusterIP: 10.96.0.20, ports: [{name: u, port: 7, protocol: UDP}, {name: t, port: 7}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo-1, namespace: shop, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
ports: [{name: u, port: 7, protocol: UDP}, {name: t, port: 7}]
endpoints:
`
	for _, addr := range addrs {
		text += "- {addresses: [" + addr + "]}\n"
	}
	n.write("echo.yaml", text)
}

// TestStaleSockets checks that when a backend is removed from a manifest, sockets that wait for its
// answer get an error.
func TestStaleSockets(t *testing.T) {
	rig.MapIterators(t)
	for _, test := range []struct{ flag, udp, tcp string }{
		{"--reset-stale-tcp=false", "aborted", "waited in vain"},
		{"--reset-stale-tcp=true", "aborted", "aborted"},
	} {
		t.Run(test.flag, func(t *testing.T) {
			n := newNode(t)
			n.echoes("198.18.0.1", "198.18.0.2")
			for _, addr := range []string{"198.18.0.1:7", "198.18.0.2:7"} {
				if err := n.ns.Do(func() error { return silence(t, addr) }); err != nil {
					t.Fatal(err)
				}
			}
			n.agent = rig.NewChild(t, nil, n.ns, "fairlead", append([]string{
				"agent", "--source=" + n.manifests, "--cgroup-root=" + n.cgroup.Path(), "--node-name=node-a", test.flag,
			}, n.flags...)...)
			n.run("status", "--wait", "--wait-duration=30s")
			waiters := map[string]*rig.Process{}
			for _, network := range []string{"udp", "tcp"} {
				waiters[network] = rig.NewChild(t, n.cgroup, n.ns, "await", network, "10.96.0.20:7")
				if line, err := waiters[network].ReadLine(); line != "connected" {
					t.Fatalf("%s %v", line, err)
				}
			}
			n.echoes()
			for network, want := range map[string]string{"udp": test.udp, "tcp": test.tcp} {
				if line, err := waiters[network].ReadLine(); line != want {
					t.Errorf("%s: %s (%v), want %s", network, line, err, want)
				}
			}
			if status := n.run("status"); strings.Contains(status, "without") {
				t.Errorf("status: %s", status)
			}
		})
	}
}

// silence accepts connections and says nothing.
func silence(t *testing.T, addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
			}()
		}
	}()
	return nil
}
