package sockmap

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/model"
)

// pod returns a pod with labels written as "app=web tier=a".
func pod(name, labels string, changes ...func(*model.Pod)) *model.Pod {
	namespace, name, _ := strings.Cut(name, "/")
	p := &model.Pod{Name: model.Name{Namespace: namespace, Name: name}, UID: "uid-" + name, Labels: map[string]string{}}
	for _, label := range strings.Fields(labels) {
		key, value, _ := strings.Cut(label, "=")
		p.Labels[key] = value
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

func says(word model.Choice) func(*model.Pod) { return func(p *model.Pod) { p.Accelerate = word } }

// is returns a peer that selects pods by one label, or all pods if that is empty.
func is(label string) model.Peer {
	if label == "" {
		return model.Peer{}
	}
	key, value, _ := strings.Cut(label, "=")
	return model.Peer{Pods: model.Selector{{Label: key, Operator: model.In, Values: []string{value}}}}
}

// policy returns a policy with peers at each end; "node" is the node.
func policy(name string, created int64, from, to string, ports ...uint16) *model.Acceleration {
	namespace, name, _ := strings.Cut(name, "/")
	peers := func(text string) (list []model.Peer) {
		for _, one := range strings.Split(text, ",") {
			if one == "node" {
				list = append(list, model.Peer{Node: true})
			} else {
				list = append(list, is(one))
			}
		}
		return list
	}
	return &model.Acceleration{
		Name: model.Name{Namespace: namespace, Name: name}, UID: "uid-" + name, Created: created, From: peers(from), To: peers(to), Ports: ports,
	}
}

// text writes a selection as "name: from/to port=to", with policies by their names and a star for
// the general rule.
func (s Selection) text() (lines []string) {
	rules := func(bits uint64) string {
		var names []string
		for at, policy := range s.Policies {
			switch {
			case bits&(1<<at) == 0:
			case at == 0:
				names = append(names, "*")
			case policy == nil:
				names = append(names, "none")
			default:
				names = append(names, policy.Name.Name)
			}
		}
		slices.Sort(names)
		return cmp.Or(strings.Join(names, "+"), "-")
	}
	add := func(name string, p Part) {
		line := fmt.Sprintf("%s: %s/%s", name, rules(p.From), rules(p.To))
		ports := make([]string, 0, len(p.Ports))
		for port, bits := range p.Ports {
			ports = append(ports, fmt.Sprintf(" %d=%s", port, rules(bits)))
		}
		slices.Sort(ports)
		lines = append(lines, line+strings.Join(ports, ""))
	}
	if p := s.Node; p.From != 0 || p.To != 0 || p.Ports != nil {
		add("node", p)
	}
	for _, m := range s.Pods {
		add(m.Pod.Name.String(), m.Part)
	}
	for _, c := range s.Complaints {
		lines = append(lines, c.Policy.String()+" "+c.Reason)
	}
	return lines
}

func TestSelect(t *testing.T) {
	const yes, no = model.Yes, model.No
	shop := func(word model.Choice) []*model.Namespace {
		return []*model.Namespace{{Name: "shop", Accelerate: word}}
	}
	web, db := pod("shop/web", "app=web"), pod("shop/db", "app=db")
	for _, tt := range []struct {
		name       string
		pods       []*model.Pod
		namespaces []*model.Namespace
		policies   []*model.Acceleration
		extra      model.Selector
		want       []string
	}{
		{name: "nothing is selected", pods: []*model.Pod{web, db}},
		{"a pod's annotation", []*model.Pod{pod("shop/a", "", says(yes)), pod("shop/b", "", says(no)), web}, nil, nil, nil, []string{"shop/a: */*"}},
		{"a namespace's annotation", []*model.Pod{web, pod("shop/b", "", says(no)), pod("other/c", "")}, shop(yes), nil, nil, []string{"shop/web: */*"}},
		{"a pod's yes in a namespace that says no", []*model.Pod{web, pod("shop/a", "", says(yes))}, shop(no), nil, nil, []string{"shop/a: */*"}},
		{"the agent's selector, in every namespace", []*model.Pod{web, db, pod("other/web", "app=web")}, nil, nil, is("app=web").Pods, []string{"other/web: */*", "shop/web: */*"}},
		{"an annotation precedes it", []*model.Pod{web, pod("other/web", "app=web", says(no))}, shop(no), nil, is("app=web").Pods, nil},
		{"pods in the node's network namespace", []*model.Pod{pod("shop/a", "app=web", says(yes), func(p *model.Pod) { p.HostNetwork = true })}, shop(yes),
			[]*model.Acceleration{policy("shop/p", 1, "", "")}, is("app=web").Pods, nil},
		{"finished pods", []*model.Pod{pod("shop/a", "", says(yes), func(p *model.Pod) { p.Finished = true })}, nil, []*model.Acceleration{policy("shop/p", 1, "", "")}, nil, nil},
		{"a policy of two ends", []*model.Pod{web, db, pod("shop/x", "app=x")}, nil, []*model.Acceleration{policy("shop/p", 1, "app=web", "app=db")}, nil,
			[]string{"shop/db: -/p", "shop/web: p/-"}},
		{"a policy applies to its own namespace", []*model.Pod{web, pod("other/db", "app=db")}, nil, []*model.Acceleration{policy("shop/p", 1, "app=web", "app=db"), policy("other/p", 1, "", "")}, nil,
			[]string{"other/db: p/p"}},
		{"an application and its sidecar", []*model.Pod{web}, nil, []*model.Acceleration{policy("shop/p", 1, "app=web", "app=web", 15001, 15006)}, nil, []string{"shop/web: p/- 15001=p 15006=p"}},
		{"ports of several policies", []*model.Pod{web, db}, nil, []*model.Acceleration{policy("shop/p", 1, "app=web", "app=db", 80), policy("shop/q", 2, "app=db", "app=db", 80, 81), policy("shop/r", 3, "", "app=db")}, nil,
			[]string{"shop/db: q+r/r 80=p+q 81=q", "shop/web: p+r/-"}},
		{"a proxy of the node", []*model.Pod{web}, nil, []*model.Acceleration{policy("shop/p", 1, "app=web", "node", 8080), policy("shop/q", 2, "node", "app=web")}, nil,
			[]string{"node: q/- 8080=p", "shop/web: p/q"}},
		{"a pod says no and a policy yes", []*model.Pod{web, pod("shop/db", "app=db", says(no))}, nil, []*model.Acceleration{policy("shop/p", 1, "app=web", "app=db")}, nil, nil},
		{"the namespace says no and a policy yes", []*model.Pod{web, db}, shop(no), []*model.Acceleration{policy("shop/p", 1, "app=web", "app=db")}, nil, nil},
		{"by annotation and by a policy", []*model.Pod{pod("shop/web", "app=web", says(yes)), db}, nil, []*model.Acceleration{policy("shop/p", 1, "app=web", "app=db")}, nil, []string{"shop/db: -/p", "shop/web: *+p/*"}},
		{"each policy has a bit of its own", []*model.Pod{web, db}, nil, []*model.Acceleration{policy("shop/a", 2, "app=db", "app=db"), policy("shop/c", 1, "app=web", "app=web"), policy("shop/b", 1, "app=web", "app=db")}, nil,
			[]string{"shop/db: a/a+b", "shop/web: b+c/c"}},
		{"a policy without pods here takes no bit", []*model.Pod{web, db}, nil, []*model.Acceleration{policy("shop/a", 1, "app=web", "app=none"), policy("shop/b", 1, "", "app=db"), policy("none/c", 1, "node", "")}, nil,
			[]string{"shop/db: b/b", "shop/web: b/-"}},
		{"problems of a policy are reported, even without pods", nil, nil, []*model.Acceleration{{Name: model.Name{Namespace: "shop", Name: "p"}, Problems: []model.Problem{{Reason: "Bad"}}}}, nil, []string{"shop/p Bad"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := slices.Clone(tt.policies)
			if diff := gocmp.Diff(tt.want, Select(tt.pods, tt.namespaces, tt.policies, tt.extra).text()); diff != "" {
				t.Errorf("(-want +have):\n%s", diff)
			}
			if !slices.Equal(before, tt.policies) {
				t.Error("Select reordered its argument")
			}
		})
	}
}

// The oldest policies get the bits; the others are reported.
func TestMoreRulesThanBits(t *testing.T) {
	var policies []*model.Acceleration
	for i := range int64(MaxRules + 1) {
		policies = append(policies, policy(fmt.Sprintf("shop/p%02d", i), 100-i, "app=web", "app=web"))
	}
	policies = append(policies, policy("shop/elsewhere", 1000, "app=none", "app=web"))
	s := Select([]*model.Pod{pod("shop/web", "app=web", says(model.Yes))}, nil, policies, nil)
	const all = uint64(1)<<MaxRules - 1
	if s.Pods[0].From != all || s.Pods[0].To != all {
		t.Errorf("the pod has bits %x and %x, want all", s.Pods[0].From, s.Pods[0].To)
	}
	if diff := gocmp.Diff([]string{"shop/p01 TooManyAccelerations", "shop/p00 TooManyAccelerations"}, s.text()[1:]); diff != "" {
		t.Errorf("(-want +have):\n%s", diff)
	}
}

// A policy keeps its bit when others come or go, unless they compete for the same bit.
func TestPoliciesKeepTheirBits(t *testing.T) {
	web := []*model.Pod{pod("shop/web", "app=web")}
	var policies []*model.Acceleration
	for i := range int64(20) {
		policies = append(policies, policy(fmt.Sprintf("shop/p%02d", i), i, "app=web", "app=web"))
	}
	place := func(s Selection, p *model.Acceleration) int { return slices.Index(s.Policies[:], p) }
	before, moved := Select(web, nil, policies, nil), 0
	for i := range policies {
		after := Select(web, nil, slices.Delete(slices.Clone(policies), i, i+1), nil)
		for _, p := range policies {
			if was, is := place(before, p), place(after, p); p != policies[i] && was != is {
				moved++
			}
		}
	}
	if moved > len(policies) {
		t.Errorf("when each of %d policies was deleted in turn, others moved %d times", len(policies), moved)
	}
}

// No set of policies exceeds the rows of the map, or the number that can be evaluated at every
// change.
func TestSelectIsBounded(t *testing.T) {
	var pods []*model.Pod
	for i := range 110 {
		pods = append(pods, pod(fmt.Sprintf("shop/web%d", i), "app=web"))
	}
	var policies []*model.Acceleration
	for i := range int64(mostPolicies + 1) {
		from := "app=none"
		if i < MaxRules {
			from = "app=web"
		}
		var ports []uint16
		for n := range 16 {
			ports = append(ports, uint16(1+16*i+int64(n)))
		}
		policies = append(policies, policy(fmt.Sprintf("shop/p%04d", i), i, from, "app=web", ports...))
	}
	s := Select(pods, nil, policies, nil)
	rows := 1
	for _, m := range s.Pods {
		rows += 1 + len(m.Ports)
	}
	if rows > mostRows || rows < mostRows-110*17 {
		t.Errorf("%d rows", rows)
	}
	if n := len(s.Complaints); n != MaxRules-(mostRows-111)/(110*16)+1 {
		t.Errorf("%d policies are reported as ignored", n)
	}
	if last := s.Complaints[len(s.Complaints)-1]; last.Policy != policies[mostPolicies] || !strings.Contains(last.Message, "its namespace has 256 older ones") {
		t.Errorf("the last complaint is %+v", last)
	}
	// In another namespace, a policy that needs no more rows still works.
	pods, policies = append(pods, pod("other/a", "")), append(policies, policy("other/p", 5000, "", ""))
	if s := Select(pods, nil, policies, nil); s.Pods[0].Pod.Namespace != "other" || s.Pods[0].From == 0 {
		t.Errorf("another namespace has %+v", s.Pods[0])
	}
}

// lets reports whether a policy admits a connection, according to its text alone.
func lets(p *model.Acceleration, client, server *model.Pod, port uint16) bool {
	allows := func(end *model.Pod, peers []model.Peer) bool {
		for _, peer := range peers {
			if end == nil || peer.Node {
				if end == nil && peer.Node {
					return true
				}
				continue
			}
			if end.Namespace == p.Namespace && peer.Pods.Selects(end.Labels) {
				return true
			}
		}
		return false
	}
	return allows(client, p.From) && allows(server, p.To) && (len(p.Ports) == 0 || slices.Contains(p.Ports, port))
}

// takes reports whether an end takes part at all, and whether it does without a policy; nil is the
// node.
func takes(end *model.Pod, namespaces []*model.Namespace, extra model.Selector) (atAll, byWord bool) {
	if end == nil {
		return true, false
	}
	if end.HostNetwork || end.Finished || end.Accelerate == model.No {
		return false, false
	}
	if end.Accelerate == model.Yes {
		return true, true
	}
	for _, n := range namespaces {
		if n.Name == end.Namespace && n.Accelerate != model.Unsaid {
			return n.Accelerate == model.Yes, n.Accelerate == model.Yes
		}
	}
	return true, len(extra) > 0 && extra.Selects(end.Labels)
}

// Two ends share a bit if and only if a policy, or the annotations of both, admit their connection.
func TestBitsSayWhatPoliciesSay(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	shared, apart := 0, 0
	for range 3000 {
		pods, namespaces, policies, extra := anything(random)
		s := Select(pods, namespaces, policies, extra)
		parts := map[*model.Pod]Part{nil: s.Node}
		for _, m := range s.Pods {
			parts[m.Pod] = m.Part
		}
		ends := append([]*model.Pod{nil}, pods...)
		for _, client := range ends {
			for _, server := range ends {
				for _, port := range []uint16{1, 2, 3} {
					have := parts[client].From&(parts[server].To|parts[server].Ports[port]) != 0
					clientTakes, clientWord := takes(client, namespaces, extra)
					serverTakes, serverWord := takes(server, namespaces, extra)
					want := clientWord && serverWord
					for _, p := range policies {
						want = want || clientTakes && serverTakes && lets(p, client, server, port)
					}
					if have != want {
						t.Fatalf("seed %d: %+v to %+v at port %d: %v, want %v, by %v", seed, client, server, port, have, want, policies)
					}
					if have {
						shared++
					} else {
						apart++
					}
				}
			}
		}
		random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		random.Shuffle(len(policies), func(i, j int) { policies[i], policies[j] = policies[j], policies[i] })
		if diff := gocmp.Diff(s, Select(pods, namespaces, policies, extra)); diff != "" {
			t.Fatalf("seed %d: in another order (-one +other):\n%s", seed, diff)
		}
	}
	if shared < 1000 || apart < 1000 {
		t.Errorf("only %d pairs share a bit, and %d do not", shared, apart)
	}
}

// anything returns a random small node, with fewer policies than there are bits.
func anything(random *rand.Rand) (pods []*model.Pod, namespaces []*model.Namespace, policies []*model.Acceleration, extra model.Selector) {
	one := func(list ...string) string { return list[random.IntN(len(list))] }
	word := func() model.Choice { return model.Choice(max(0, random.IntN(6)-3)) }
	selector := func() (s model.Selector) {
		for range random.IntN(3) {
			s = append(s, model.Requirement{
				Label: one("a", "b"), Operator: []model.Operator{model.In, model.In, model.NotIn, model.Present, model.Absent}[random.IntN(5)],
				Values: []string{one("x", "y"), one("x", "z")},
			})
		}
		return s
	}
	for i := range random.IntN(7) {
		pods = append(pods, pod(fmt.Sprintf("%s/p%d", one("m", "n"), i), one("", "a=x", "a=y b=x", "b=y", "a=z b=z"), says(word()), func(p *model.Pod) {
			p.HostNetwork, p.Finished = random.IntN(10) == 0, random.IntN(10) == 0
		}))
	}
	for _, name := range []string{"m", "n"} {
		if random.IntN(2) == 0 {
			namespaces = append(namespaces, &model.Namespace{Name: name, Accelerate: word()})
		}
	}
	for i := range random.IntN(6) {
		p := &model.Acceleration{Name: model.Name{Namespace: one("m", "n", "o"), Name: fmt.Sprint(i)}, UID: fmt.Sprint(random.Uint32()), Created: int64(random.IntN(3))}
		node := random.IntN(3) // no policy has the node at both ends
		for side, peers := range []*[]model.Peer{&p.From, &p.To} {
			for range random.IntN(3) {
				*peers = append(*peers, model.Peer{Pods: selector()})
			}
			if side == node {
				*peers = append(*peers, model.Peer{Node: true})
			}
		}
		for range random.IntN(3) {
			p.Ports = append(p.Ports, uint16(1+random.IntN(3)))
		}
		policies = append(policies, p)
	}
	if random.IntN(3) == 0 {
		extra = selector()
	}
	return pods, namespaces, policies, extra
}
