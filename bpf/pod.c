// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the programs at the host's end of a pod's device: whether the pod may send what it sends, what
 * it sends to services and gets from them, and the way past the stack, to another pod of this node or out of it. */

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "lib/answertc.h"
#include "lib/count.h"
#include "lib/echo.h"
#include "lib/event.h"
#include "lib/fragments.h"
#include "lib/hold.h"
#include "lib/icmp.h"
#include "lib/masquerade.h"
#include "lib/proxy.h"
#include "lib/read.h"
#include "lib/route.h"
#include "lib/sender.h"
#include "lib/sumtc.h"

enum {
	POD_NEXT = -1, /* to the next program, of whoever that is, and then to the stack */
	POD_ON = -2,   /* no verdict: wherever it is for by now */
	POD_BACK = -3, /* likewise: the pod answers itself, by what tc_to_pod has to translate */
	POD_DROP = 2,
};

static __always_inline int pod_count(struct __sk_buff *skb, const struct packet *p, const struct action *a,
				     enum ct_side side)
{
	count(HOOK_POD, a->reason, skb->len);
	return event_tell(p, a, side == CT_TO_POD ? HOOK_POD | EVENT_LEAVING : HOOK_POD, skb->len);
}

__noinline int pod_drop_at(struct __sk_buff *skb, struct packet *p, __u32 reason, enum ct_side side)
{
	struct action a = {};

	if (!p)
		return POD_DROP;
	action_drop(&a, reason);
	pod_count(skb, p, &a, side);
	return POD_DROP;
}

static __always_inline int pod_drop(struct __sk_buff *skb, struct packet *p, __u32 reason)
{
	return pod_drop_at(skb, p, reason, CT_FROM_POD);
}

/* Drops a packet for the reason that the action has, and tells its sender if somebody is to be told. */
static __noinline int pod_refuse(struct __sk_buff *skb, const struct packet *p, const struct action *a,
				 enum ct_side side)
{
	pod_count(skb, p, a, side);
	return a->answer == ANSWER_NONE || !tc_answer(skb, p, a) ? POD_DROP : bpf_redirect(skb->ifindex, 0);
}

/* The packet is not as it was read, which cannot be. */
static __always_inline int pod_mistake(struct __sk_buff *skb, const struct packet *p, struct action *a,
				       enum ct_side side)
{
	action_drop(a, REASON_BAD_TABLE);
	return pod_refuse(skb, p, a, side);
}

/* What becomes of a packet that is not to be translated here. */
static __always_inline int pod_elsewhere(const struct action *a, enum ct_side side)
{
	return side == CT_FROM_POD && ct_is_at(&a->to, CT_TO_POD) ? POD_BACK : POD_ON;
}

__noinline int pod_fragment(struct __sk_buff *skb, struct packet *p, struct action *a, enum ct_side side)
{
	if (!p || !a)
		return POD_ON;
	fragment_decide(p, a);
	if (a->verdict == VERDICT_DROP)
		return pod_refuse(skb, p, a, side);
	if (a->verdict == VERDICT_PASS || !ct_is_at(&a->to, side))
		return pod_elsewhere(a, side);
	if (!rewrite_fragment((void *)(long)skb->data, (void *)(long)skb->data_end, p, a))
		return pod_mistake(skb, p, a, side);
	if (!p->is_v4)
		bpf_csum_update(skb, a->to.addr_diff);
	return POD_ON;
}

__noinline int pod_icmp(struct __sk_buff *skb, const struct packet *p, struct action *a, enum ct_side side)
{
	struct packet quote;
	int parsed;

	if (!p || !a || bpf_skb_pull_data(skb, skb->len < READ_PULL ? skb->len : READ_PULL))
		return POD_ON;
	parsed = icmp_quote(&quote, p, (void *)(long)skb->data, (void *)(long)skb->data_end);
	if (parsed != PARSED_FLOW && parsed != PARSED_CUT)
		return side == CT_FROM_POD && echo_answer((void *)(long)skb->data, (void *)(long)skb->data_end, p)
			       ? bpf_redirect(skb->ifindex, 0)
			       : POD_ON;
	icmp_decide(p, &quote, a);
	if (a->verdict == VERDICT_DROP)
		return pod_refuse(skb, p, a, side);
	if (a->verdict == VERDICT_PASS || !ct_is_at(&a->to, side))
		return pod_elsewhere(a, side);
	if (!icmp_rewrite((void *)(long)skb->data, (void *)(long)skb->data_end, p, &quote, a))
		return pod_mistake(skb, p, a, side);
	return POD_ON;
}

