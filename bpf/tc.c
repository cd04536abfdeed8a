// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the programs at tc of the node's devices. Nothing is decided here. */

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "lib/back.h"
#include "lib/echo.h"
#include "lib/fallback.h"
#include "lib/forwarded.h"
#include "lib/fragments.h"
#include "lib/icmp.h"
#include "lib/late.h"
#include "lib/masquerade.h"
#include "lib/plaintc.h"
#include "lib/pods.h"
#include "lib/read.h"
#include "lib/sendtc.h"
#include "lib/wrap.h"

/* Errors and later fragments: they have no answer, since an error about either would be one too many. */
static __noinline int tc_apply_plain(struct __sk_buff *skb, const struct packet *p, struct action *a, bool leaving)
{
	enum tc_way way = tc_way(skb, p, a, leaving);

	if (way == TC_WAY_NONE)
		return tc_drop(skb, p, a, leaving);
	if (way == TC_WAY_ON && !skb_forward(skb, p, a))
		return tc_mistake(skb, p, a, leaving);
	return tc_send(skb, &a->to, way, leaving);
}

/* The device takes so much with what is put around it. Each piece of a merged one is made smaller by as much, but
 * for UDP, where pieces are datagrams and stay as they are. */
static __always_inline bool tc_wraps(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	__u32 piece = p->flow.proto == IPPROTO_UDP ? skb->gso_size : 0;

	if (piece)
		piece += p->l4 - p->l3 + sizeof(struct udphdr) + wrap_len(p, a);
	a->mtu = wrap_mtu((void *)(long)skb->data, (void *)(long)skb->data_end, p, a);
	return !a->to.ifindex || (tc_takes(skb, a, a->mtu) && piece <= a->mtu);
}

/* Sends a packet to its backend with what the client dialled in an option. What has no room for that may be cut up
 * or not, and is told nothing: smaller ones have no room either. */
__noinline int tc_direct(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	if (!p || !a)
		return TC_NEXT;
	if (!option_fits((void *)(long)skb->data, (void *)(long)skb->data_end, p))
		return action_drop(a, REASON_TOO_BIG);
	if (!skb_point(skb, p, a) || (a->to.ifindex && !skb_forward(skb, p, a)) || !skb_mark(skb, p))
		return action_drop(a, REASON_BAD_TABLE);
	return tc_send(skb, &a->to, a->to.ifindex ? TC_WAY_ON : TC_WAY_STACK, false);
}

/* Sends a packet to a backend on another node that answers it itself, or decides that it is dropped: who calls this
 * knows whether anybody is told. What another node forwarded only goes back there, and then there is no port. */
__noinline int tc_wrap(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	if (!p || !a)
		return TC_NEXT;
	if (p->is_returned || (p->is_unwrapped && a->to.dport))
		return action_drop(a, REASON_STRAY);
	if (p->ttl <= 1)
		return action_expire(a);
	if (!tc_wraps(skb, p, a))
		return wrap_refuse(p, a);
	if (option_is_mode(a))
		return tc_direct(skb, p, a);
	if (!rewrite_hops((void *)(long)skb->data, (void *)(long)skb->data_end, p) || !skb_grow(skb, p, a) ||
	    !wrap_write((void *)(long)skb->data, (void *)(long)skb->data_end, p, a))
		return action_drop(a, REASON_BAD_TABLE);
	if (a->reason != REASON_NONE)
		tc_count(skb, p, a, false);
	bpf_csum_update(skb, (p->is_v4 ? 0 : (__u16)~bpf_htons(1)) +
				     wrap_sum((void *)(long)skb->data, (void *)(long)skb->data_end, p, a));
	return tc_send(skb, &a->to, a->to.ifindex ? TC_WAY_ON : TC_WAY_STACK, false);
}

/* The same with what has no ports: an error about it would be one too many. */
static __always_inline int tc_wrap_plain(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	int verdict = tc_wrap(skb, p, a);

	return a->verdict == VERDICT_DROP ? tc_drop(skb, p, a, false) : verdict;
}

/* Whether a row was come upon from the wrong side of the node. */
static __always_inline bool tc_is_astray(const struct action *a, bool leaving)
{
	return leaving ? !ct_is_at(&a->to, CT_LEAVING) : !ct_comes_in(&a->to);
}

