package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"

	"fairlead.io/fairlead/test/cluster/running"
)

// proxyRule matches what any rule-based proxy of Services needs: its own chains, and rules that
// rewrite destinations.
var proxyRule = regexp.MustCompile(`\bkube-proxy\b|\bchain KUBE-[A-Z0-9-]+|\b(dnat|redirect)( ip6?)? to\b|\b(DNAT|REDIRECT)\b`)

// ofKubelet matches the chains that every kubelet makes, whatever serves Services.
var ofKubelet = regexp.MustCompile(`\bchain KUBE-(IPTABLES-HINT|KUBELET-CANARY|FIREWALL) `)

// proxyRules returns the lines of a ruleset, as printed by nft or iptables, that belong to a proxy.
func proxyRules(rules string) (found []string) {
	for line := range strings.Lines(rules) {
		if proxyRule.MatchString(line) && !ofKubelet.MatchString(line) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// findProxies returns a problem for each node that has a proxy's rules. When fairlead serves
// Services nothing else may, or the verdict would not be about fairlead.
func findProxies(c *running.Cluster) (problems []string, err error) {
	for _, name := range c.Names() {
		for _, list := range []string{"nft list ruleset", "iptables-legacy-save", "ip6tables-legacy-save"} {
			words := strings.Fields(list)
			cmd := exec.Command(words[0], words[1:]...)
			var text strings.Builder
			cmd.Stdout = &text
			if err := c.Netns(name).Run(cmd); err != nil {
				return nil, fmt.Errorf("list the rules of %s: %s: %w", name, list, err)
			}
			if found := proxyRules(text.String()); len(found) > 0 {
				problems = append(problems, fmt.Sprintf("%s has %d rules of a proxy according to %s, the first is %q", name, len(found), words[0], found[0]))
			}
		}
	}
	return problems, nil
}
