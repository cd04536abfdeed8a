package source

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"fairlead.io/fairlead/pkg/model"
)

// brief writes what matters of a policy in few words.
func brief(p *model.NetworkPolicy) string {
	var out []string
	out = append(out, fmt.Sprintf("subject %v", p.Subject))
	for direction, rules := range p.Rules {
		if p.Isolates[direction] {
			out = append(out, model.Direction(direction).String()+" isolated")
		}
		for i := range rules {
			r := &rules[i]
			text := fmt.Sprintf("%s %d %s", model.Direction(direction), r.Number, r.Action)
			if r.AnyPeer {
				text += " any peer"
			}
			for _, peer := range r.Peers {
				switch {
				case peer.Block != nil:
					text += fmt.Sprintf(" %v-%v", peer.Block.Prefix, peer.Block.Except)
				case peer.Nodes != nil:
					text += fmt.Sprintf(" nodes%v", *peer.Nodes)
				default:
					text += fmt.Sprintf(" pods%v", *peer.Pods)
				}
			}
			if r.AnyPort {
				text += " any port"
			}
			for _, span := range r.Ports {
				text += fmt.Sprintf(" %s:%d-%d", span.Protocol, span.First, span.Last)
			}
			for _, named := range r.Named {
				text += fmt.Sprintf(" %s:%s", named.Protocol, named.Name)
			}
			out = append(out, text)
		}
	}
	for _, problem := range p.Problems {
		out = append(out, problem.Reason)
	}
	return strings.Join(out, "; ")
}

func TestNetworkPolicy(t *testing.T) {
	tests := []struct{ name, spec, want string }{
		{"nothing said", `{}`, "subject {n [] []}; ingress isolated"},
		{"egress rules alone", `{egress: [{}]}`, "subject {n [] []}; ingress isolated; egress isolated; egress 0 Accept any peer any port"},
		{"egress that is not isolated", `{policyTypes: [Ingress], egress: [{}]}`, "subject {n [] []}; ingress isolated"},
		{"own namespace", `{ingress: [{from: [{podSelector: {}}]}]}`, "subject {n [] []}; ingress isolated; ingress 0 Accept pods{n [] []} any port"},
		{"all namespaces", `{ingress: [{from: [{namespaceSelector: {}}]}]}`, "subject {n [] []}; ingress isolated; ingress 0 Accept pods{ [] []} any port"},
		{"ports merge", `{ingress: [{ports: [{port: 80}, {port: 81, endPort: 90}, {port: 85}, {protocol: UDP}, {port: http}]}]}`,
			"subject {n [] []}; ingress isolated; ingress 0 Accept any peer tcp:80-90 udp:0-65535 tcp:http"},
		{"block", `{ingress: [{from: [{ipBlock: {cidr: 10.0.0.1/8, except: [10.1.0.0/16, 10.1.0.0/16]}}]}]}`,
			"subject {n [] []}; ingress isolated; ingress 0 Accept 10.0.0.0/8-[10.1.0.0/16] any port"},

		{"bad type", `{policyTypes: [Sideways], ingress: [{}]}`, "subject {n [] []}; ingress isolated; ingress 0 Accept any peer any port; egress isolated; InvalidPolicyType"},
		{"bad port", `{ingress: [{ports: [{port: 0}, {port: 70000}, {port: 9, endPort: 8}]}]}`, "subject {n [] []}; ingress isolated; InvalidPort; InvalidPort; InvalidPort"},
		{"bad port beside a good one", `{ingress: [{ports: [{port: 0}, {port: 80}]}]}`, "subject {n [] []}; ingress isolated; ingress 0 Accept any peer tcp:80-80; InvalidPort"},
		{"named range", `{ingress: [{ports: [{port: http, endPort: 90}, {endPort: 90}]}]}`, "subject {n [] []}; ingress isolated; InvalidPort; InvalidPort"},
		{"bad protocol", `{ingress: [{ports: [{protocol: GRE}]}]}`, "subject {n [] []}; ingress isolated; UnsupportedProtocol"},
		{"bad except", `{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [x]}}]}]}`, "subject {n [] []}; ingress isolated; InvalidCIDR"},
		{"except of all", `{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [0.0.0.0/0]}}]}]}`, "subject {n [] []}; ingress isolated; InvalidCIDR"},
		{"except elsewhere", `{ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}]}]}`,
			"subject {n [] []}; ingress isolated; ingress 0 Accept 10.0.0.0/8-[] any port; InvalidCIDR"},
		{"empty peer", `{ingress: [{from: [{}]}]}`, "subject {n [] []}; ingress isolated; InvalidPeer"},
		{"peer of both kinds", `{ingress: [{from: [{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}]}]}`, "subject {n [] []}; ingress isolated; InvalidPeer"},
		{"bad selector of a peer", `{ingress: [{from: [{podSelector: {matchExpressions: [{key: a, operator: Is}]}}]}]}`, "subject {n [] []}; ingress isolated; InvalidSelector"},
		{"bad selector of subjects", `{podSelector: {matchLabels: {app: web}, matchExpressions: [{key: a, operator: In}]}, ingress: [{}]}`,
			"subject {n [] [{app 0 [web]}]}; ingress isolated; InvalidSelector"},
	}
	for _, tt := range tests {
		policy := &networkingv1.NetworkPolicy{}
		policy.Namespace = "n"
		if err := yaml.Unmarshal([]byte(tt.spec), &policy.Spec); err != nil {
			t.Fatal(tt.name, err)
		}
		if have := brief(NetworkPolicy(policy)); have != tt.want {
			t.Errorf("%s:\nhave %s\nwant %s", tt.name, have, tt.want)
		}
	}
}

