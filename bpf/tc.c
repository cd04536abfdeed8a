// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the tc programs of the node's devices. It writes packets, and decides
 * nothing. */

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "lib/admit.h"
#include "lib/config.h"
#include "lib/decide.h"
#include "lib/dsr.h"
#include "lib/dsr_encap.h"
#include "lib/dsr_ingress.h"
#include "lib/dsr_tc.h"
#include "lib/event.h"
#include "lib/fastpath.h"
#include "lib/flow.h"
#include "lib/fragment.h"
#include "lib/host_flow.h"
#include "lib/icmp.h"
#include "lib/maps.h"
#include "lib/masquerade.h"
#include "lib/new_flow.h"
#include "lib/packet.h"
#include "lib/pod_output.h"
#include "lib/reason.h"
#include "lib/rewrite.h"
#include "lib/route.h"
#include "lib/tc_output.h"
#include "lib/types.h"

/* Sends on an ICMP error or a later fragment. Nothing replies to these, because no error may be
 * sent about either. */
static __noinline int tc_apply_portless(struct __sk_buff *skb, const struct packet *p, struct action *a,
					bool leaving)
{
	enum tc_output output = tc_output(skb, p, a, leaving);

	if (output == TC_OUTPUT_NONE)
		return tc_drop(skb, p, a, leaving);
	if (output == TC_OUTPUT_DEVICE && !rewrite_skb_forward(skb, p, a))
		return tc_mistake(skb, p, a, leaving);
	return tc_send(skb, &a->to, output, leaving);
}

/* Reports whether the device accepts a packet with its encapsulation. Each segment of a merged
 * packet becomes smaller by as much, except for UDP, where segments are datagrams and keep their
 * size. */
static __always_inline bool tc_can_encap(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	__u32 piece = p->flow.proto == IPPROTO_UDP ? skb->gso_size : 0;

	if (piece)
		piece += p->l4 - p->l3 + sizeof(struct udphdr) + dsr_encap_len(p, a);
	a->mtu = dsr_encap_mtu((void *)(long)skb->data, (void *)(long)skb->data_end, p, a);
	return !a->to.ifindex || (fastpath_tc_takes(skb, a, a->mtu) && piece <= a->mtu);
}

/* Sends a packet to its backend with what the client dialed in an option. If it has no room for
 * that it is dropped without a reply, whether it may be fragmented or not: a smaller packet has no
 * room for the option either. */
__noinline int tc_add_option(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	if (!p || !a)
		return TC_NEXT;
	if (!dsr_option_fits((void *)(long)skb->data, (void *)(long)skb->data_end, p))
		return flow_drop(a, REASON_TOO_BIG);
	if (!dsr_rewrite_destination(skb, p, a) || (a->to.ifindex && !rewrite_skb_forward(skb, p, a)) ||
	    !dsr_option_insert(skb, p))
		return flow_drop(a, REASON_BAD_TABLE);
	return tc_send(skb, &a->to, a->to.ifindex ? TC_OUTPUT_DEVICE : TC_OUTPUT_STACK, false);
}

/* Sends a packet to a backend on another node that answers it directly, or decides to drop it: the
 * caller knows whether to reply. A packet that another node forwarded may only go back to that
 * node, and then without a port. */
__noinline int tc_encap(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	if (!p || !a)
		return TC_NEXT;
	if (p->is_returned || (p->is_forwarded && a->to.dport))
		return flow_drop(a, REASON_STRAY);
	if (p->ttl <= 1)
		return flow_expire(a);
	if (!tc_can_encap(skb, p, a))
		return dsr_encap_refuse(p, a);
	if (dsr_option_is_mode(a))
		return tc_add_option(skb, p, a);
	if (!rewrite_hops((void *)(long)skb->data, (void *)(long)skb->data_end, p) || !dsr_encap_grow(skb, p, a) ||
	    !dsr_encap_write((void *)(long)skb->data, (void *)(long)skb->data_end, p, a))
		return flow_drop(a, REASON_BAD_TABLE);
	if (a->reason != REASON_NONE)
		tc_count(skb, p, a, false);
	bpf_csum_update(skb, rewrite_hop_sum(p->is_v4) +
				     dsr_encap_sum((void *)(long)skb->data, (void *)(long)skb->data_end, p, a));
	return tc_send(skb, &a->to, a->to.ifindex ? TC_OUTPUT_DEVICE : TC_OUTPUT_STACK, false);
}

