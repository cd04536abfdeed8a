// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the programs at the host's end of a pod's device: the check of what the pod
 * sends, the translation of what it sends to services and receives from them, and the path that
 * bypasses the stack, to another pod of this node or out of it. */

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "lib/antispoof.h"
#include "lib/cluster.h"
#include "lib/config.h"
#include "lib/decide.h"
#include "lib/flow.h"
#include "lib/fragment.h"
#include "lib/icmp.h"
#include "lib/lb.h"
#include "lib/maps.h"
#include "lib/masquerade.h"
#include "lib/new_flow.h"
#include "lib/packet.h"
#include "lib/pod_flow.h"
#include "lib/pod_output.h"
#include "lib/pod_maps.h"
#include "lib/policy_flow.h"
#include "lib/proxy.h"
#include "lib/rate.h"
#include "lib/reason.h"
#include "lib/receive_window.h"
#include "lib/reject.h"
#include "lib/rewrite.h"
#include "lib/route.h"
#include "lib/types.h"

static __always_inline int pod_drop(struct __sk_buff *skb, struct packet *p, __u32 reason)
{
	return pod_drop_at(skb, p, reason, FLOW_FROM_POD);
}

/* Drops a packet for the action's reason, and replies to its sender if the action says so. */
static __noinline int pod_refuse(struct __sk_buff *skb, const struct packet *p, const struct action *a,
				 enum flow_place side)
{
	pod_count(skb, p, a, side);
	return a->reject == REJECT_NONE || !reject_tc(skb, p, a) ? POD_DROP : bpf_redirect(skb->ifindex, 0);
}

/* Drops a packet that is not what was parsed before, which cannot happen. */
static __always_inline int pod_mistake(struct __sk_buff *skb, const struct packet *p, struct action *a,
				       enum flow_place side)
{
	flow_drop(a, REASON_BAD_TABLE);
	return pod_refuse(skb, p, a, side);
}

/* Reports whether packets of the row are translated here. */
static __always_inline bool pod_is_place(const struct action *a, enum flow_place side)
{
	return side == FLOW_FROM_POD ? flow_is(&a->to, FLOW_FROM_POD) : flow_is(&a->to, FLOW_TO_POD);
}

/* Returns the outcome for a packet that is not translated here. */
static __always_inline int pod_elsewhere(const struct action *a, enum flow_place side)
{
	return side == FLOW_FROM_POD && flow_is(&a->to, FLOW_TO_POD) ? POD_BACK : POD_ON;
}

__noinline int pod_fragment(struct __sk_buff *skb, struct packet *p, struct action *a, enum flow_place side)
{
	if (!p || !a)
		return POD_ON;
	fragment_decide(p, a);
	/* the rest of a datagram whose first fragment was refused */
	if (a->verdict == VERDICT_PASS && side == FLOW_FROM_POD && !packet_is_icmp(p) &&
	    cluster_ip_is(&p->flow.daddr))
		flow_drop(a, REASON_NO_SERVICE);
	if (a->verdict == VERDICT_DROP)
		return pod_refuse(skb, p, a, side);
	if (a->verdict == VERDICT_PASS || !pod_is_place(a, side))
		return pod_elsewhere(a, side);
	if (!rewrite_fragment((void *)(long)skb->data, (void *)(long)skb->data_end, p, a))
		return pod_mistake(skb, p, a, side);
	if (!p->is_v4)
		bpf_csum_update(skb, a->to.addr_diff);
	return POD_ON;
}

__noinline int pod_icmp(struct __sk_buff *skb, const struct packet *p, struct action *a, enum flow_place side)
{
	struct packet quote;
	int parsed;

	if (!p || !a || bpf_skb_pull_data(skb, skb->len < READ_PULL ? skb->len : READ_PULL))
		return POD_ON;
	parsed = packet_quote(&quote, p, (void *)(long)skb->data, (void *)(long)skb->data_end);
	if (parsed != PARSED_FLOW && parsed != PARSED_CUT)
		return side == FLOW_FROM_POD &&
				       icmp_echo_answer((void *)(long)skb->data, (void *)(long)skb->data_end, p)
			       ? bpf_redirect(skb->ifindex, 0)
			       : POD_ON;
	icmp_decide(p, &quote, a);
	if (a->verdict == VERDICT_DROP)
		return pod_refuse(skb, p, a, side);
	if (a->verdict == VERDICT_PASS || !pod_is_place(a, side))
		return pod_elsewhere(a, side);
	if (!icmp_rewrite((void *)(long)skb->data, (void *)(long)skb->data_end, p, &quote, a))
		return pod_mistake(skb, p, a, side);
	return POD_ON;
}

