package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProxyRules(t *testing.T) {
	tests := map[string]struct {
		rules string
		want  []string
	}{
		"a kubelet's": {rules: `
table ip mangle {
	chain KUBE-IPTABLES-HINT {
	}
	chain KUBE-KUBELET-CANARY {
	}
}
table ip filter {
	chain KUBE-FIREWALL {
		ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8  ct status dnat counter packets 0 bytes 0 drop
	}
	chain OUTPUT {
		type filter hook output priority filter; policy accept;
		counter packets 478 bytes 75876 jump KUBE-FIREWALL
	}
}
`},
		"kube-proxy's by nftables": {rules: `
table ip kube-proxy {
	chain service-NWBZK7IH-ns/svc/tcp/http {
		dnat ip to 10.201.1.2 : 80
	}
}
`, want: []string{"table ip kube-proxy {", "dnat ip to 10.201.1.2 : 80"}},
		"kube-proxy's by iptables, as nft lists it": {rules: `
table ip nat {
	chain KUBE-SERVICES {
		meta l4proto tcp ip daddr 10.202.0.1  tcp dport 443 counter packets 0 bytes 0 jump KUBE-SVC-NPX46M4PTMTKRN6Y
	}
	chain KUBE-SEP-HFSQNCZBPGO2WEKP {
		meta l4proto tcp   counter packets 0 bytes 0 dnat to 10.200.0.2:6443
	}
}
`, want: []string{"chain KUBE-SERVICES {", "chain KUBE-SEP-HFSQNCZBPGO2WEKP {", "meta l4proto tcp   counter packets 0 bytes 0 dnat to 10.200.0.2:6443"}},
		"a rule of iptables": {rules: "-A PREROUTING -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 15001\n",
			want: []string{"-A PREROUTING -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 15001"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, proxyRules(test.rules)); diff != "" {
				t.Errorf("(-want +have):\n%s", diff)
			}
		})
	}
}
