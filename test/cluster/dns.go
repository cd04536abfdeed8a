package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"text/template"
)

//go:embed dns.yaml
var dnsManifests string

// renderDNS returns the manifests of the cluster's DNS.
func (c *Cluster) renderDNS() ([]byte, error) {
	parsed, err := template.New("dns.yaml").Option("missingkey=error").Parse(dnsManifests)
	if err != nil {
		return nil, fmt.Errorf("parse manifests of DNS: %w", err)
	}
	var text bytes.Buffer
	err = parsed.Execute(&text, map[string]any{
		"Address": c.Family.DNS()[0], "Replicas": min(c.Nodes, 2), "Image": c.coreDNSImage(),
	})
	if err != nil {
		return nil, fmt.Errorf("render manifests of DNS: %w", err)
	}
	return text.Bytes(), nil
}

func (c *Cluster) deployDNS() error {
	manifests, err := c.renderDNS()
	if err != nil {
		return err
	}
	if _, err := c.runKubectl(manifests, "apply", "-f", "-"); err != nil {
		return fmt.Errorf("deploy DNS: %w", err)
	}
	return nil
}

// awaitNodes waits until the nodes are ready.
func (c *Cluster) awaitNodes() error {
	if _, err := c.runKubectl(nil, "wait", "--for=condition=Ready", "nodes", "--all", waitFlag()); err != nil {
		return fmt.Errorf("wait for nodes: %w", err)
	}
	return nil
}

// awaitDNS waits until the DNS servers are ready, which they are once they have read the Services.
func (c *Cluster) awaitDNS() error {
	if _, err := c.runKubectl(nil, "--namespace=kube-system", "rollout", "status", "deployment/coredns", waitFlag()); err != nil {
		return fmt.Errorf("wait for DNS: %w", err)
	}
	return nil
}

func waitFlag() string { return fmt.Sprintf("--timeout=%ds", int(startTimeout.Seconds())) }