__noinline int tc_fragment(struct __sk_buff *skb, struct packet *p, struct action *a, bool leaving)
{
	if (!p || !a)
		return TC_NEXT;
	if (!fragment_decide(p, a) && !leaving && late_keep(skb, p))
		fragment_decide(p, a);
	if (a->verdict == VERDICT_DROP)
		return tc_drop(skb, p, a, leaving);
	if (a->verdict == VERDICT_PASS || tc_is_astray(a, leaving))
		return TC_NEXT;
	if (a->to.flags & CT_DIRECT)
		return tc_wrap_plain(skb, p, a);
	if (!rewrite_fragment((void *)(long)skb->data, (void *)(long)skb->data_end, p, a))
		return tc_mistake(skb, p, a, leaving);
	if (!p->is_v4)
		bpf_csum_update(skb, a->to.addr_diff);
	return tc_apply_plain(skb, p, a, leaving);
}

/* Answers an echo to a service, also if the node itself sends it. */
__noinline int tc_ping(struct __sk_buff *skb, const struct packet *p, bool leaving)
{
	if (!p || (leaving && !own_may_be(skb)) ||
	    !echo_answer((void *)(long)skb->data, (void *)(long)skb->data_end, p))
		return TC_NEXT;
	return bpf_redirect(skb->ifindex, leaving ? BPF_F_INGRESS : 0);
}

__noinline int tc_icmp(struct __sk_buff *skb, const struct packet *p, struct action *a, bool leaving)
{
	struct packet quote;
	int parsed;

	if (!p || !a || bpf_skb_pull_data(skb, skb->len < READ_PULL ? skb->len : READ_PULL))
		return TC_NEXT;
	parsed = icmp_quote(&quote, p, (void *)(long)skb->data, (void *)(long)skb->data_end);
	if (parsed != PARSED_FLOW && parsed != PARSED_CUT)
		return tc_ping(skb, p, leaving);
	icmp_decide(p, &quote, a);
	if (a->verdict == VERDICT_DROP)
		return tc_drop(skb, p, a, leaving);
	if (a->verdict == VERDICT_PASS || tc_is_astray(a, leaving))
		return TC_NEXT;
	if (a->to.flags & CT_DIRECT)
		return tc_wrap_plain(skb, p, a);
	if (!icmp_rewrite((void *)(long)skb->data, (void *)(long)skb->data_end, p, &quote, a))
		return tc_mistake(skb, p, a, leaving);
	return tc_apply_plain(skb, p, a, leaving);
}

/* What has no ports of its own. */
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
		late_ignore(p);
	if (leaving && masquerade_refuses(p, parsed))
		action_drop(a, REASON_NO_PORTS);
	return a->verdict == VERDICT_DROP ? tc_drop(skb, p, a, leaving) : TC_NEXT;
}

/* Does what was decided. Not static, so the verifier walks it once and not for every way that decisions come by. */
__noinline int tc_apply(struct __sk_buff *skb, const struct packet *p, struct action *a, bool leaving)
{
	enum tc_way way;
	int verdict;

	if (!p || !a || a->verdict == VERDICT_PASS)
		return TC_NEXT;
	if (a->to.flags & CT_DIRECT && a->verdict == VERDICT_REWRITE) {
		verdict = tc_wrap(skb, p, a);
		if (a->verdict != VERDICT_DROP)
			return verdict;
		if (fallback_is_due(p, a))
			return TC_AGAIN;
	}
	if (a->verdict == VERDICT_DROP)
		return tc_refuse(skb, p, a, leaving);
	way = tc_way(skb, p, a, leaving);
	if (way == TC_WAY_NONE)
		return tc_refuse(skb, p, a, leaving);
	if (a->reason != REASON_NONE)
		tc_count(skb, p, a, leaving);
	if (!rewrite_headers((void *)(long)skb->data, (void *)(long)skb->data_end, p, a, way == TC_WAY_ON) ||
	    skb_sum(skb, p, a, way == TC_WAY_ON))
		return tc_mistake(skb, p, a, leaving);
	return tc_send(skb, &a->to, way, leaving);
}

/* The first fragment of a datagram. Zero: it goes its way; else what is to become of what is in its place. */
static __always_inline int tc_first(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	int verdict;

	if (a->verdict != VERDICT_REWRITE)
		return late_ignore(p);
	fragment_remember(p, a);
	verdict = a->verdict == VERDICT_REWRITE ? late_serve(skb, p) : 0;
	if (verdict)
		direct_again(p, a);
	return verdict;
}

/* Of what another node forwarded, nothing goes on that is not known here: it would be forwarded again, and perhaps
 * for ever. */
static __always_inline int tc_settle(struct __sk_buff *skb, const struct packet *p, struct action *a, int verdict)
{
	if (!(p->is_unwrapped || p->is_returned) || verdict != TC_NEXT || a->verdict == VERDICT_REWRITE)
		return verdict;
	action_drop(a, REASON_STRAY);
	return tc_drop(skb, p, a, false);
}

