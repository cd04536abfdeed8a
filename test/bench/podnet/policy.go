package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"fairlead.io/fairlead/test/bench/node"
)

const (
	patience = 20 * time.Second
	denial   = 300 * time.Millisecond // a dial that takes longer is denied: nobody listens, and the stack says so at once
)

// isolate writes policies that are about both pods in both directions and accept what is measured, and waits until
// they are enforced.
func (s *oneNodeTwoPods) isolate() error {
	var objects strings.Builder
	fmt.Fprintf(&objects, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", node.Name)
	for _, p := range s.pods {
		fmt.Fprintf(&objects, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s, uid: uid-%s, labels: {app: %s}}\nspec: {nodeName: %s}\n"+
			"status: {phase: Running, podIP: %s, podIPs: [{ip: %s}]}\n", p.ID, node.Name, p.ID, p.ID, node.Name, p.Addr, p.Addr)
	}
	fmt.Fprintf(&objects, "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: client, namespace: %s}\n"+
		"spec: {podSelector: {matchLabels: {app: %s}}, policyTypes: [Ingress, Egress], egress: [{to: [{podSelector: {matchLabels: {app: %s}}}], ports: [{port: %d}]}]}\n",
		node.Name, s.pods[0].ID, s.pods[1].ID, serverPort)
	fmt.Fprintf(&objects, "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: server, namespace: %s}\n"+
		"spec: {podSelector: {matchLabels: {app: %s}}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {app: %s}}}], ports: [{port: %d}]}]}\n",
		node.Name, s.pods[1].ID, s.pods[0].ID, serverPort)
	if err := s.Apply(objects.String()); err != nil {
		return err
	}
	for end := time.Now().Add(patience); ; {
		err := s.pods[1].Do(func() error {
			conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(s.pods[0].Addr, serverPort).String(), denial)
			if err == nil {
				err = conn.Close()
			}
			return err
		})
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the policies do not deny what they do not accept after %v: a dial gave %w", patience, err)
		}
	}
}