/* Decides about a packet that a pod sends of which nothing is known. Not static, so the verifier walks it once. */
__noinline int pod_begin(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	if (!p || !a)
		return 0;
	first_packet(skb, p, a, true);
	if (a->verdict == VERDICT_REWRITE)
		inside_use(INSIDE_POD);
	return 0;
}

static __always_inline int pod_flow(struct __sk_buff *skb, const struct packet *p, struct action *a,
				    enum ct_side side)
{
	if (!decide_at(skb, p, a, side) && side == CT_FROM_POD)
		pod_begin(skb, p, a);
	if (p->is_fragment && a->verdict == VERDICT_REWRITE)
		fragment_remember(p, a);
	if (a->verdict == VERDICT_DROP)
		return pod_refuse(skb, p, a, side);
	if (a->verdict == VERDICT_PASS)
		return pod_elsewhere(a, side);
	if (a->reason != REASON_NONE)
		pod_count(skb, p, a, side);
	if (!rewrite_headers((void *)(long)skb->data, (void *)(long)skb->data_end, p, a, false) ||
	    skb_sum(skb, p, a, false))
		return pod_mistake(skb, p, a, side);
	return POD_ON;
}

/* Translates what a pod sends to a service, or gets from one. */
static __always_inline int pod_translate(struct __sk_buff *skb, struct packet *p, enum ct_side side)
{
	struct action a = {};

	switch (read_packet(skb, p, 0)) {
	case PARSED_FLOW:
		return pod_flow(skb, p, &a, side);
	case PARSED_ICMP:
		return pod_icmp(skb, p, &a, side);
	case PARSED_LATER:
		return pod_fragment(skb, p, &a, side);
	case PARSED_CUT:
		fragment_decide_cut(p, &a);
		return a.verdict == VERDICT_DROP ? pod_refuse(skb, p, &a, side) : POD_ON;
	}
	return POD_ON;
}

/* Whether a device is one where what leaves has its address changed, if that has to be. By others the stack sends,
 * and gets what comes back too. */
static __always_inline bool pod_is_served(__u32 ifindex)
{
	return ifindex && bpf_map_lookup_elem(&served, &ifindex);
}

/* Sends a packet out of the node. What has to be told to its sender, cut up or is for the node itself the stack
 * gets. A function, for the sake of the stack. */
static __noinline int pod_leave(struct __sk_buff *skb, const struct packet *p)
{
	struct ct_entry way = { .saddr = p->flow.saddr, .daddr = p->flow.daddr };

	route_find(skb, p, &way);
	if (p->ttl <= 1 || !pod_is_served(way.ifindex) || !pods_fit(skb, way.ifindex))
		return POD_NEXT;
	if (!route_is_complete(&way))
		return pods_hop(skb, p, NULL, NULL) ? bpf_redirect_neigh(way.ifindex, NULL, 0, 0) : POD_NEXT;
	return pods_hop(skb, p, way.dmac, way.smac) ? bpf_redirect(way.ifindex, 0) : POD_NEXT;
}

/* What a pod answers to itself, by an address of the node. */
static __always_inline int pod_answer_itself(struct __sk_buff *skb, const struct packet *p)
{
	struct pod *pod = pods_at(&p->flow.saddr);

	return pod && p->ttl > 1 && pods_hop(skb, p, pod->mac, pod->host_mac) ? bpf_redirect(skb->ifindex, 0)
									      : POD_NEXT;
}

