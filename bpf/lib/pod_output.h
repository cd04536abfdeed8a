/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the last steps for a packet from or to a pod of this node: drop, delay, or send past
 * the stack. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "cluster.h"
#include "config.h"
#include "count.h"
#include "event.h"
#include "flow.h"
#include "packet.h"
#include "pod_flow.h"
#include "pod_maps.h"
#include "policy_fastpath.h"
#include "policy_flow.h"
#include "policy_maps.h"
#include "rate.h"
#include "reason.h"
#include "rewrite.h"

enum {
	POD_NEXT = -1, /* to the next program, whoever owns it, and then to the stack */
	POD_ON = -2,   /* no verdict: the packet goes to its current destination */
	/* likewise: the pod replies to itself, and tc_to_pod has to translate that */
	POD_BACK = -3,
	POD_ASKED = -4, /* like POD_ON, and policies have accepted it */
	POD_DROP = 2,
};

static __always_inline int pod_count(struct __sk_buff *skb, const struct packet *p, const struct action *a,
				     enum flow_place side)
{
	count(HOOK_POD, a->reason, skb->len);
	return event_tell(p, a, side == FLOW_TO_POD ? HOOK_POD | EVENT_LEAVING : HOOK_POD, skb->len);
}

__noinline int pod_drop_at(struct __sk_buff *skb, struct packet *p, __u32 reason, enum flow_place side)
{
	struct action a = {};

	if (!p)
		return POD_DROP;
	flow_drop(&a, reason);
	pod_count(skb, p, &a, side);
	return POD_DROP;
}

/* How a packet that has passed the check at its pod's device is known when it comes in by the node's
 * end of that device once more: after a delay, or from a netkit, whose program has seen it as the
 * pod sent it. Who may load programs in a pod can hand packets to that end himself
 * (bpf_redirect_peer), past a netkit's program, with any mark and any tc_index. So both together
 * are a number that only the node knows. */

static __always_inline bool pod_checked_is(const struct __sk_buff *skb)
{
	return cfg.checked && skb->mark == (__u32)cfg.checked && skb->tc_index == (__u16)(cfg.checked >> 32);
}

static __always_inline void pod_checked_set(struct __sk_buff *skb)
{
	skb->mark = cfg.checked;
	skb->tc_index = (__u16)(cfg.checked >> 32);
}

/* Clears the fields by which a pod could speak to programs, rules and queues of the node: whether a
 * packet was rewritten or delayed, which band and which queue it gets. The kernel does so only for
 * what comes over the device in the usual way. */
static __always_inline void pod_checked_clear(struct __sk_buff *skb)
{
	skb->mark = 0;
	skb->tc_index = 0;
	skb->priority = 0;
	asm volatile("" ::: "memory"); /* the compiler would write it together with `mark` */
	skb->queue_mapping = 0;
}

/* How packets with a rate are delayed if they stay on the node, since no device's queue is on the way
 * between pods, or from a pod to the node itself. For these there is a pair of devices that are
 * each other's peer: a packet waits in the queue of one, and when it comes out of the other it
 * continues to where it would have gone. Its mark says where. Nothing else uses these devices: they
 * have no address, and no pod can send there. */

/* Where a packet goes, in the upper bits of its mark; the lower bits are an interface index. */
enum pacer_way {
	PACER_POD = 1U << 28, /* to the peer of the interface, a pod's */
	/* the same by the interface itself, because tc_to_pod has to translate it */
	PACER_DEVICE = 2U << 28,
	/* to the stack, as if coming from the interface of the pod that sent it */
	PACER_NODE = 3U << 28,
	PACER_PROXY = 5U << 28, /* to the proxy of the pod that sent it */
	/* on by the interface, which is another plugin's, as if it had not waited */
	PACER_BACK = 6U << 28,
	PACER_WAYS = 15U << 28,
};

/* Reports whether a packet has to wait. If its time is well past, no earlier packet still waits, so
 * it cannot overtake one. */