func TestClusterNetworkPolicy(t *testing.T) {
	const all = `tier: Admin, subject: {namespaces: {}}`
	tests := []struct{ name, spec, want string }{
		{"no rule", `{` + all + `}`, "subject { [] []}"},
		{"peers", `{` + all + `, egress: [{action: Pass, to: [{namespaces: {}}, {networks: [10.0.0.0/8, "::/0"]}, {nodes: {}}]}]}`,
			"subject { [] []}; egress 0 Pass pods{ [] []} 10.0.0.0/8-[] ::/0-[] nodes[] any port"},
		{"protocols", `{` + all + `, ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {range: {start: 1, end: 65535}}}},
			{udp: {destinationPort: {number: 53}}}, {sctp: {destinationPort: {range: {start: 1, end: 9}}}}, {destinationNamedPort: http}]}]}`,
			"subject { [] []}; ingress 0 Deny pods{ [] []} tcp:1-65535 udp:53-53 sctp:1-9 any:http"},

		{"unknown peer of Accept", `{` + all + `, ingress: [{action: Accept, from: [{}, {namespaces: {}}]}]}`,
			"subject { [] []}; ingress 0 Accept pods{ [] []} any port; InvalidPeer"},
		{"nothing but unknown peers", `{` + all + `, ingress: [{action: Accept, from: [{}]}]}`, "subject { [] []}; InvalidPeer"},
		{"unknown peer of Deny", `{` + all + `, ingress: [{action: Deny, from: [{}, {namespaces: {}}]}]}`,
			"subject { [] []}; ingress 0 Deny any peer any port; InvalidPeer; UnknownRule"},
		{"unknown peer of Pass", `{` + all + `, ingress: [{action: Pass, from: [{}]}]}`, "subject { [] []}; ingress 0 Deny any peer any port; InvalidPeer; UnknownRule"},
		{"networks for ingress", `{` + all + `, ingress: [{action: Accept, from: [{networks: [10.0.0.0/8]}]}]}`, "subject { [] []}; InvalidPeer"},
		{"domain names", `{` + all + `, egress: [{action: Accept, to: [{domainNames: [example.com]}]}]}`, "subject { [] []}; DomainNames"},
		{"bad network of Deny", `{` + all + `, egress: [{action: Deny, to: [{networks: [x]}]}]}`, "subject { [] []}; egress 0 Deny any peer any port; InvalidCIDR; UnknownRule"},
		{"bad action", `{` + all + `, egress: [{action: Log, to: [{namespaces: {}}]}]}`, "subject { [] []}; egress 0 Deny any peer any port; InvalidAction"},
		{"unknown protocol of Accept", `{` + all + `, egress: [{action: Accept, to: [{namespaces: {}}], protocols: [{}]}]}`, "subject { [] []}; InvalidPort"},
		{"unknown protocol of Deny", `{` + all + `, egress: [{action: Deny, to: [{namespaces: {}}], protocols: [{}]}]}`,
			"subject { [] []}; egress 0 Deny any peer any port; InvalidPort; UnknownRule"},
		{"bad subject keeps what denies", `{tier: Admin, subject: {}, ingress: [{action: Accept, from: [{namespaces: {}}]}, {action: Deny, from: [{namespaces: {}}]}]}`,
			"subject { [] []}; ingress 1 Deny pods{ [] []} any port; InvalidSubject"},
		{"bad tier keeps what denies", `{tier: Top, subject: {namespaces: {}}, ingress: [{action: Pass, from: [{namespaces: {}}]}, {action: Deny, from: [{namespaces: {}}]}]}`,
			"subject { [] []}; ingress 1 Deny pods{ [] []} any port; InvalidTier"},
		{"bad selector of subjects", `{tier: Admin, subject: {pods: {namespaceSelector: {matchExpressions: [{key: a, operator: In}]}, podSelector: {matchLabels: {app: web}}}},
			ingress: [{action: Accept, from: [{namespaces: {}}]}]}`, "subject { [] [{app 0 [web]}]}; InvalidSelector"},
	}
	for _, tt := range tests {
		policy := &ClusterPolicy{}
		policy.Name = "c"
		if err := yaml.Unmarshal([]byte(tt.spec), &policy.Spec); err != nil {
			t.Fatal(tt.name, err)
		}
		if have := brief(ClusterNetworkPolicy(policy)); have != tt.want {
			t.Errorf("%s:\nhave %s\nwant %s", tt.name, have, tt.want)
		}
	}
}