/* What becomes of a packet that was to be sent to a pod. */
static __always_inline int pod_sent(struct __sk_buff *skb, struct packet *p, int outcome)
{
	return outcome == PODS_LATE ? pod_drop(skb, p, REASON_JAM) : outcome;
}

/* Sends what is for no pod to the backend that it is for, if it is for a service. */
static __noinline int pod_serve(struct __sk_buff *skb, struct packet *p)
{
	int outcome = pod_translate(skb, p, CT_FROM_POD);
	struct pod *pod;

	if (outcome == POD_BACK)
		return pod_answer_itself(skb, p);
	if (outcome != POD_ON)
		return outcome;
	if (!pods_read(skb, p))
		return POD_NEXT;
	pod = pods_at(&p->flow.daddr);
	if (!pod || pod->ifindex != skb->ifindex)
		return POD_ON;
	return pod_sent(skb, p, pods_send(skb, p, pod, EDT_FREE));
}

/* Whether what a pod sends, and not to another pod, may be to a service or answer one. Not static, for the sake of
 * the stack that its caller has. */
__noinline int pod_dials(struct __sk_buff *skb, struct packet *p)
{
	return !p || !inside_read(skb, p) ||
	       (inside_is_used(INSIDE_POD | INSIDE_NODE) && inside_is_known(&p->flow)) || first_frontend(p, true);
}

/* Takes the time of what a pod sends, and has those held who send to the pod. */
static __always_inline __u64 pod_book(struct __sk_buff *skb, __u32 ifindex, bool is_v4)
{
	hold_senders(skb, ifindex, is_v4);
	return edt_book(skb, ifindex, PACE_OUT, is_v4);
}

/* What becomes of what a pod that has a proxy sends by TCP. What a rate keeps is looked at again once it has
 * waited. */
static __always_inline int pod_proxy(struct __sk_buff *skb, struct packet *p, __u32 proxy)
{
	__u32 ifindex = skb->ifindex;
	bool waits = cfg.pair && edt_limits(ifindex);
	int outcome = proxy_take(skb, p, proxy, !waits);
	__u64 at;

	if (outcome > 0)
		return pod_drop(skb, p, outcome);
	if (outcome != PROXY_GOES)
		return POD_ON;
	if (!waits)
		return bpf_redirect_neigh(PROXY_DEVICE, NULL, 0, 0);
	at = pod_book(skb, ifindex, p->is_v4);
	return at == EDT_LATE ? pod_drop(skb, p, REASON_HORIZON) : pair_enter(skb, at, PAIR_PROXY, ifindex);
}

/* Whether what a pod sends stays on the node. */
static __always_inline bool pod_is_near(const struct packet *p, const struct pod *to)
{
	struct addr addr = p->flow.daddr; /* as in pods_at */

	return to || (!p->is_v4 && sender_stays6(&addr)) || bpf_map_lookup_elem(&node_addrs, &addr);
}

/* Has what a pod sends to its node wait there. */
static __always_inline int pod_stay(struct __sk_buff *skb, __u64 at)
{
	return pair_enter(skb, at, skb->ingress_ifindex ? PAIR_NODE : PAIR_NETKIT, skb->ifindex);
}

/* Sends what a pod says on its link to the stack, at its time. Only what keeps neighbours known need not wait, or
 * it would wait behind all that the pod sends; but the stack carries it on if it is for somebody beyond. */
static __noinline int pod_send_near(struct __sk_buff *skb, struct packet *p, int about)
{
	__u64 at = EDT_FREE;

	if (cfg.pair && (about == SENDER_NEAR || (p->l3 && !pod_is_near(p, NULL))))
		at = pod_book(skb, skb->ifindex, p->is_v4);
	if (at == EDT_LATE)
		return pod_drop(skb, p, REASON_HORIZON);
	return pair_is_due(at) ? pod_stay(skb, at) : POD_NEXT;
}

/* Sends a packet of a pod to whom it is for, at its time. By a device it waits there; otherwise before it is sent
 * on, so that whoever gets it sees it come as it would have. */
