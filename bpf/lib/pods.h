/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how packets get past the stack to pods of this node: right to the pod's end of its device, as
 * if they had come over it. The stack would route and filter them, wake up a queue for them, and forget whose
 * socket they are from. */
#pragma once

#include "csum.h"
#include "inside.h"
#include "jumbo.h"
#include "maps.h"
#include "packet.h"
#include "pair.h"

static __always_inline struct pod *pods_at(const struct addr *addr)
{
	struct addr key = *addr; /* Linux 6.1 looks nothing up by the stack of a caller that it does not know */

	return bpf_map_lookup_elem(&pods, &key);
}

/* Reads of a packet whom it is from and for, and how far it may go. False: it is none of IP, it has a tag, or its
 * header is not all there. Addresses of IPv6 that would pass for IPv4's are on no wire. */
static __always_inline bool pods_read(struct __sk_buff *skb, struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct iphdr *ip4 = (void *)(eth + 1);

	if ((void *)(ip4 + 1) > end || skb->vlan_present)
		return false;
	p->ifindex = skb->ifindex;
	p->is_v4 = eth->h_proto == bpf_htons(ETH_P_IP);
	if (p->is_v4) {
		p->ttl = ip4->ttl;
		p->flow.saddr = addr_from_v4(ip4->saddr);
		p->flow.daddr = addr_from_v4(ip4->daddr);
		p->flow.proto = ip4->protocol;
		return true;
	}
	if (eth->h_proto != bpf_htons(ETH_P_IPV6) || (void *)(ip6 + 1) > end)
		return false;
	p->ttl = ip6->hop_limit;
	__builtin_memcpy(&p->flow.saddr, &ip6->saddr, sizeof(struct addr));
	__builtin_memcpy(&p->flow.daddr, &ip6->daddr, sizeof(struct addr));
	p->flow.proto = ip6->nexthdr;
	return !addr_is_v4(&p->flow.saddr) && !addr_is_v4(&p->flow.daddr);
}

/* Takes a hop, as a router does, and writes both addresses of the link, if there are any. The sum over the whole
 * packet that a device may have made has to be told of a hop only where the header has no sum of its own. */
static __always_inline bool pods_hop(struct __sk_buff *skb, const struct packet *p, const __u8 *to,
				     const __u8 *from)
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

static __always_inline bool pods_fit(struct __sk_buff *skb, __u32 ifindex)
{
	__u32 mtu = 0;

	return !bpf_check_mtu(skb, ifindex, &mtu, 0, BPF_MTU_CHK_SEGS) || jumbo_fits(skb, mtu);
}

enum {
	PODS_STACK = -1, /* it goes to the stack */
	PODS_LATE = -2,	 /* it is to be dropped: the pod gets more than it may */
};

/* Sends a packet to a pod: by the host's end of its device where tc_to_pod has something to translate, and from a
 * pod at a netkit, whose program has the packet before it came in anywhere: to the other end gets only what came
 * in. What has no hops left the stack answers, and what does not fit there. It may leave its sender at a time;
 * where tc_to_pod gets it, that asks when it may come to its receiver. */
static __always_inline int pods_send(struct __sk_buff *skb, struct packet *p, const struct pod *pod, __u64 at)
{
	bool is_answer = inside_is_answer(skb, p);
	__u32 ifindex = pod->ifindex;
	__u64 in = EDT_FREE;

	if (p->ttl <= 1 || (is_answer && !pods_fit(skb, ifindex)) || !pods_hop(skb, p, pod->mac, pod->host_mac))
		return PODS_STACK;
	if (cfg.pair) {
		if (!is_answer)
			in = edt_book(skb, ifindex, PACE_IN, p->is_v4);
		if (in == EDT_LATE)
			return PODS_LATE;
		if (in > at)
			at = in;
		if (pair_is_due(at))
			return pair_enter(skb, at, is_answer ? PAIR_DEVICE : PAIR_POD, ifindex);
	}
	return is_answer || !skb->ingress_ifindex ? bpf_redirect(ifindex, 0) : bpf_redirect_peer(ifindex, 0);
}

/* Sends what is for the stack to the pod that it is for, if that is one of ours. */
__noinline int pods_enter(struct __sk_buff *skb)
{
	struct packet p = {};
	struct pod *pod = pods_read(skb, &p) ? pods_at(&p.flow.daddr) : NULL;

	return pod ? pods_send(skb, &p, pod, EDT_FREE) : PODS_STACK;
}
