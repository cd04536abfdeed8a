/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains packets on their way to and from pods of this node. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/types.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "cluster.h"
#include "config.h"
#include "count.h"
#include "csum.h"
#include "event.h"
#include "flow.h"
#include "fragment.h"
#include "maps.h"
#include "packet.h"
#include "pod_maps.h"
#include "rate.h"
#include "reason.h"
#include "types.h"

enum {
	POD_NEXT = -1, /* to the next program, whoever owns it, and then to the stack */
	POD_ON = -2,   /* no verdict: the packet goes to its current destination */
	/* likewise: the pod replies to itself, and tc_to_pod has to translate that */
	POD_BACK = -3,
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
	flow_drop(&a, reason);
	pod_count(skb, p, &a, side);
	return POD_DROP;
}

/* How a packet is recognized as part of a flow that a pod began by sending packets to a service, and
 * not through a socket that a socket program pointed at a backend (CT_POD_FLOW).
 *
 * Such a flow is translated only at its client's device: requests as they leave the client, replies as
 * they enter it. Everything between, the stack, other programs and other nodes, sees the pod and
 * its backend. */

/* Reads the ports of a packet whose addresses and protocol are known. False: they are not where
 * nearly all packets have them. */
static __always_inline bool pod_flow_read(struct __sk_buff *skb, struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip4 = data + sizeof(struct ethhdr);
	struct ipv6hdr *ip6 = (void *)ip4;
	struct udphdr *udp = p->is_v4 ? (void *)(ip4 + 1) : (void *)(ip6 + 1);

	if ((void *)(udp + 1) > end || (p->flow.proto != IPPROTO_TCP && p->flow.proto != IPPROTO_UDP))
		return false;
	if (p->is_v4 ? *(__u8 *)ip4 != 0x45 || ip4->frag_off & bpf_htons(IP4_MORE | IP4_OFFSET)
		     : ip6->nexthdr != p->flow.proto)
		return false;
	flow_set_ports(&p->flow, udp->source, udp->dest, p->flow.proto);
	return true;
}

/* Reports whether a packet may begin a flow. Of TCP only a SYN does, so that packets of connections
 * that go elsewhere cost nothing more. */
static __always_inline bool pod_flow_begins(struct __sk_buff *skb, const struct packet *p)
{
	__u32 l4 = sizeof(struct ethhdr) + (p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	struct tcphdr *tcp = (void *)(long)skb->data + l4;

	if (p->flow.proto != IPPROTO_TCP)
		return true;
	return (void *)(tcp + 1) <= (void *)(long)skb->data_end && tcp->syn && !tcp->ack;
}

/* Reports whether a flow has a row, in either direction. The row may become another flow's before
 * it is read; then this flow no longer has one. Not static, to have a stack frame of its own. */
__noinline int pod_flow_is_known(const struct flow *flow)
{
	struct ct_entry *row;
	struct flow key; /* as in flow_known */

	if (!flow)
		return false;
	key = *flow;
	row = flow_table_lookup(&key);
	if (!row)
		row = bpf_map_lookup_elem(&ct_pending, &key);
	return row && row->flags & (CT_POD_FLOW | CT_NODE);
}

/* The same for a packet without ports or with them in an unusual place. Any ICMP packet may be. */
__noinline int pod_flow_is_odd(struct __sk_buff *skb, struct packet *p)
{
	if (!p)
		return false;
	switch (packet_read(skb, p, 0)) {
	case PARSED_FLOW:
		return pod_flow_is_known(&p->flow);
	case PARSED_LATER:
		return fragment_complete(p) && pod_flow_is_known(&p->flow);
	case PARSED_ICMP:
		return true;
	}
	return false;
}

/* Reports whether a packet for a pod replies to what the pod sent to a service. */
static __always_inline bool pod_flow_is_reply(struct __sk_buff *skb, struct packet *p)
{
	if (!cluster_packet_clients_have(PACKET_CLIENT_POD))
		return false;
	return pod_flow_read(skb, p) ? pod_flow_is_known(&p->flow) : pod_flow_is_odd(skb, p);
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

/* Decrements the hop limit, as a router does, and writes both MAC addresses, if given. Only for
 * IPv6 does that change the sum over the whole packet that a device may have computed: the IPv4
 * header's checksum compensates. */
static __always_inline bool pod_hop(struct __sk_buff *skb, const struct packet *p, const __u8 *to, const __u8 *from)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct iphdr *ip4 = (void *)(eth + 1);

	if ((void *)(ip4 + 1) > end)
		return false;
	if (to) {
		__builtin_memcpy(eth->h_dest, to, ETH_ALEN);
		__builtin_memcpy(eth->h_source, from, ETH_ALEN);
	}
	if (p->is_v4) {
		ip4->ttl--;
		ip4->check = csum_change(ip4->check, (__u16)~bpf_htons(0x100));
		return true;
	}
	if ((void *)(ip6 + 1) > end)
		return false;
	ip6->hop_limit--;
	bpf_csum_update(skb, (__u16)~bpf_htons(1));
	return true;
}

static __always_inline bool pod_fits(struct __sk_buff *skb, __u32 ifindex)
{
	__u32 mtu = 0;

	return !bpf_check_mtu(skb, ifindex, &mtu, 0, BPF_MTU_CHK_SEGS) || rate_jumbo_fits(skb, mtu);
}

enum {
	PODS_STACK = -1,     /* the stack handles it */
	PODS_OVER_RATE = -2, /* drop it: the pod exceeds its receive rate */
};

/* Sends a packet to a pod. Packets that tc_to_pod has to translate go by the host's end of the
 * pod's device. So do packets of a pod with a netkit device: its program runs before the packet has
 * come in anywhere, and bpf_redirect_peer only takes packets that have come in. The stack answers
 * packets that have no hops left or do not fit. `at` is the time at which the packet may leave its
 * sender; if it goes through tc_to_pod, that program asks when it may reach its receiver. */
static __always_inline int pod_redirect(struct __sk_buff *skb, struct packet *p, const struct pod *pod, __u64 at)
{
	bool is_answer = pod_flow_is_reply(skb, p);
	__u32 ifindex = pod->ifindex;
	__u64 in = EDT_FREE;

	if (p->ttl <= 1 || (is_answer && !pod_fits(skb, ifindex)) || !pod_hop(skb, p, pod->mac, pod->host_mac))
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

/* Sends a packet that would go to the stack to its pod, if the pod is one of ours. */
__noinline int pod_deliver(struct __sk_buff *skb)
{
	struct packet p = {};
	struct pod *pod = packet_read_addrs(skb, &p) ? cluster_pod_at(&p.flow.daddr) : NULL;

	return pod ? pod_redirect(skb, &p, pod, EDT_FREE) : PODS_STACK;
}