/* The same for a packet without ports, about which no error may be sent. */
static __always_inline int tc_encap_portless(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	int verdict = tc_encap(skb, p, a);

	return a->verdict == VERDICT_DROP ? tc_drop(skb, p, a, false) : verdict;
}

/* Reports whether a packet with the row of another place was found here. */
static __always_inline bool tc_is_astray(const struct action *a, bool leaving)
{
	return leaving ? !flow_is(&a->to, FLOW_LEAVES) : !flow_is(&a->to, FLOW_COMES_IN);
}

__noinline int tc_fragment(struct __sk_buff *skb, struct packet *p, struct action *a, bool leaving)
{
	if (!p || !a)
		return TC_NEXT;
	if (!fragment_decide(p, a) && !leaving && fragment_early_keep(skb, p))
		fragment_decide(p, a);
	if (a->verdict == VERDICT_DROP)
		return tc_drop(skb, p, a, leaving);
	if (a->verdict == VERDICT_PASS) /* of ICMP it may be the rest of a reply to a ping */
		return packet_is_icmp(p) ? TC_NEXT : tc_stray(skb, p, a, leaving);
	if (tc_is_astray(a, leaving))
		return TC_NEXT;
	if (a->to.kind & FLOW_DSR)
		return tc_encap_portless(skb, p, a);
	if (!rewrite_fragment((void *)(long)skb->data, (void *)(long)skb->data_end, p, a))
		return tc_mistake(skb, p, a, leaving);
	if (!p->is_v4)
		bpf_csum_update(skb, a->to.addr_diff);
	return tc_apply_portless(skb, p, a, leaving);
}

/* Replies to an echo request to a service, also if it comes from the node itself. */
__noinline int tc_ping(struct __sk_buff *skb, const struct packet *p, bool leaving)
{
	if (!p || (leaving && !host_flow_may_be(skb)) ||
	    !icmp_echo_answer((void *)(long)skb->data, (void *)(long)skb->data_end, p))
		return TC_NEXT;
	return bpf_redirect(skb->ifindex, leaving ? BPF_F_INGRESS : 0);
}

__noinline int tc_icmp(struct __sk_buff *skb, const struct packet *p, struct action *a, bool leaving)
{
	struct packet quote;
	int parsed;

	if (!p || !a || bpf_skb_pull_data(skb, skb->len < READ_PULL ? skb->len : READ_PULL))
		return TC_NEXT;
	parsed = packet_quote(&quote, p, (void *)(long)skb->data, (void *)(long)skb->data_end);
	if (parsed != PARSED_FLOW && parsed != PARSED_CUT)
		return leaving && skb->ingress_ifindex ? tc_stray(skb, p, a, true) : tc_ping(skb, p, leaving);
	icmp_decide(p, &quote, a);
	if (a->verdict == VERDICT_DROP)
		return tc_drop(skb, p, a, leaving);
	if (a->verdict == VERDICT_PASS)
		return tc_stray(skb, p, a, leaving);
	if (tc_is_astray(a, leaving))
		return TC_NEXT;
	if (a->to.kind & FLOW_DSR)
		return tc_encap_portless(skb, p, a);
	if (!icmp_rewrite((void *)(long)skb->data, (void *)(long)skb->data_end, p, &quote, a))
		return tc_mistake(skb, p, a, leaving);
	return tc_apply_portless(skb, p, a, leaving);
}

/* Handles a packet without ports of its own. */
static __always_inline int tc_other(struct __sk_buff *skb, struct packet *p, struct action *a, enum parsed parsed,
				    bool leaving)
{
	if (parsed == PARSED_LATER)
		return tc_fragment(skb, p, a, leaving);
	if (parsed == PARSED_ICMP)
		return tc_icmp(skb, p, a, leaving);
	if (parsed == PARSED_CUT)
		fragment_decide_cut(p, a);
	if (p->is_fragment && !leaving)
		fragment_early_ignore(p);
	if (leaving && masquerade_refuses(p, parsed))
		flow_drop(a, REASON_NO_PORTS);
	return a->verdict == VERDICT_DROP ? tc_drop(skb, p, a, leaving) : TC_NEXT;
}

/* Carries out a decision. Not static, so that the verifier walks it once and not for every path
 * that leads here. */