/* Decides about a pod's packet of an unknown flow. Not static, so that the verifier walks it only
 * once. */
__noinline int pod_begin(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	if (!p || !a)
		return 0;
	new_flow_decide(skb, p, a, true);
	if (a->verdict == VERDICT_REWRITE)
		cluster_packet_clients_note(PACKET_CLIENT_POD);
	return 0;
}

static __always_inline int pod_flow(struct __sk_buff *skb, const struct packet *p, struct action *a,
				    enum flow_place side)
{
	if (!decide_at(skb, p, a, side) && side == FLOW_FROM_POD)
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
	    rewrite_skb_sum(skb, p, a, false))
		return pod_mistake(skb, p, a, side);
	return POD_ON;
}

/* Translates what a pod sends to a service or receives from one. */
static __always_inline int pod_translate(struct __sk_buff *skb, struct packet *p, enum flow_place side)
{
	struct action a = {};

	switch (packet_read(skb, p, 0)) {
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

/* Reports whether a device has our programs, which masquerade where necessary. By other devices the
 * stack sends, and it receives the replies too. */
static __always_inline bool pod_is_served(__u32 ifindex)
{
	return ifindex && bpf_map_lookup_elem(&nat_devices, &ifindex);
}

/* Sends a packet out of the node. Packets that need an ICMP error or fragmentation, or that are for
 * the node itself, go to the stack. Not inlined, to have a stack frame of its own. */
static __noinline int pod_leave(struct __sk_buff *skb, const struct packet *p)
{
	struct ct_entry way = { .saddr = p->flow.saddr, .daddr = p->flow.daddr };

	route_find(skb, p, &way);
	if (p->ttl <= 1 || !pod_is_served(way.ifindex) || !pod_fits(skb, way.ifindex))
		return POD_NEXT;
	if (!route_is_complete(&way))
		return pod_hop(skb, p, NULL, NULL) ? bpf_redirect_neigh(way.ifindex, NULL, 0, 0) : POD_NEXT;
	return pod_hop(skb, p, way.dmac, way.smac) ? bpf_redirect(way.ifindex, 0) : POD_NEXT;
}

/* Sends a pod's reply to itself, to an address of the node, back to the pod. */
static __always_inline int pod_answer_itself(struct __sk_buff *skb, const struct packet *p)
{
	struct pod *pod = cluster_pod_at(&p->flow.saddr);

	return pod && p->ttl > 1 && pod_hop(skb, p, pod->mac, pod->host_mac) ? bpf_redirect(skb->ifindex, 0)
									     : POD_NEXT;
}

/* Sends a packet that is for no pod to a backend, if it is for a service. */
static __noinline int pod_serve(struct __sk_buff *skb, struct packet *p)
{
	int asked = pod_ask_answer(skb, p);
	int outcome = asked == POD_DROP ? POD_DROP : pod_translate(skb, p, FLOW_FROM_POD);
	struct pod *pod;

	if (outcome == POD_BACK)
		return pod_answer_itself(skb, p);
	if (outcome != POD_ON)
		return outcome;
	if (!packet_read_addrs(skb, p)) /* it was read before */
		return cfg.policies ? pod_drop(skb, p, REASON_MALFORMED) : POD_NEXT;
	pod = cluster_pod_at(&p->flow.daddr);
	if (!pod || pod->ifindex != skb->ifindex)
		return asked;
	if (pod_refuses(skb, pod->flags, pod->ifindex, POLICY_FLOW_ITSELF))
		return POD_DROP;
	return pod_sent(skb, p, pod_redirect(skb, p, pod, EDT_FREE, POLICY_FLOW_TO_POD));
}

/* Reports whether a pod's packet, which is not for another pod, may be for a service or reply to
 * one. Not static, to keep its stack out of its caller's. */
__noinline int pod_dials(struct __sk_buff *skb, struct packet *p)
{
	return !p || !pod_flow_read(skb, p) ||
	       (cluster_packet_clients_have(PACKET_CLIENT_POD | PACKET_CLIENT_NODE) &&
		pod_flow_is_known(&p->flow)) ||
	       lb_frontend(&p->flow, true) || (pod_flow_begins(skb, p) && cluster_ip_is(&p->flow.daddr));
}

/* Books the departure of a pod's packet, and slows down those who send to the pod. */
static __always_inline __u64 pod_book(struct __sk_buff *skb, __u32 ifindex, bool is_v4)
{
	receive_window_lower(skb, ifindex, is_v4);
	return rate_book(skb, ifindex, PACE_OUT, is_v4);
}

/* Handles a packet of a pod that has a proxy, which is TCP or may be. One that a rate delays is
 * checked once more after the delay. */
static __always_inline int pod_proxy(struct __sk_buff *skb, struct packet *p, __u32 proxy)
{
	__u32 ifindex = skb->ifindex;
	bool waits = cfg.pacer && rate_limits(ifindex);
	int outcome = proxy_take(skb, p, proxy, !waits);
	__u64 at;

	if (outcome > 0)
		return pod_drop(skb, p, outcome);
	if (outcome != PROXY_GOES)
		return POD_ON;
	if (pod_refuses_own(skb, p, NULL))
		return POD_DROP;
	if (!waits)
		return bpf_redirect_neigh(PROXY_DEVICE, NULL, 0, 0);
	at = pod_book(skb, ifindex, p->is_v4);
	return at == EDT_BEYOND_HORIZON ? pod_drop(skb, p, REASON_HORIZON)
					: pod_pacer_send(skb, at, PACER_PROXY, ifindex);
}

/* Delays a packet from a pod to its node, on the node. */
static __always_inline int pod_stay(struct __sk_buff *skb, __u64 at)
{
	return pod_pacer_send(skb, at, PACER_NODE, skb->ifindex);
}

/* Sends a pod's packet about its link to the stack at its time. Neighbor discovery and ARP need not
 * wait: they would wait behind everything that the pod sends. They do wait if their destination is
 * beyond the node, because the stack forwards them. */
static __noinline int pod_send_near(struct __sk_buff *skb, struct packet *p, int about)
{
	bool leaves = p->l3 && !antispoof_stays_on_node(p, NULL) &&
		      !(p->is_v4 && p->flow.daddr.word[3] == bpf_htonl(0xffffffff));
	__u64 at = EDT_FREE;

	/* neighbor discovery and DHCP pass, unless the stack would forward them */
	if ((about == ANTISPOOF_NEAR || leaves) && pod_refuses_own(skb, p, NULL))
		return POD_DROP;
	if (p->l3 && antispoof_tunnel_may_be(skb, p) && antispoof_tunnel_is_entered(skb))
		return pod_drop(skb, p, REASON_TUNNEL_PORT);
	if (cfg.pacer && (about == ANTISPOOF_NEAR || (p->l3 && !antispoof_stays_on_node(p, NULL))))
		at = pod_book(skb, skb->ifindex, p->is_v4);
	if (at == EDT_BEYOND_HORIZON)
		return pod_drop(skb, p, REASON_HORIZON);
	return pod_pacer_is_due(at) ? pod_stay(skb, at) : POD_NEXT;
}

/* Sends a pod's packet to its destination at its time. If it leaves by a device it waits there.
 * Otherwise it waits before it is sent on, to arrive in the usual way. Out of line: the stack is full. */
static __noinline int pod_send(struct __sk_buff *skb, struct packet *p, const struct pod *to)
{
	bool paced = cfg.pacer;
	__u64 at;

	if (pod_refuses_own(skb, p, to))
		return POD_DROP;
	if (!to && antispoof_tunnel_may_be(skb, p) && antispoof_tunnel_is_entered(skb))
		return pod_drop(skb, p, REASON_TUNNEL_PORT);
	at = paced ? pod_book(skb, skb->ifindex, p->is_v4) : EDT_FREE;

	if (paced && at == EDT_BEYOND_HORIZON)
		return pod_drop(skb, p, REASON_HORIZON);
	if (to && cfg.bypass)
		return pod_sent(skb, p, pod_redirect(skb, p, to, at, POLICY_FLOW_TO_NEXT));
	if (paced && pod_pacer_is_due(at)) {
		if (antispoof_stays_on_node(p, to))
			return pod_stay(skb, at);
		rate_stamp(skb, at);
	}
	return cfg.bypass ? pod_leave(skb, p) : POD_NEXT;
}

/* Handles what a pod sends. */
static __always_inline int pod_receive(struct __sk_buff *skb)
{
	struct pod *pod, *from;
	struct packet p = {};
	__u32 proxy;
	int outcome;

	from = packet_read_addrs(skb, &p) ? antispoof_own(skb, &p) : NULL;
	if (!from) {
		outcome = antispoof_check(skb, &p);
		if (outcome > 0)
			return pod_drop(skb, &p, outcome);
	}
	pod_note_policy(&p, from);
	if (!from && outcome != ANTISPOOF_GOES)
		return pod_send_near(skb, &p, outcome);
	proxy = p.flow.proto == IPPROTO_TCP || (!from && proxy_is_hidden(&p)) ? proxy_of(skb, from) : 0;
	if (proxy) {
		outcome = pod_proxy(skb, &p, proxy);
		if (outcome != POD_ON)
			return outcome;
	}
	pod = cluster_pod_at(&p.flow.daddr);
	if (!pod && pod_dials(skb, &p)) {
		outcome = pod_serve(skb, &p);
		if (outcome != POD_ON && outcome != POD_ASKED)
			return outcome;
		if (outcome == POD_ON)
			pod_note_policy(&p, NULL); /* it was read again */
		pod = cluster_pod_at(&p.flow.daddr);
	}
	return pod_send(skb, &p, pod);
}

/* Runs where a pod's packets reach the node: for a netkit as the pod sends them, and once more for
 * those that are not redirected from there. */
SEC("tc")
int tc_from_pod(struct __sk_buff *skb)
{
	bool is_checked = pod_checked_is(skb), is_netkit = !skb->ingress_ifindex;
	int verdict;

	pod_checked_clear(skb);
	if (is_checked)
		return POD_NEXT;
	verdict = pod_receive(skb);
	if (verdict == POD_NEXT && is_netkit)
		pod_checked_set(skb);
	return verdict;
}

/* Notes who sends datagrams to a pod by a device without our programs. */
static __noinline int pod_expect(struct __sk_buff *skb)
{
	__u32 by = skb->ingress_ifindex;
	struct packet p = {};

	if (!by || pod_is_served(by) || bpf_map_lookup_elem(&pod_links, &by))
		return 0;
	return packet_read(skb, &p, 0) == PARSED_FLOW && masquerade_is_for_pod(&p);
}

/* Delays what a pod receives or sends until its time. The kernel gives only IP packets a departure
 * time. Other frames continue at once, but use up time of later packets, and are dropped like these
 * if they are too far ahead. Otherwise a pod could bypass its rate with them. */
static __noinline int pod_wait(struct __sk_buff *skb, enum pacer_way way)
{
	bool is_v4 = skb->protocol == bpf_htons(ETH_P_IP), sends = way == PACER_NODE;
	__u32 ifindex = skb->ifindex;
	struct packet p = {};
	__u64 at;

	if (!is_v4 && antispoof_is_neighbor_discovery(skb, &p, sends))
		return POD_NEXT;
	at = sends ? pod_book(skb, ifindex, is_v4) : rate_book(skb, ifindex, PACE_IN, is_v4);
	if (at == EDT_BEYOND_HORIZON) {
		packet_read(skb, &p, 0);
		return pod_drop_at(skb, &p, sends ? REASON_HORIZON : REASON_JAM,
				   sends ? FLOW_FROM_POD : FLOW_TO_POD);
	}
	return rate_is_ip(skb) && pod_pacer_is_due(at) ? pod_pacer_send(skb, at, way, ifindex) : POD_NEXT;
}

/* What the stack, or a program, sends to a pod. */
SEC("tc")
int tc_to_pod(struct __sk_buff *skb)
{
	struct packet p = {};

	if (cfg.policies && pod_policies_refuse(skb))
		return POD_DROP;
	if (cfg.masquerade)
		pod_expect(skb);
	if (cluster_packet_clients_have(PACKET_CLIENT_POD) && pod_translate(skb, &p, FLOW_TO_POD) == POD_DROP)
		return POD_DROP;
	return cfg.pacer ? pod_wait(skb, PACER_POD) : POD_NEXT;
}

/* At the device of a pod that belongs to another plugin, packets are only delayed, and nothing is
 * known about their destinations. The programs behind this one see each packet once, after its
 * delay. */
static __always_inline int pod_chained_wait(struct __sk_buff *skb, enum pacer_way way)
{
	if (pod_checked_is(skb)) {
		skb->mark = 0;
		skb->tc_index = 0;
		if (way == PACER_NODE)
			rate_prefer_again(skb, skb->ifindex);
		return POD_NEXT;
	}
	return pod_wait(skb, way);
}

SEC("tc")
int tc_from_chained(struct __sk_buff *skb)
{
	return pod_chained_wait(skb, PACER_NODE);
}

SEC("tc")
int tc_to_chained(struct __sk_buff *skb)
{
	return pod_chained_wait(skb, PACER_BACK);
}

/* Sends a delayed packet to its pod's proxy. If that has started or stopped meanwhile, tc_from_pod
 * handles the packet again. */
static __always_inline int pod_proxy_now(struct __sk_buff *skb, __u32 ifindex)
{
	struct pod_link *link = bpf_map_lookup_elem(&pod_links, &ifindex);
	struct packet p = {};
	int outcome;

	if (!link || !packet_read_addrs(skb, &p))
		return POD_DROP;
	outcome = proxy_take(skb, &p, link->proxy, true);
	if (outcome > 0)
		return pod_drop(skb, &p, outcome);
	return outcome == PROXY_GOES ? bpf_redirect_neigh(PROXY_DEVICE, NULL, 0, 0)
				     : bpf_redirect(ifindex, BPF_F_INGRESS);
}

/* Sends on a packet that has been delayed, as if it had not been. */
SEC("tc")
int tc_from_pacer(struct __sk_buff *skb)
{
	__u32 way = skb->mark & PACER_WAYS, ifindex = skb->mark & ~PACER_WAYS;

	skb->mark = 0;
	if (way == PACER_NODE || way == PACER_BACK)
		pod_checked_set(skb);
	bpf_skb_set_tstamp(skb, 0, BPF_SKB_TSTAMP_UNSPEC);
	/* The destination MAC address does not matter here. */
	bpf_skb_change_type(skb, 0 /* PACKET_HOST */);
	switch (way) {
	case PACER_POD:
		return bpf_redirect_peer(ifindex, 0);
	case PACER_DEVICE:
	case PACER_BACK:
		return bpf_redirect(ifindex, 0);
	case PACER_NODE:
		return bpf_redirect(ifindex, BPF_F_INGRESS);
	case PACER_PROXY:
		return pod_proxy_now(skb, ifindex);
	}
	return POD_DROP;
}

/* Runs as a packet leaves by the loopback device. Only IPv6 packets for a proxy need a change. */
SEC("tc")
int tc_to_lo(struct __sk_buff *skb)
{
	struct packet p = {};

	if (!proxy_is_marked(skb) || skb->protocol != bpf_htons(ETH_P_IPV6) || proxy_restore(skb))
		return POD_NEXT;
	return pod_drop(skb, &p, REASON_NO_PROXY);
}

/* Assigns a new connection to the proxy's listener here, because any other listener could match: to
 * the stack the packet is for the node. */
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
	packet_read(skb, &p, 0);
	return pod_drop(skb, &p, REASON_NO_PROXY);
}

char _license[] SEC("license") = "Dual BSD/GPL";
