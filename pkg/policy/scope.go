package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"fairlead.io/fairlead/pkg/model"
)

// scope is a namespace with subjects on this node.
type scope struct {
	number    uint32
	namespace string
	text      string // that the number is given for
	subjects  map[string]*subject
	reduced   *numbers
	atoms     map[string]int // texts of what its NetworkPolicies tell apart by -> terms
	used      Quota
	over      string // what it has too many of
	own       bool   // it has NetworkPolicies; what an administrator's select is not its fault
	taken     bool   // its views and rows are those of the tables before, while it is compiled
}

// subject is what pods of a namespace have in common that the same policies select. Its number stands
// for what those policies say, so that an edit leaves the rows of the old number as they are.
type subject struct {
	number   uint32
	policies []*model.NetworkPolicy // in the order in which they decide
	ports    []model.NamedPort      // of the pods
	pods     []model.Name
	rules    [model.Directions]*rules
	own      bool // some of its policies are NetworkPolicies
	unknown  bool // which policies select it is not known
	refused  bool // it denies everything
}

// group fills the scopes with the pods of this node that policies select.
func (c *Compiler) group() {
	policies := c.policiesByNamespace()
	for _, name := range slices.SortedFunc(maps.Keys(c.local), model.Name.Compare) {
		pod := c.local[name]
		if pod.HostNetwork {
			continue
		}
		list, known := c.selecting(pod, policies)
		if len(list) == 0 && known {
			continue
		}
		s := &subject{ports: pod.Ports, policies: list, unknown: !known}
		for _, policy := range list {
			s.own = s.own || policy.Tier == model.TierNetworkPolicy
		}
		c.scopeOf(name.Namespace).join(s, name, c.revisions)
	}
}

func selects(policy *model.NetworkPolicy, namespace, pod map[string]string) bool {
	set := &policy.Subject
	return (set.Namespace != "" || set.Namespaces.Selects(namespace)) && set.Pods.Selects(pod)
}

func (c *Compiler) scopeOf(namespace string) *scope {
	s := c.scopes[namespace]
	if s == nil {
		s = &scope{namespace: namespace, subjects: map[string]*subject{}, atoms: map[string]int{}}
		c.scopes[namespace] = s
	}
	return s
}

// join adds a pod to those with the same policies and the same meaning of the names of ports in
// them.
func (s *scope) join(as *subject, pod model.Name, revisions map[model.Name]string) {
	var key []byte
	key = strconv.AppendBool(key, as.unknown)
	for _, policy := range as.policies {
		key = append(key, revisions[policy.Name]...)
	}
	var ports []model.NamedPort
	for _, port := range as.ports {
		if as.names(port) && !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	slices.SortFunc(ports, func(a, b model.NamedPort) int { return slices.Compare([]byte(portText(a)), []byte(portText(b))) })
	for _, port := range ports {
		key = appendText(key, portText(port))
	}
	as.ports = ports
	if s.subjects[string(key)] == nil {
		s.subjects[string(key)] = as
		s.own = s.own || as.own
	}
	s.subjects[string(key)].pods = append(s.subjects[string(key)].pods, pod)
}

// names reports whether ingress rules name a port of the subject.
func (s *subject) names(port model.NamedPort) bool {
	for _, policy := range s.policies {
		for i := range policy.Rules[model.Ingress] {
			for _, named := range policy.Rules[model.Ingress][i].Named {
				if sameName(named, port) {
					return true
				}
			}
		}
	}
	return false
}

// sameName reports whether a rule's name of a port means a pod's port.
func sameName(rule, pod model.NamedPort) bool {
	return rule.Name == pod.Name && (rule.Protocol == model.AnyProtocol || rule.Protocol == pod.Protocol)
}

// checkSelectors counts what the NetworkPolicies of a scope tell addresses apart by.
func (s *scope) checkSelectors(quota Quota) {
	seen := map[model.Name]struct{}{}
	for _, subject := range s.subjects {
		for _, policy := range subject.policies {
			if _, found := seen[policy.Name]; found || policy.Tier != model.TierNetworkPolicy {
				continue
			}
			seen[policy.Name] = struct{}{}
			for _, list := range policy.Rules {
				for i := range list {
					s.count(&list[i])
				}
			}
		}
	}
	for _, terms := range s.atoms {
		s.used.Selectors++
		s.used.Terms += terms
	}
	s.atoms = nil
	if s.used.Selectors > quota.Selectors {
		s.over = fmt.Sprintf("%d selectors and blocks", quota.Selectors)
	} else if s.used.Terms > quota.Terms {
		s.over = fmt.Sprintf("%d requirements and values", quota.Terms)
	}
}

func (s *scope) count(rule *model.PolicyRule) {
	for i := range rule.Peers {
		switch peer := &rule.Peers[i]; {
		case peer.Block != nil:
			s.atoms["block "+peer.Block.Prefix.String()+fmt.Sprint(peer.Block.Except)] = 1
			for _, except := range peer.Block.Except {
				s.atoms["except "+except.String()] = 1
			}
		case peer.Pods != nil:
			s.atoms[peer.Pods.Namespace+"/"+selectorText(peer.Pods.Namespaces)+"/"+selectorText(peer.Pods.Pods)] = terms(peer.Pods.Namespaces) + terms(peer.Pods.Pods)
		}
	}
	for _, named := range rule.Named {
		s.atoms["port "+portText(named)] = 1
	}
}

func portText(p model.NamedPort) string {
	return fmt.Sprintf("%d %d %s", p.Protocol, p.Port, p.Name)
}