__noinline int tc_apply(struct __sk_buff *skb, const struct packet *p, struct action *a, bool leaving)
{
	enum tc_output output;
	int verdict;

	if (!p || !a || a->verdict == VERDICT_PASS)
		return TC_NEXT;
	if (a->to.kind & FLOW_DSR && a->verdict == VERDICT_REWRITE) {
		verdict = tc_encap(skb, p, a);
		if (a->verdict != VERDICT_DROP)
			return verdict;
		if (dsr_fallback_is_due(p, a))
			return TC_AGAIN;
	}
	if (a->verdict == VERDICT_DROP)
		return tc_refuse(skb, p, a, leaving);
	output = tc_output(skb, p, a, leaving);
	if (output == TC_OUTPUT_NONE)
		return tc_refuse(skb, p, a, leaving);
	if (a->reason != REASON_NONE)
		tc_count(skb, p, a, leaving);
	if (!rewrite_headers((void *)(long)skb->data, (void *)(long)skb->data_end, p, a,
			     output == TC_OUTPUT_DEVICE) ||
	    rewrite_skb_sum(skb, p, a, output == TC_OUTPUT_DEVICE))
		return tc_mistake(skb, p, a, leaving);
	return tc_send(skb, &a->to, output, leaving);
}

/* Handles the first fragment of a datagram. Returns zero if it goes on, otherwise the verdict for
 * the packet that has taken its place. */
static __always_inline int tc_first(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	int verdict;

	if (a->verdict != VERDICT_REWRITE)
		return fragment_early_ignore(p);
	fragment_remember(p, a);
	verdict = a->verdict == VERDICT_REWRITE ? fragment_early_serve(skb, p) : 0;
	if (verdict)
		dsr_begin_again(p, a);
	return verdict;
}

/* Drops a packet that another node forwarded if it is not for a flow or frontend known here: it
 * would be forwarded again, perhaps forever. */
static __always_inline int tc_settle(struct __sk_buff *skb, const struct packet *p, struct action *a, int verdict)
{
	if (!(p->is_forwarded || p->is_returned) || verdict != TC_NEXT || a->verdict == VERDICT_REWRITE)
		return verdict;
	flow_drop(a, REASON_STRAY);
	return tc_drop(skb, p, a, false);
}

/* Drops a packet that the fast path has written in part, for lack of memory. */
static __always_inline int tc_fastpath_fail(struct __sk_buff *skb, struct packet *p, struct action *a)
{
	*p = (struct packet) { .flow = p->flow, .ifindex = skb->ifindex };
	*a = (struct action) { .to = a->to };
	return tc_mistake(skb, p, a, false);
}

/* Sends a packet to a backend that answers it directly. */
static __always_inline int tc_fastpath_dsr(struct __sk_buff *skb, struct packet *p, struct action *a,
					   const struct fastpath *offsets, struct ct_entry *row)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ct_entry *to = &a->to;
	bool is_whole;

	if (data + offsets->l4 + sizeof(struct udphdr) > end || !to->ifindex || !route_is_complete(to) ||
	    !fastpath_tc_fits(skb, a, offsets) ||
	    !(fastpath_follow(offsets, data, row) && fastpath_touch(&p->flow, row, to)))
		return FASTPATH_UNKNOWN;
	switch (flow_kind(to)) {
	case FLOW_DSR_OPT:
		is_whole = fastpath_tc_option(skb, &p->flow, to, offsets);
		break;
	case FLOW_DSR_GENEVE:
		is_whole = fastpath_tc_encap(skb, &p->flow, to, offsets, true);
		break;
	default:
		is_whole = fastpath_tc_encap(skb, &p->flow, to, offsets, false);
	}
	if (!is_whole)
		return tc_fastpath_fail(skb, p, a);
	skb->tc_index = TC_DONE;
	return bpf_redirect(to->ifindex, 0);
}

/* The fast path for a packet of one family, see fastpath.h. A packet that is too big or lacks the
 * neighbor takes the slow path. Checksums are changed last, because a helper that changes a packet
 * invalidates the pointers to its headers. */