// A field that came with a later version of the API may narrow what it is in: a rule without it must not be wider.
func TestUnreadFields(t *testing.T) {
	rule := func(action, of string) string {
		return `{tier: Admin, subject: {namespaces: {}}, egress: [{action: ` + action + `, ` + of + `}]}`
	}
	const (
		to      = `to: [{namespaces: {}}]`
		nothing = "subject { [] []}; UnknownField"
		denies  = "subject { [] []}; egress 0 Deny any peer any port; UnknownField; UnknownRule"
	)
	tests := []struct{ name, spec, want string }{
		{"tcp", rule("Accept", to+`, protocols: [{tcp: {sourcePort: {number: 53}}}]`), nothing},
		{"tcp beside a port", rule("Accept", to+`, protocols: [{tcp: {destinationPort: {number: 80}, sourcePort: {number: 53}}}]`), nothing},
		{"destinationPort", rule("Accept", to+`, protocols: [{udp: {destinationPort: {number: 80, except: 9}}}]`), nothing},
		{"range", rule("Accept", to+`, protocols: [{sctp: {destinationPort: {range: {start: 1, end: 9, step: 2}}}}]`), nothing},
		{"protocol", rule("Accept", to+`, protocols: [{destinationNamedPort: http, icmp: {type: 8}}]`), nothing},
		{"protocol alone", rule("Accept", to+`, protocols: [{icmp: {type: 8}}]`), nothing},
		{"tcp beside a protocol that is understood", rule("Accept", to+`, protocols: [{tcp: {sourcePort: {}}}, {udp: {destinationPort: {number: 53}}}]`),
			"subject { [] []}; egress 0 Accept pods{ [] []} udp:53-53; UnknownField"},
		{"tcp of Deny", rule("Deny", to+`, protocols: [{tcp: {sourcePort: {number: 53}}}]`), denies},
		{"tcp of Pass", rule("Pass", to+`, protocols: [{tcp: {sourcePort: {number: 53}}}]`), denies},
		{"peer", rule("Accept", `to: [{namespaces: {}, tenant: a}]`), nothing},
		{"peer beside one that is understood", rule("Accept", `to: [{namespaces: {}, tenant: a}, {nodes: {}}]`), "subject { [] []}; egress 0 Accept nodes[] any port; UnknownField"},
		{"peer of Deny", rule("Deny", `to: [{namespaces: {}, tenant: a}]`), denies},
		{"selector", rule("Accept", `to: [{namespaces: {matchFields: []}}]`), nothing},
		{"requirement", rule("Accept", `to: [{nodes: {matchExpressions: [{key: a, operator: Exists, since: x}]}}]`), nothing},
		{"pods", rule("Accept", `to: [{pods: {podSelector: {}, ports: []}}]`), nothing},
		{"rule", rule("Accept", to+`, from: [{namespaces: {}}]`), nothing},
		{"rule of Deny", rule("Deny", to+`, icmp: 8`), denies},
		{"a path as a name", rule("Accept", to+`, "to[0]": 8, "to[7].x": 9`), "subject { [] []}; UnknownField; UnknownField"},
		{"subject", `{tier: Admin, subject: {namespaces: {matchLabels: {a: b}}, except: {}}, egress: [{action: Accept, ` + to + `}, {action: Deny, ` + to + `}]}`,
			"subject { [] []}; egress 1 Deny pods{ [] []} any port; UnknownField; InvalidSubject"},
		{"pods of a subject", `{tier: Admin, subject: {pods: {podSelector: {matchLabels: {a: b}}, except: {}}}, egress: [{action: Pass, ` + to + `}, {action: Deny, ` + to + `}]}`,
			"subject { [] [{a 0 [b]}]}; egress 1 Deny pods{ [] []} any port; UnknownField"},
		{"policy", `{tier: Admin, subject: {namespaces: {}}, schedule: night, egress: [{action: Accept, ` + to + `}, {action: Deny, ` + to + `}]}`,
			"subject { [] []}; egress 1 Deny pods{ [] []} any port; UnknownField"},
		{"too many", rule("Accept", to+`}, {action: Accept, `+to+manyFields()), "subject { [] []}; UnknownField; UnknownField"},

		{"tcp without a field", rule("Accept", to+`, protocols: [{tcp: {}}]`), "subject { [] []}; InvalidPort"},
		{"tcp without a field of Deny", rule("Deny", to+`, protocols: [{tcp: {}}]`), "subject { [] []}; egress 0 Deny any peer any port; InvalidPort; UnknownRule"},
		{"destinationPort without a field", rule("Accept", to+`, protocols: [{tcp: {destinationPort: {}}}]`), "subject { [] []}; InvalidPort"},
		{"range without an end", rule("Accept", to+`, protocols: [{tcp: {destinationPort: {range: {start: 80}}}}]`), "subject { [] []}; InvalidPort"},
		{"no protocol", rule("Accept", to+`, protocols: []`), "subject { [] []}; InvalidPort"},
		{"pods without podSelector", rule("Accept", `to: [{pods: {namespaceSelector: {}}}]`), "subject { [] []}; InvalidPeer"},
		{"subject without podSelector", `{tier: Admin, subject: {pods: {}}, egress: [{action: Accept, ` + to + `}]}`, "subject { [] []}; InvalidSubject"},
		{"no network", rule("Accept", `to: [{networks: []}]`), "subject { [] []}; InvalidPeer"},
	}
	for _, tt := range tests {
		policy := &ClusterPolicy{}
		if err := yaml.Unmarshal([]byte(`{metadata: {name: c, tenant: a}, spec: `+tt.spec+`}`), policy); err != nil {
			t.Fatal(tt.name, err)
		}
		for _, policy := range []*ClusterPolicy{policy, policy.DeepCopyObject().(*ClusterPolicy)} {
			if have := brief(ClusterNetworkPolicy(policy)); have != tt.want {
				t.Errorf("%s:\nhave %s\nwant %s", tt.name, have, tt.want)
			}
		}
	}
}