static __always_inline int pod_send(struct __sk_buff *skb, struct packet *p, const struct pod *to)
{
	bool paced = cfg.pair;
	__u64 at = paced ? pod_book(skb, skb->ifindex, p->is_v4) : EDT_FREE;

	if (paced && at == EDT_LATE)
		return pod_drop(skb, p, REASON_HORIZON);
	if (to && cfg.bypass)
		return pod_sent(skb, p, pods_send(skb, p, to, at));
	if (paced && pair_is_due(at)) {
		if (pod_is_near(p, to))
			return pod_stay(skb, at);
		edt_stamp(skb, at);
	}
	return cfg.bypass ? pod_leave(skb, p) : POD_NEXT;
}

SEC("tc")
int tc_from_pod(struct __sk_buff *skb)
{
	struct pod *pod, *from;
	struct packet p = {};
	int outcome;
	__u32 proxy;

	if (cfg.pair && skb->mark == PAIR_DONE) {
		skb->mark = 0;
		return POD_NEXT;
	}
	from = pods_read(skb, &p) ? sender_own(skb, &p) : NULL;
	if (!from) {
		outcome = sender_check(skb, &p);
		if (outcome > 0)
			return pod_drop(skb, &p, outcome);
		if (outcome != SENDER_GOES)
			return pod_send_near(skb, &p, outcome);
	}
	proxy = p.flow.proto == IPPROTO_TCP ? proxy_of(skb, from) : 0;
	if (proxy) {
		outcome = pod_proxy(skb, &p, proxy);
		if (outcome != POD_ON)
			return outcome;
	}
	pod = pods_at(&p.flow.daddr);
	if (!pod && pod_dials(skb, &p)) {
		outcome = pod_serve(skb, &p);
		if (outcome != POD_ON)
			return outcome;
		pod = pods_at(&p.flow.daddr);
	}
	return pod_send(skb, &p, pod);
}

/* Notes who sends datagrams to a pod by a device where no program does. */
static __noinline int pod_expect(struct __sk_buff *skb)
{
	__u32 by = skb->ingress_ifindex;
	struct packet p = {};

	if (!by || pod_is_served(by) || bpf_map_lookup_elem(&pod_links, &by))
		return 0;
	return read_packet(skb, &p, 0) == PARSED_FLOW && masquerade_is_for_pod(&p);
}

/* Whether a packet keeps neighbours known, which must not wait behind all else. What comes from beyond the link has
 * fewer hops left, and what a pod sends there is for none of these addresses. */
static __always_inline bool pod_is_neighbours(struct __sk_buff *skb, struct packet *p, bool sends)
{
	struct ipv6hdr ip6;
	__u8 type;

	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &ip6, sizeof(ip6)) || ip6.nexthdr != IPPROTO_ICMPV6 ||
	    ip6.hop_limit != ND_HOPS ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + sizeof(ip6), &type, sizeof(type)) ||
	    type < ND_SOLICIT_ROUTER || type > ND_REDIRECT)
		return false;
	__builtin_memcpy(&p->flow.daddr, &ip6.daddr, sizeof(struct addr));
	return !sends || pod_is_near(p, NULL);
}

/* Has what a pod gets, or sends, wait until it may go on. */
static __noinline int pod_wait(struct __sk_buff *skb, enum pair_way way)
{
	bool is_v4 = skb->protocol == bpf_htons(ETH_P_IP), sends = way == PAIR_NODE;
	__u32 ifindex = skb->ifindex;
	struct packet p = {};
	__u64 at;

	if (!is_v4 && (skb->protocol != bpf_htons(ETH_P_IPV6) || pod_is_neighbours(skb, &p, sends)))
		return POD_NEXT;
	at = sends ? pod_book(skb, ifindex, is_v4) : edt_book(skb, ifindex, PACE_IN, is_v4);
	if (at == EDT_LATE) {
		read_packet(skb, &p, 0);
		return pod_drop_at(skb, &p, sends ? REASON_HORIZON : REASON_JAM, sends ? CT_FROM_POD : CT_TO_POD);
	}
	return pair_is_due(at) ? pair_enter(skb, at, way, ifindex) : POD_NEXT;
}