static __always_inline int tc_fastpath(struct __sk_buff *skb, struct packet *p, struct action *a, bool is_v4)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ct_entry *row, *to = &a->to;
	struct fastpath offsets;
	bool forward;
	__u64 sum;

	if (is_v4 ? !fastpath_read4(&offsets, &p->flow, data, end) : !fastpath_read6(&offsets, &p->flow, data, end))
		return FASTPATH_NOT;
	sum = fastpath_sum(&p->flow);
	row = bpf_map_lookup_elem(&ct, &p->flow);
	if (!row) {
		row = bpf_map_lookup_elem(&ct_pending, &p->flow);
		if (!row)
			return FASTPATH_NEW;
		return fastpath_is_dsr(row, sum, to) ? tc_fastpath_dsr(skb, p, a, &offsets, row) : FASTPATH_UNKNOWN;
	}
	if (!fastpath_copy(row, sum, to))
		return FASTPATH_NOT;
	if (to->ifindex && (!route_is_complete(to) || tc_is_too_big(skb, a)))
		return FASTPATH_NOT;
	if (!(fastpath_follow(&offsets, data, row) && fastpath_touch(&p->flow, row, to)))
		return FASTPATH_NOT;
	forward = to->ifindex;
	fastpath_rewrite(&offsets, data, to, forward);
	if (rewrite_skb_replace(skb, offsets.check, fastpath_proto(&offsets), to))
		return tc_fastpath_fail(skb, p, a);
	if (!is_v4)
		rewrite_skb_sum_ip6(skb, to, forward);
	skb->tc_index = TC_DONE;
	return forward ? bpf_redirect(to->ifindex, 0) : TC_NEXT;
}

/* The same for either family. A packet with a VLAN tag does not qualify. */
static __always_inline int tc_try(struct __sk_buff *skb, struct packet *p, struct action *a)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (cfg.growing || skb->vlan_present || data + sizeof(struct ethhdr) > end)
		return FASTPATH_NOT;
	if (fastpath_link(data) == bpf_htons(ETH_P_IP))
		return tc_fastpath(skb, p, a, true);
	return fastpath_link(data) == bpf_htons(ETH_P_IPV6) ? tc_fastpath(skb, p, a, false) : FASTPATH_NOT;
}

/* Decides about a packet of an unknown flow. Not static, like tc_apply. */
__noinline int tc_begin(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	return p && a ? new_flow_decide(skb, p, a, false) : 0;
}

/* Sends on an echo request or its reply. The stack handles one that is not translated. */
static __always_inline int tc_echo(struct __sk_buff *skb, const struct packet *p, struct action *a, bool leaving)
{
	if (a->verdict == VERDICT_PASS)
		return leaving ? tc_ping(skb, p, true) : TC_NEXT;
	if (p->is_fragment && a->verdict == VERDICT_REWRITE)
		fragment_remember(p, a);
	if (a->verdict == VERDICT_DROP)
		return leaving ? tc_refuse(skb, p, a, true) : tc_drop(skb, p, a, false);
	return masquerade_echo(skb, p, a) ? tc_send(skb, &a->to, TC_OUTPUT_STACK, leaving)
					  : tc_mistake(skb, p, a, leaving);
}

/* The slow path. */
static __always_inline int tc_slowpath(struct __sk_buff *skb, struct packet *p, struct action *a, __u32 lacks,
				       bool from_tunnel)
{
	enum parsed parsed = packet_read(skb, p, lacks);
	int verdict;

	if (tc_is_hidden(skb, p)) {
		flow_drop(a, REASON_PROTOCOL);
		return tc_drop(skb, p, a, false);
	}
	if (tc_is_tagged(skb, p))
		return TC_NEXT;
	if (!from_tunnel && admit_is_forged(p)) {
		flow_drop(a, REASON_POD_SOURCE);
		return tc_drop(skb, p, a, false);
	}
	if (parsed == PARSED_FLOW && admit_refuses_tunnel(p)) {
		flow_drop(a, REASON_TUNNEL_PORT);
		return tc_drop(skb, p, a, false);
	}
	if (dsr_ingress_is_due(p, parsed)) {
		int inner = dsr_ingress_decap(skb, p);

		if (p->is_forwarded || p->is_returned)
			parsed = inner;
	}
	if (parsed == PARSED_ICMP && masquerade_reads_echo(skb, p, false) && decide(skb, p, a))
		return tc_echo(skb, p, a, false);
	if (parsed != PARSED_FLOW)
		return tc_settle(skb, p, a, tc_other(skb, p, a, parsed, false));
	if (!decide(skb, p, a) && !masquerade_is_for_pod(p))
		tc_begin(skb, p, a);
	if (p->is_forwarded && a->is_first)
		dsr_ingress_new_flow(skb, p, a);
	if (p->is_fragment) {
		verdict = tc_first(skb, p, a);
		if (verdict)
			return verdict;
	}
	verdict = tc_apply(skb, p, a, false);
	if (verdict == TC_AGAIN) {
		dsr_fallback_enter(skb, p, a);
		verdict = tc_apply(skb, p, a, false);
	}
	return tc_settle(skb, p, a, verdict);
}