/* Ends the short way of a packet that is written in part, for want of memory. */
static __always_inline int tc_plain_fail(struct __sk_buff *skb, struct packet *p, struct action *a)
{
	*p = (struct packet) { .flow = p->flow, .ifindex = skb->ifindex };
	*a = (struct action) { .to = a->to };
	return tc_mistake(skb, p, a, false);
}

/* Sends a packet to its backend that answers it itself. */
static __always_inline int tc_plain_direct(struct __sk_buff *skb, struct packet *p, struct action *a,
					   const struct plain *plain, struct ct_entry *row)
{
	struct ct_entry *to = &a->to;
	bool is_whole;

	if (!to->ifindex || !route_is_complete(to) || !tc_plain_fits(skb, a, plain) ||
	    !plain_touch(&p->flow, row, to))
		return PLAIN_UNKNOWN;
	switch (wrap_mode(to)) {
	case DIRECT_OPT:
		is_whole = tc_plain_mark(skb, &p->flow, to, plain);
		break;
	case DIRECT_GENEVE:
		is_whole = tc_plain_wrap(skb, &p->flow, to, plain, true);
		break;
	default:
		is_whole = tc_plain_wrap(skb, &p->flow, to, plain, false);
	}
	if (!is_whole)
		return tc_plain_fail(skb, p, a);
	skb->tc_index = TC_DONE;
	return bpf_redirect(to->ifindex, 0);
}

/* The short way of a packet of one family, see plain.h. What does not fit, or lacks a neighbour, takes the long
 * one. The sums are changed last: a call that changes a packet takes the place of its headers away. */
static __always_inline int tc_plain(struct __sk_buff *skb, struct packet *p, struct action *a, bool is_v4)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ct_entry *row, *to = &a->to;
	struct plain plain;
	bool forward;
	__u64 sum;

	if (is_v4 ? !plain_read4(&plain, &p->flow, data, end) : !plain_read6(&plain, &p->flow, data, end))
		return PLAIN_NOT;
	sum = plain_sum(&p->flow);
	row = bpf_map_lookup_elem(&ct, &p->flow);
	if (!row) {
		row = bpf_map_lookup_elem(&ct_half, &p->flow);
		if (!row)
			return PLAIN_NEW;
		return plain_is_direct(row, sum, to) ? tc_plain_direct(skb, p, a, &plain, row) : PLAIN_UNKNOWN;
	}
	if (!plain_copy(row, sum, to))
		return PLAIN_NOT;
	if (to->ifindex && (!route_is_complete(to) || tc_is_too_big(skb, a)))
		return PLAIN_NOT;
	if (!plain_touch(&p->flow, row, to))
		return PLAIN_NOT;
	forward = to->ifindex;
	plain_rewrite(&plain, data, to, forward);
	if (skb_replace(skb, plain.check, plain_proto(&plain), to))
		return tc_plain_fail(skb, p, a);
	if (!is_v4)
		skb_sum_ip6(skb, to, forward);
	skb->tc_index = TC_DONE;
	return forward ? bpf_redirect(to->ifindex, 0) : TC_NEXT;
}

/* Likewise of either family. What is tagged is none of these. */
static __always_inline int tc_try(struct __sk_buff *skb, struct packet *p, struct action *a)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (cfg.growing || skb->vlan_present || data + sizeof(struct ethhdr) > end)
		return PLAIN_NOT;
	if (plain_link(data) == bpf_htons(ETH_P_IP))
		return tc_plain(skb, p, a, true);
	return plain_link(data) == bpf_htons(ETH_P_IPV6) ? tc_plain(skb, p, a, false) : PLAIN_NOT;
}

/* Decides about a packet of a flow of which nothing is known. Not static, as tc_apply. */
__noinline int tc_begin(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	return p && a ? first_packet(skb, p, a, false) : 0;
}

/* Sends an echo on, or its answer: what is not translated the stack knows what to do with. */
static __always_inline int tc_echo(struct __sk_buff *skb, const struct packet *p, struct action *a, bool leaving)
{
	if (a->verdict == VERDICT_PASS)
		return leaving ? tc_ping(skb, p, true) : TC_NEXT;
	if (p->is_fragment && a->verdict == VERDICT_REWRITE)
		fragment_remember(p, a);
	if (a->verdict == VERDICT_DROP)
		return tc_drop(skb, p, a, leaving);
	return masquerade_echo(skb, p, a) ? tc_send(skb, &a->to, TC_WAY_STACK, leaving)
					  : tc_mistake(skb, p, a, leaving);
}

