package bpf

import (
	"fmt"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
)

// policyRows is how many rows policy_flows may have.
const policyRows = 262144

// answered opens so many flows of a pod, which its peer answers, and returns how many of them nothing evicts.
func (h *routerPolicies) answered(t *testing.T, pod, first, flows int) (kept int) {
	t.Helper()
	for i := range flows {
		query := packet{from: fmt.Sprintf("%s:%d", h.addrs[pod], first+i), to: h.remote + ":99", proto: udp}
		h.passes(t, h.pods[pod], h.outside, query)
		h.passes(t, h.outside, h.pods[pod], packet{from: query.to, to: query.from, proto: udp})
		var row bpf.MapsPolicyFlow
		if err := h.maps.PolicyFlows.Lookup(flowOf(query.from, query.to, udp), &row); err == nil {
			if row.Owner != h.list[pod].Index {
				t.Fatalf("the row of a flow of pod %d has owner %d, want %d", pod, row.Owner, h.list[pod].Index)
			}
			kept++
		}
	}
	return kept
}

// leave makes the programs believe that only so many rows of policy_flows are free.
func (h *routerPolicies) leave(t *testing.T, rows int32) {
	t.Helper()
	if err := h.maps.PolicyShares.Put(uint32(0), bpf.MapsPolicyShare{Rows: policyRows - rows}); err != nil {
		t.Fatal(err)
	}
}

// A pod that opens flow after flow gets half of the rows that are free, and what is beyond is carried on and
// counted. Another pod still finds room.
func TestPolicyShare(t *testing.T) {
	policyRouters(t, func(t *testing.T, h *routerPolicies) {
		for pod := range 2 {
			h.isolate(t, pod, uint32(pod+1), 0)
			h.decide(t, pod, egress, 0, all(accepted))
			h.decide(t, pod, ingress, 0, all(denyRule))
		}
		h.leave(t, 20)
		if kept := h.answered(t, 0, 1000, 25); kept != 10 {
			t.Errorf("%d flows of the first pod have rows that nothing evicts, want 10 of the 20 that were free", kept)
		}
		if n := h.countedAt(t, "pod", "flows-full"); n != 15 {
			t.Errorf("%d packets are counted as flows-full, want 15", n)
		}
		if kept := h.answered(t, 1, 1000, 4); kept != 4 {
			t.Errorf("%d flows of the second pod have rows that nothing evicts, want all 4", kept)
		}
	})
}

// A flow by the ports of a former one takes no more of the share than that did.
func TestPolicyShareAgain(t *testing.T) {
	policyRouters(t, func(t *testing.T, h *routerPolicies) {
		h.isolate(t, 1, 1, 0)
		h.decide(t, 1, egress, 0, all(accepted))
		h.decide(t, 1, ingress, 0, all(accepted))
		for i := range 6 {
			from, to := h.pods[0], h.pods[1]
			p := packet{from: h.addrs[0] + ":1000", to: h.addrs[1] + ":2000", proto: tcp, flags: syn}
			if i%2 == 1 {
				from, to, p.from, p.to = to, from, p.to, p.from
			}
			h.passes(t, from, to, p)
			h.passes(t, to, from, packet{from: p.to, to: p.from, proto: tcp, flags: syn | ack})
			h.passes(t, to, from, packet{from: p.to, to: p.from, proto: tcp, flags: ack})
		}
		shares, err := h.maps.SharesOfFlows()
		if err != nil || shares.Rows != 1 || shares.Pods[h.list[1].Index] != 1 {
			t.Errorf("shares %+v (%v), want one row, of pod %d", shares, err, h.list[1].Index)
		}
	})
}