/* What the stack, or a program, has for a pod. */
SEC("tc")
int tc_to_pod(struct __sk_buff *skb)
{
	struct packet p = {};

	if (cfg.masquerade)
		pod_expect(skb);
	if (inside_is_used(INSIDE_POD) && pod_translate(skb, &p, CT_TO_POD) == POD_DROP)
		return POD_DROP;
	return cfg.pair ? pod_wait(skb, PAIR_POD) : POD_NEXT;
}

/* At the device of a pod that is another plugin's nothing is done but to have what passes there wait, and nothing
 * is known of where it goes. Who comes after this sees it once, when it has waited. */
static __always_inline int chained_wait(struct __sk_buff *skb, enum pair_way way)
{
	if (skb->mark == PAIR_DONE) {
		skb->mark = 0;
		return POD_NEXT;
	}
	return pod_wait(skb, way);
}

SEC("tc")
int tc_from_chained(struct __sk_buff *skb)
{
	return chained_wait(skb, PAIR_NODE);
}

SEC("tc")
int tc_to_chained(struct __sk_buff *skb)
{
	return chained_wait(skb, PAIR_BACK);
}

/* To its proxy, from a pod that a rate keeps. Who has come or gone there meanwhile is for the pod's device to see.
 */
static __always_inline int pod_proxy_now(struct __sk_buff *skb, __u32 ifindex)
{
	struct pod_link *link = bpf_map_lookup_elem(&pod_links, &ifindex);
	struct packet p = {};
	int outcome;

	if (!link || !pods_read(skb, &p))
		return POD_DROP;
	outcome = proxy_take(skb, &p, link->proxy, true);
	if (outcome > 0)
		return pod_drop(skb, &p, outcome);
	return outcome == PROXY_GOES ? bpf_redirect_neigh(PROXY_DEVICE, NULL, 0, 0)
				     : bpf_redirect(ifindex, BPF_F_INGRESS);
}

/* What has waited until its time, and goes on as if it had not. */
SEC("tc")
int tc_from_pair(struct __sk_buff *skb)
{
	__u32 way = skb->mark & PAIR_WAYS, ifindex = skb->mark & ~PAIR_WAYS;

	skb->mark = way == PAIR_NODE || way == PAIR_BACK ? PAIR_DONE : 0;
	bpf_skb_set_tstamp(skb, 0, BPF_SKB_TSTAMP_UNSPEC);
	bpf_skb_change_type(skb, 0 /* PACKET_HOST */); /* whose address of the link it has is no matter here */
	switch (way) {
	case PAIR_POD:
		return bpf_redirect_peer(ifindex, 0);
	case PAIR_DEVICE:
	case PAIR_BACK:
		return bpf_redirect(ifindex, 0);
	case PAIR_NODE:
	case PAIR_NETKIT:
		return bpf_redirect(ifindex, BPF_F_INGRESS);
	case PAIR_PROXY:
		return pod_proxy_now(skb, ifindex);
	}
	return POD_DROP;
}

/* On its way over the loopback device: all but what is for a proxy is as it should be. */
SEC("tc")
int tc_to_lo(struct __sk_buff *skb)
{
	struct packet p = {};

	if (!proxy_is_marked(skb) || skb->protocol != bpf_htons(ETH_P_IPV6) || proxy_restore(skb))
		return POD_NEXT;
	return pod_drop(skb, &p, REASON_NO_PROXY);
}

/* What begins a connection its proxy gets here, and not whoever else might listen: for the stack it is for the
 * node. */
SEC("tc")
int tc_from_lo(struct __sk_buff *skb)
{
	__u32 port = skb->mark & POD_PROXY_PORT;
	struct packet p = {};

	if (!proxy_is_marked(skb))
		return POD_NEXT;
	skb->mark = 0;
	if (!port || proxy_assign(skb, port))
		return POD_NEXT;
	read_packet(skb, &p, 0);
	return pod_drop(skb, &p, REASON_NO_PROXY);
}

char _license[] SEC("license") = "Dual BSD/GPL";
