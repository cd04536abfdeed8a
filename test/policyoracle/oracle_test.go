package policyoracle

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.io/fairlead/pkg/source"
)

func isBaseline(policy *source.ClusterPolicy) bool { return policy.Spec.Tier == "Baseline" }

// perState is the number of packets for each state.
const perState = 20

func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestVerdicts compares as many packets as CASES says; make test-policyoracle says a million. SEED selects other ones.
// Cyclonus is asked only about NetworkPolicies, which are half of the states.
func TestVerdicts(t *testing.T) {
	cases, seed := setting(t, "CASES", 100_000), setting(t, "SEED", 1)
	theirs, seen := newKubeNetpol(t), map[string]int{}
	for number := range (cases + perState - 1) / perState {
		g := &generator{rand.New(rand.NewPCG(seed, number))}
		s := g.state()
		theirs.set(s)
		mine := newOurs(s)
		var second *cyclonus
		if len(s.cluster) == 0 && !s.notInWithoutLabel() {
			second = newCyclonus(s)
		}
		for range perState {
			p := g.probe()
			verdict := mine.evaluate(p)
			if s.baselineOfOtherDirection(p) {
				seen["left out: the Baseline tier of a pod that is isolated in the other direction"]++
			} else if theirs.accepts(p) != verdict.Accepted {
				t.Fatalf("seed %d, state %d, %+v: ours %v (%s), kube-network-policies the opposite\n%s", seed, number, p, verdict.Accepted, verdict.Rule, s.text())
			} else {
				seen["kube-network-policies agrees"]++
			}
			if second != nil {
				if second.accepts(p) != verdict.Accepted {
					t.Fatalf("seed %d, state %d, %+v: ours %v (%s), cyclonus the opposite\n%s", seed, number, p, verdict.Accepted, verdict.Rule, s.text())
				}
				seen["cyclonus agrees"]++
			}
			seen[fmt.Sprintf("accepted: %v", verdict.Accepted)]++
			seen[fmt.Sprintf("rule: %d, tier %d, %s, %s", verdict.Rule.Why, verdict.Rule.Tier, verdict.Rule.Direction, verdict.Rule.Action)]++
		}
	}
	for _, what := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%8d %s", seen[what], what)
	}
	if agree := seen["cyclonus agrees"]; agree < int(cases/8) {
		t.Errorf("cyclonus judged only %d of %d packets", agree, cases)
	}
	if agree := seen["kube-network-policies agrees"]; agree < int(cases*3/4) {
		t.Errorf("kube-network-policies judged only %d of %d packets", agree, cases)
	}
}

// notInWithoutLabel reports whether a selector says NotIn of a label that something lacks. Then it is
// selected, says the API, but not by cyclonus.
func (s *state) notInWithoutLabel() bool {
	asked := map[string]bool{}
	note := func(selector *metav1.LabelSelector) {
		if selector != nil {
			for _, e := range selector.MatchExpressions {
				if e.Operator == metav1.LabelSelectorOpNotIn {
					asked[e.Key] = true
				}
			}
		}
	}
	for _, policy := range s.policies {
		note(&policy.Spec.PodSelector)
		var peers []networkingv1.NetworkPolicyPeer
		for _, rule := range policy.Spec.Ingress {
			peers = append(peers, rule.From...)
		}
		for _, rule := range policy.Spec.Egress {
			peers = append(peers, rule.To...)
		}
		for i := range peers {
			note(peers[i].PodSelector)
			note(peers[i].NamespaceSelector)
		}
	}
	lacks := func(labels map[string]string) bool {
		for key := range asked {
			if _, has := labels[key]; !has {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(s.pods, func(pod *corev1.Pod) bool { return lacks(pod.Labels) }) ||
		slices.ContainsFunc(s.namespaces, func(namespace *corev1.Namespace) bool { return lacks(namespace.Labels) })
}

// baselineOfOtherDirection reports whether an end of a packet is selected by NetworkPolicies, but by
// none for this direction, while there is a Baseline tier. Kube-network-policies then leaves that
// tier out; TestDifferences says why we do not.
func (s *state) baselineOfOtherDirection(p probe) bool {
	if !slices.ContainsFunc(s.cluster, isBaseline) {
		return false
	}
	for addr, kind := range map[string]networkingv1.PolicyType{p.src: networkingv1.PolicyTypeEgress, p.dst: networkingv1.PolicyTypeIngress} {
		pod, selected, isolated := s.holder(addr), false, false
		if pod == nil {
			continue
		}
		for _, policy := range s.policies {
			selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
			if err == nil && policy.Namespace == pod.Namespace && selector.Matches(labels.Set(pod.Labels)) {
				selected = true
				isolated = isolated || slices.Contains(policy.Spec.PolicyTypes, kind)
			}
		}
		if selected && !isolated {
			return true
		}
	}
	return false
}
