/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the check that keeps pods from the tunnel between nodes, see tunnel.h. */
#pragma once

#include "cluster.h"
#include "packet.h"
#include "packetcfg.h"
#include "read.h"

/* Reports whether an address is a node's, as far as Node objects and this node's devices tell, or
 * one by which this node hears its neighbors. */
static __always_inline bool tunnel_is_at(const struct addr *addr)
{
	struct addr key = *addr; /* as in pods_at */

	if ((addr->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000))
		return true;
	return bpf_map_lookup_elem(&node_addrs, &key) || cluster_node_at(&key);
}

/* Reports whether the destination's port, or the protocol, has to be read to tell whether a packet
 * is for the tunnel. Nearly no packet needs that. */
static __always_inline bool tunnel_may_be(struct __sk_buff *skb, const struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end,
	     *ip = data + sizeof(struct ethhdr);
	struct udphdr *udp;

	if (!cfg.tunnel_port || p->flow.proto == IPPROTO_TCP || p->flow.proto == IPPROTO_ICMP ||
	    p->flow.proto == IPPROTO_ICMPV6)
		return false;
	if (p->flow.proto != IPPROTO_UDP)
		return !p->is_v4;
	if (p->is_v4 && (ip + sizeof(struct iphdr) > end || *(__u8 *)ip != 0x45))
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
	return tunnel_is_at(&p.flow.daddr) || cluster_node_at(&p.flow.saddr);
}