/* The long way. */
static __always_inline int tc_go(struct __sk_buff *skb, struct packet *p, struct action *a, __u32 lacks)
{
	enum parsed parsed = read_packet(skb, p, lacks);
	int verdict;

	if (tc_is_tagged(skb, p))
		return TC_NEXT;
	if (unwrap_is_due(p, parsed)) {
		int inner = tc_unwrap(skb, p);

		if (p->is_unwrapped || p->is_returned)
			parsed = inner;
	}
	if (parsed == PARSED_ICMP && masquerade_reads_echo(skb, p, false) && decide(skb, p, a))
		return tc_echo(skb, p, a, false);
	if (parsed != PARSED_FLOW)
		return tc_settle(skb, p, a, tc_other(skb, p, a, parsed, false));
	if (!decide(skb, p, a) && !masquerade_is_for_pod(p))
		tc_begin(skb, p, a);
	if (p->is_unwrapped && a->is_first)
		tc_host(skb, p, a);
	if (p->is_fragment) {
		verdict = tc_first(skb, p, a);
		if (verdict)
			return verdict;
	}
	verdict = tc_apply(skb, p, a, false);
	if (verdict == TC_AGAIN) {
		fallback_enter(skb, p, a);
		verdict = tc_apply(skb, p, a, false);
	}
	return tc_settle(skb, p, a, verdict);
}

/* Drops what is for a pod that gets more than it may. */
__noinline int tc_late(struct __sk_buff *skb)
{
	struct packet p = {};
	struct action a = {};

	read_packet(skb, &p, 0);
	action_drop(&a, REASON_JAM);
	return tc_drop(skb, &p, &a, false);
}

/* What would go on to the stack goes to the pod that it is for, if it may. */
static __always_inline int tc_deliver(struct __sk_buff *skb, int verdict)
{
	if (verdict != TC_NEXT || !cfg.bypass)
		return verdict;
	verdict = pods_enter(skb);
	return verdict == PODS_LATE ? tc_late(skb) : verdict;
}

SEC("tc")
int tc_from_netdev(struct __sk_buff *skb)
{
	struct packet p;
	struct action a;
	int outcome;

	if (skb->tc_index == TC_DONE) /* by another node, over a link that is none: both are on this machine */
		skb->tc_index = 0;
	if (skb->pkt_type != 0 /* PACKET_HOST */)
		return TC_NEXT;
	outcome = tc_try(skb, &p, &a);
	if (outcome > PLAIN_NOT)
		return tc_deliver(skb, outcome);
	if (outcome == PLAIN_NEW && masquerade_is_for_pod(&p))
		return tc_deliver(skb, TC_NEXT);
	p = (struct packet) {};
	a = (struct action) {};
	return tc_deliver(skb, tc_go(skb, &p, &a, plain_lacks(outcome)));
}

/* Decides about a packet that leaves, of a flow of which nothing is known. Not static, as tc_apply. */
__noinline int tc_leave(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	if (!p || !a)
		return 0;
	if (own_may_be(skb))
		own_target(p, a);
	if (a->verdict == VERDICT_PASS)
		masquerade_target(p, a);
	if (a->verdict != VERDICT_REWRITE || first_is_late(p, a))
		return 0;
	first_enter(skb, p, a);
	if (a->verdict != VERDICT_REWRITE || !(a->to.flags & CT_NODE))
		return 0;
	return event_tell(p, a, HOOK_TC | EVENT_LEAVING, 0);
}

/* What a backend on this node answers, a pod sends to the outside, and the node itself to services. */
SEC("tc")
int tc_to_netdev(struct __sk_buff *skb)
{
	struct action a = {};
	enum parsed parsed;
	struct packet p = {};
	bool is_echo;

	if (skb->tc_index == TC_DONE)
		return TC_NEXT;
	parsed = read_packet(skb, &p, 0);
	is_echo = parsed == PARSED_ICMP && masquerade_reads_echo(skb, &p, true);
	if (parsed != PARSED_FLOW && !is_echo)
		return tc_other(skb, &p, &a, parsed, true);
	if (!decide_at(skb, &p, &a, CT_LEAVING))
		tc_leave(skb, &p, &a);
	if (is_echo)
		return tc_echo(skb, &p, &a, true);
	if (p.is_fragment && a.verdict == VERDICT_REWRITE)
		fragment_remember(&p, &a);
	return tc_apply(skb, &p, &a, true);
}

char _license[] SEC("license") = "Dual BSD/GPL";