static __always_inline bool pod_pacer_is_due(__u64 at)
{
	return at > EDT_BEYOND_HORIZON && at + EDT_BURST / 4 > bpf_ktime_get_ns();
}

/* Delays a packet until its time. No node has ever had an interface index too large for the
 * mark. */
static __always_inline int pod_pacer_send(struct __sk_buff *skb, __u64 at, __u32 way, __u32 ifindex)
{
	skb->mark = way | (ifindex & ~PACER_WAYS);
	rate_stamp(skb, at);
	return bpf_redirect(cfg.pacer, 0);
}

/* How packets bypass the stack on the way to pods of this node: straight to the pod's end of its
 * device, as if they had come over it. The stack would route and filter them, schedule a queue for
 * them, and detach them from their socket. */

/* Takes a hop from a packet, and writes both MAC addresses, if given. */
static __always_inline bool pod_hop(struct __sk_buff *skb, const struct packet *p, const __u8 *to, const __u8 *from)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	void *ip = eth + 1;

	if (ip + (p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) > end)
		return false;
	if (to) {
		__builtin_memcpy(eth->h_dest, to, ETH_ALEN);
		__builtin_memcpy(eth->h_source, from, ETH_ALEN);
	}
	rewrite_hop(ip, p->is_v4);
	if (!p->is_v4)
		bpf_csum_update(skb, rewrite_hop_sum(false));
	return true;
}

static __always_inline bool pod_fits(struct __sk_buff *skb, __u32 ifindex)
{
	__u32 mtu = 0;

	return !bpf_check_mtu(skb, ifindex, &mtu, 0, BPF_MTU_CHK_SEGS) || rate_jumbo_fits(skb, mtu);
}

/* Reports whether policies deny a packet of a pod with these flags. */
static __always_inline bool pod_refuses(struct __sk_buff *skb, __u32 flags, __u32 ifindex, enum policy_flow_way way)
{
	if (!cfg.policies || !(flags & POD_POLICY))
		return false;
	if ((way == POLICY_FLOW_TO_POD || way == POLICY_FLOW_TO_NEXT) &&
	    policy_fastpath_admits(skb, ifindex, 0, false))
		return false;
	return !policy_flow_admits(skb, ifindex, way);
}

/* Reports whether policies deny what a pod sends, to another one on its node or elsewhere, see
 * pod_note_policy. */
static __always_inline bool pod_refuses_own(struct __sk_buff *skb, struct packet *p, const struct pod *to)
{
	int admits;

	if (!cfg.policies || !p->has_policy)
		return false;
	admits = policy_fastpath_admits(skb, p->ifindex, to && to->flags & POD_POLICY ? to->ifindex : 0, true);
	p->is_accepted = admits == POLICY_FASTPATH_BOTH;
	p->is_read = admits == POLICY_FASTPATH_LEFT;
	return !admits && !policy_flow_admits(skb, p->ifindex, POLICY_FLOW_FROM_POD);
}

/* Asks policies about a pod's answer to its node before it is translated: they know its flow by the pod's
 * address, not by that of the service which the node dialed. POD_ON: it is something else. */
static __always_inline int pod_ask_answer(struct __sk_buff *skb, struct packet *p)
{
	__u32 ifindex = skb->ifindex;

	if (!cfg.policies || !p->has_policy || !cluster_packet_clients_have(PACKET_CLIENT_NODE) ||
	    !pod_flow_answers_host(skb, p))
		return POD_ON;
	return policy_fastpath_admits(skb, ifindex, 0, true) ||
			       policy_flow_admits(skb, ifindex, POLICY_FLOW_FROM_POD)
		       ? POD_ASKED
		       : POD_DROP;
}

/* Reports whether policies deny a packet for the pod of this device. What comes back out of the device
 * that it came in by was sent by the pod itself, or answers it for a service that has no backend. */
