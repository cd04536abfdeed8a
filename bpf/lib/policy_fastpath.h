/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how policies apply to nearly all packets: those of flows that were accepted, of which
 * nothing has to be noted. */
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
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "flow.h"
#include "flow_hash.h"
#include "packet.h"
#include "policy_maps.h"
#include "types.h"

/* Reads the flow of a TCP or UDP packet that lies as nearly all do and neither begins nor ends a
 * connection, or with both ends exchanged. */
static __always_inline bool policy_fastpath_read(struct __sk_buff *skb, struct flow *flow, bool turned)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct iphdr *ip4 = (void *)(eth + 1);
	bool is_v4;
	__u8 proto;
	void *l4;

	if ((void *)(ip4 + 1) > end || skb->vlan_present)
		return false;
	is_v4 = eth->h_proto == bpf_htons(ETH_P_IP);
	if (is_v4) {
		if (*(__u8 *)ip4 != 0x45 || ip4->frag_off & bpf_htons(IP4_MORE | IP4_OFFSET))
			return false;
		flow->saddr = addr_from_v4(turned ? ip4->daddr : ip4->saddr);
		flow->daddr = addr_from_v4(turned ? ip4->saddr : ip4->daddr);
		proto = ip4->protocol;
		l4 = ip4 + 1;
	} else {
		if (eth->h_proto != bpf_htons(ETH_P_IPV6) || (void *)(ip6 + 1) > end)
			return false;
		__builtin_memcpy(&flow->saddr, turned ? &ip6->daddr : &ip6->saddr, sizeof(flow->saddr));
		__builtin_memcpy(&flow->daddr, turned ? &ip6->saddr : &ip6->daddr, sizeof(flow->daddr));
		if (addr_is_v4(&flow->saddr) || addr_is_v4(&flow->daddr))
			return false;
		proto = ip6->nexthdr;
		l4 = ip6 + 1;
	}
	if (proto == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;

		if ((void *)(tcp + 1) > end || tcp->syn || tcp->fin || tcp->rst)
			return false;
		flow_set_ports(flow, turned ? tcp->dest : tcp->source, turned ? tcp->source : tcp->dest, proto);
		return true;
	}
	if (proto == IPPROTO_UDP) {
		struct udphdr *udp = l4;

		if ((void *)(udp + 1) > end)
			return false;
		flow_set_ports(flow, turned ? udp->dest : udp->source, turned ? udp->source : udp->dest, proto);
		return true;
	}
	return false;
}

/* The generation of what policies say about a pod. Zero: they say nothing, or it is not known. */
static __always_inline __u32 policy_fastpath_generation(__u32 ifindex, __u32 version)
{
	struct policy_pod *pod = bpf_map_lookup_elem(&policy_pods, &ifindex);
	struct policy_subject *s;

	if (!pod)
		return 0;
	s = &pod->subject[version % POLICY_VERSIONS];
	return s->subject ? s->generation : 0;
}

/* The tag `next` of the row of a flow whose words have this sum. */
static __always_inline __u64 policy_fastpath_next(__u64 sum, __u32 generation)
{
	return flow_hash_mix(sum, (__u64)generation << 8 | POLICY_FLOW_NEXT);
}

enum policy_fastpath {
	POLICY_FASTPATH_LEFT, /* policy_flow_admits decides */
	POLICY_FASTPATH_OWN,
	POLICY_FASTPATH_BOTH, /* the pod that receives it accepts it too */
};

/* The short way of nearly all packets: reports whether a packet of the pod with this device belongs to a
 * flow that its policies have accepted, and has nothing to be noted in its row, which happens once a tick.
 * `next` is the device of the pod that receives what this one sends, or zero. */
__noinline int policy_fastpath_admits(struct __sk_buff *skb, __u32 ifindex, __u32 next, bool sends)
{
	__u32 version = policy_maps_version(), generation, flags;
	struct policy_flow *row;
	struct flow key = {};
	__u64 sum, tag;

	if (!policy_fastpath_read(skb, &key, !sends))
		return POLICY_FASTPATH_LEFT;
	row = bpf_map_lookup_elem(&policy_flows, &key);
	if (!row || row->seen != flow_now() || row->ends & POLICY_RST << (sends ? POLICY_EGRESS : POLICY_INGRESS))
		return POLICY_FASTPATH_LEFT;
	flags = *(volatile __u16 *)&row->flags;
	generation = *(volatile __u32 *)&row->generation;
	tag = *(volatile __u64 *)&row->tag;
	sum = flow_hash_sum(&key);
	if (flags & POLICY_FLOW_DENIED || !generation ||
	    generation != policy_fastpath_generation(ifindex, version) ||
	    tag != flow_hash_mix(sum, (__u64)generation << 8 | (__u8)flags))
		return POLICY_FASTPATH_LEFT;
	if (!next)
		return POLICY_FASTPATH_OWN;
	tag = *(volatile __u64 *)&row->next;
	generation = policy_fastpath_generation(next, version);
	return generation && tag == policy_fastpath_next(sum, generation) ? POLICY_FASTPATH_BOTH
									  : POLICY_FASTPATH_OWN;
}

/* Notes at the row of the sender of a packet that the receiver's policies have accepted its flow too. */
static __noinline void policy_fastpath_note(const struct packet *p, __u32 generation)
{
	struct flow key = p->flow;
	struct policy_flow *row = bpf_map_lookup_elem(&policy_flows, &key);
	__u64 next = policy_fastpath_next(flow_hash_sum(&key), generation);

	if (row && row->next != next)
		row->next = next;
}