// manyFields are more fields than the decoder lists.
func manyFields() string {
	var out strings.Builder
	for i := range 2 * maxUnread {
		fmt.Fprintf(&out, ", x%d: 1", i)
	}
	return out.String()
}

func TestPolicyPod(t *testing.T) {
	tests := []struct{ name, pod, want string }{
		{"both families", `{spec: {containers: [{ports: [{name: http, containerPort: 80}, {containerPort: 81}]}]}, status: {phase: Running, podIPs: [{ip: 10.0.0.1}, {ip: "2001:db8::1"}, {ip: 10.0.0.2}]}}`,
			"[10.0.0.1 2001:db8::1] [{http tcp 80}]"},
		{"succeeded", `{status: {phase: Succeeded, podIPs: [{ip: 10.0.0.1}]}}`, "[] []"},
		{"failed", `{status: {phase: Failed, podIPs: [{ip: 10.0.0.1}]}}`, "[] []"},
		{"in the host's network", `{spec: {hostNetwork: true, containers: [{ports: [{name: http, containerPort: 80}]}]}, status: {podIPs: [{ip: 10.0.0.1}]}}`, "[] []"},
		{"sidecar", `{spec: {initContainers: [{restartPolicy: Always, ports: [{name: dns, protocol: UDP, containerPort: 53}]}, {ports: [{name: x, containerPort: 1}]}]},
			status: {podIPs: [{ip: 10.0.0.1}]}}`, "[10.0.0.1] [{dns udp 53}]"},
	}
	for _, tt := range tests {
		pod := &corev1.Pod{}
		if err := yaml.Unmarshal([]byte(tt.pod), pod); err != nil {
			t.Fatal(tt.name, err)
		}
		out := PolicyPod(pod)
		if have := fmt.Sprintf("%v %v", out.Addrs, out.Ports); have != tt.want {
			t.Errorf("%s: have %s, want %s", tt.name, have, tt.want)
		}
	}
}
