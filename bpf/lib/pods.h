/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how packets bypass the stack on the way to pods of this node: straight to the
 * pod's end of its device, as if they had come over it. The stack would route and filter them,
 * schedule a queue for them, and detach them from their socket. */
#pragma once

#include "csum.h"
#include "pod_flow.h"
#include "jumbo.h"
#include "maps.h"
#include "packet.h"
#include "pacer.h"

static __always_inline struct pod *pods_at(const struct addr *addr)
{
	/* Linux 6.1 does not accept a key in the stack frame of a caller that it does not know */
	struct addr key = *addr;

	return bpf_map_lookup_elem(&pods, &key);
}

/* Reads a packet's addresses, protocol and hop limit. False: it is not IP, has a VLAN tag, or its
 * header is truncated. IPv6 addresses that would be mistaken for IPv4 are never on the wire. */
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

/* Decrements the hop limit, as a router does, and writes both MAC addresses, if given. Only for
 * IPv6 does that change the sum over the whole packet that a device may have computed: the IPv4
 * header's checksum compensates. */
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
	PODS_STACK = -1,     /* the stack handles it */
	PODS_OVER_RATE = -2, /* drop it: the pod exceeds its receive rate */
};

/* Sends a packet to a pod. Packets that tc_to_pod has to translate go by the host's end of the
 * pod's device. So do packets of a pod with a netkit device: its program runs before the packet has
 * come in anywhere, and bpf_redirect_peer only takes packets that have come in. The stack answers
 * packets that have no hops left or do not fit. `at` is the time at which the packet may leave its
 * sender; if it goes through tc_to_pod, that program asks when it may reach its receiver. */
static __always_inline int pods_send(struct __sk_buff *skb, struct packet *p, const struct pod *pod, __u64 at)
{
	bool is_answer = pod_flow_is_reply(skb, p);
	__u32 ifindex = pod->ifindex;
	__u64 in = EDT_FREE;

	if (p->ttl <= 1 || (is_answer && !pods_fit(skb, ifindex)) || !pods_hop(skb, p, pod->mac, pod->host_mac))
		return PODS_STACK;
	if (cfg.pacer) {
		if (!is_answer)
			in = edt_book(skb, ifindex, PACE_IN, p->is_v4);
		if (in == EDT_BEYOND_HORIZON)
			return PODS_OVER_RATE;
		if (in > at)
			at = in;
		if (pacer_is_due(at))
			return pacer_enter(skb, at, is_answer ? PACER_DEVICE : PACER_POD, ifindex);
	}
	return is_answer || !skb->ingress_ifindex ? bpf_redirect(ifindex, 0) : bpf_redirect_peer(ifindex, 0);
}

/* Sends a packet that would go to the stack to its pod, if the pod is one of ours. */
__noinline int pods_enter(struct __sk_buff *skb)
{
	struct packet p = {};
	struct pod *pod = pods_read(skb, &p) ? pods_at(&p.flow.daddr) : NULL;

	return pod ? pods_send(skb, &p, pod, EDT_FREE) : PODS_STACK;
}
