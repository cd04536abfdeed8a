/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the check that keeps pods from the tunnel between nodes, see tunnel.h. */
#pragma once

#include "cluster.h"
#include "packet.h"
#include "packetcfg.h"
#include "read.h"
#include "route.h"

/* Reports whether this node's stack takes packets to an address itself, as it does those to the
 * broadcast address of a network that it is in. */
static __noinline bool tunnel_is_heard(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_fib_lookup way = { .family = ROUTE_INET, .ifindex = skb->ifindex };

	if (!p->is_v4)
		return false;
	way.ipv4_src = p->flow.saddr.word[3];
	way.ipv4_dst = p->flow.daddr.word[3];
	return bpf_fib_lookup(skb, &way, sizeof(way), 0) == BPF_FIB_LKUP_RET_NOT_FWDED;
}

/* Reports whether an address is a node's, as far as Node objects and this node's devices tell, or
 * one by which nodes hear their neighbors: link-local, multicast, broadcast, or none. */
static __always_inline bool tunnel_is_at(const struct addr *addr)
{
	__u32 first = bpf_ntohl(addr->word[addr_is_v4(addr) ? 3 : 0]);
	struct prefix_key source = { .prefix_len = PREFIX_BITS, .addr = *addr };
	struct addr key = *addr; /* as in pods_at */
	struct cluster_node *behind;

	if (addr_is_any(&key) ||
	    (addr_is_v4(addr) ? first >= 0xe0000000 : first >> 22 == 0xfe800000 >> 22 || first >> 24 == 0xff))
		return true;
	if (bpf_map_lookup_elem(&node_addrs, &key) || cluster_node_at(&key))
		return true;
	behind = bpf_map_lookup_elem(&node_sources, &source);
	return behind && behind->flags & CLUSTER_NODE_TUNNEL;
}

/* Reports whether the destination's port, or the protocol, has to be read to tell whether a packet
 * is for the tunnel. Nearly no packet needs that. */
static __always_inline bool tunnel_may_be(struct __sk_buff *skb, const struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end,
	     *ip = data + sizeof(struct ethhdr);
	struct ipv6hdr *ip6 = ip;
	struct udphdr *udp;

	if (!cfg.tunnel_port || p->flow.proto == IPPROTO_TCP || p->flow.proto == IPPROTO_ICMP ||
	    p->flow.proto == IPPROTO_ICMPV6)
		return false;
	if (p->flow.proto != IPPROTO_UDP)
		return !p->is_v4;
	if (p->is_v4 && (ip + sizeof(struct iphdr) > end || *(__u8 *)ip != 0x45))
		return true;
	/* behind extension headers, if whoever read the packet looked there */
	if (!p->is_v4 && ((void *)(ip6 + 1) > end || ip6->nexthdr != IPPROTO_UDP))
		return true;
	udp = ip + (p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	return (void *)(udp + 1) > end || udp->dest == bpf_htons(cfg.tunnel_port);
}

/* Reports whether a pod's packet is for a node's tunnel, or for any tunnel as from a node. IPv6
 * extension headers beyond those that are read may hide that it is. */
__noinline int tunnel_is_entered(struct __sk_buff *skb)
{
	struct packet p = {};
	enum parsed parsed = read_packet(skb, &p, 0);

	if (parsed == PARSED_FLOW ? p.flow.proto != IPPROTO_UDP || p.flow.dport != bpf_htons(cfg.tunnel_port)
				  : parsed != PARSED_OTHER || p.is_v4 || !extension_is(p.flow.proto))
		return false;
	return tunnel_is_at(&p.flow.daddr) || cluster_node_at(&p.flow.saddr) || tunnel_is_heard(skb, &p);
}