/* Sends a packet that would go to the stack straight to its pod, if possible. */
static __always_inline int tc_deliver(struct __sk_buff *skb, int verdict)
{
	if (verdict != TC_NEXT || !cfg.bypass)
		return verdict;
	verdict = pod_deliver(skb);
	if (verdict == PODS_DENIED)
		return TC_DROP;
	return verdict == PODS_OVER_RATE ? tc_drop_for(skb, REASON_JAM) : verdict; /* it exceeds the pod's rate */
}

/* Handles what was sent to a group, or to all on the link: no more than its source concerns us. */
static __noinline int tc_group(struct __sk_buff *skb)
{
	struct packet p = {};

	if (skb->pkt_type != 1 /* PACKET_BROADCAST */ && skb->pkt_type != 2 /* PACKET_MULTICAST */)
		return TC_NEXT;
	packet_read(skb, &p, 0);
	if (tc_is_hidden(skb, &p))
		return tc_drop_read(skb, &p, REASON_PROTOCOL);
	if (tc_is_tagged(skb, &p) || !admit_is_forged(&p))
		return TC_NEXT;
	return tc_drop_read(skb, &p, REASON_POD_SOURCE);
}

static __always_inline int tc_receive(struct __sk_buff *skb, bool from_tunnel)
{
	struct packet p;
	struct action a;
	int outcome;

	/* set by another node on this machine, across a virtual link */
	if (skb->tc_index == TC_DONE)
		skb->tc_index = 0;
	if (skb->pkt_type != 0 /* PACKET_HOST */)
		return from_tunnel ? TC_NEXT : tc_group(skb);
	outcome = tc_try(skb, &p, &a);
	if (outcome > FASTPATH_NOT)
		return tc_deliver(skb, outcome);
	if (outcome == FASTPATH_NEW) {
		p.tcp_flags = 0; /* neither SYN, FIN nor RST, see fastpath.h */
		p.seq = 0;
		if ((from_tunnel || !admit_is_forged(&p)) && masquerade_is_for_pod(&p))
			return tc_deliver(skb, TC_NEXT);
	}
	p = (struct packet) {};
	a = (struct action) {};
	return tc_deliver(skb, tc_slowpath(skb, &p, &a, fastpath_lacks(outcome), from_tunnel));
}

SEC("tc")
int tc_from_netdev(struct __sk_buff *skb)
{
	return tc_receive(skb, false);
}

/* What comes out of the tunnel between nodes, which the tunnel's device delivers. */
SEC("tc")
int tc_from_tunnel(struct __sk_buff *skb)
{
	return admit_from_tunnel(skb) ? tc_receive(skb, true) : tc_drop_for(skb, REASON_TUNNEL_SOURCE);
}

/* Decides about a leaving packet of an unknown flow. Not static, like tc_apply. */
__noinline int tc_leave(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	if (!p || !a)
		return 0;
	if (host_flow_may_be(skb))
		host_flow_target(p, a);
	if (a->verdict == VERDICT_PASS)
		masquerade_target(skb, p, a);
	if (a->verdict != VERDICT_REWRITE || new_flow_raced(p, a))
		return 0;
	new_flow_enter(skb, p, a);
	if (a->verdict != VERDICT_REWRITE || !flow_is_of_host(&a->to))
		return 0;
	return event_tell(p, a, HOOK_TC | EVENT_LEAVING, 0);
}

/* Handles what leaves: replies of local backends, packets of pods to the outside, and the node's
 * own packets to services. */
SEC("tc")
int tc_to_netdev(struct __sk_buff *skb)
{
	struct action a = {};
	enum parsed parsed;
	struct packet p = {};
	bool is_echo;

	if (skb->tc_index == TC_DONE)
		return TC_NEXT;
	parsed = packet_read(skb, &p, 0);
	is_echo = parsed == PARSED_ICMP && masquerade_reads_echo(skb, &p, true);
	if (parsed != PARSED_FLOW && !is_echo)
		return tc_other(skb, &p, &a, parsed, true);
	if (!decide_at(skb, &p, &a, FLOW_LEAVES))
		tc_leave(skb, &p, &a);
	if (is_echo)
		return tc_echo(skb, &p, &a, true);
	if (p.is_fragment && a.verdict == VERDICT_REWRITE)
		fragment_remember(&p, &a);
	return tc_apply(skb, &p, &a, true);
}

char _license[] SEC("license") = "Dual BSD/GPL";