static __always_inline bool pod_policies_refuse(struct __sk_buff *skb)
{
	__u32 zero = 0, ifindex = skb->ifindex;
	struct policy_state *state = bpf_map_lookup_elem(&policy_state, &zero);
	struct pod_link *link;

	if (!state || !state->pods || skb->ingress_ifindex == ifindex)
		return false;
	link = bpf_map_lookup_elem(&pod_links, &ifindex);
	return link && pod_refuses(skb, link->flags, ifindex, POLICY_FLOW_TO_POD);
}

/* Notes whether policies are about the pod that a packet is from. */
static __always_inline void pod_note_policy(struct packet *p, const struct pod *from)
{
	__u32 ifindex = p->ifindex;
	struct pod_link *link;

	if (!cfg.policies)
		return;
	link = from ? NULL : bpf_map_lookup_elem(&pod_links, &ifindex);
	p->has_policy = (from ? from->flags : link ? link->flags : 0) & POD_POLICY;
}

enum {
	PODS_STACK = -1,     /* the stack handles it */
	PODS_OVER_RATE = -2, /* drop it: the pod exceeds its receive rate */
	PODS_DENIED = -3,    /* drop it: policies deny it, which has been counted */
};

/* Sends a packet to a pod. Packets that tc_to_pod has to translate go by the host's end of the
 * pod's device. So do packets of a pod with a netkit device: its program runs before the packet has
 * come in anywhere, and bpf_redirect_peer only takes packets that have come in. The stack answers
 * packets that have no hops left or do not fit. `at` is the time at which the packet may leave its
 * sender; if it goes through tc_to_pod, that program asks when it may reach its receiver. */
static __always_inline int pod_redirect(struct __sk_buff *skb, struct packet *p, const struct pod *pod, __u64 at,
					enum policy_flow_way way)
{
	bool is_answer = pod_flow_is_reply(skb, p);
	__u32 ifindex = pod->ifindex;
	__u64 in = EDT_FREE;

	if (p->ttl <= 1 || (is_answer && !pod_fits(skb, ifindex)))
		return PODS_STACK;
	/* bpf_redirect_peer skips tc_to_pod, which asks otherwise */
	if (cfg.policies && !is_answer && !p->is_accepted &&
	    pod_refuses(skb, pod->flags, ifindex, p->is_read ? way | POLICY_FLOW_IS_READ : way))
		return PODS_DENIED;
	if (!pod_hop(skb, p, pod->mac, pod->host_mac))
		return PODS_STACK;
	if (cfg.pacer) {
		if (!is_answer)
			in = rate_book(skb, ifindex, PACE_IN, p->is_v4);
		if (in == EDT_BEYOND_HORIZON)
			return PODS_OVER_RATE;
		if (in > at)
			at = in;
		if (pod_pacer_is_due(at))
			return pod_pacer_send(skb, at, is_answer ? PACER_DEVICE : PACER_POD, ifindex);
	}
	return is_answer || !skb->ingress_ifindex ? bpf_redirect(ifindex, 0) : bpf_redirect_peer(ifindex, 0);
}

/* Returns the verdict for a packet that pod_redirect has handled. */
static __always_inline int pod_sent(struct __sk_buff *skb, struct packet *p, int outcome)
{
	if (outcome == PODS_DENIED)
		return POD_DROP;
	return outcome == PODS_OVER_RATE ? pod_drop_at(skb, p, REASON_JAM, FLOW_FROM_POD) : outcome;
}

/* Sends a packet that would go to the stack to its pod, if the pod is one of ours. */
__noinline int pod_deliver(struct __sk_buff *skb)
{
	struct packet p = {};
	struct pod *pod = packet_read_addrs(skb, &p) ? cluster_pod_at(&p.flow.daddr) : NULL;

	return pod ? pod_redirect(skb, &p, pod, EDT_FREE, POLICY_FLOW_TO_POD) : PODS_STACK;
}
