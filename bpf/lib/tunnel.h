/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains who may send to the tunnel between nodes, and what may come out of it. Nothing
 * in a packet of VXLAN is secret, and a node takes what comes out of its tunnel for what another
 * node's pods have sent. So pods reach no node's tunnel, nodes send to it from ports that nothing
 * else is given, and what comes out has a source that belongs behind the node that sent it, or
 * behind no node. */
#pragma once

#include "cluster.h"
#include "pods.h"

/* The source ports of nodes' tunnels (IFLA_VXLAN_PORT_RANGE) are these and those above. */
#define TUNNEL_FIRST_PORT 61000

/* Reports whether a packet from outside is for this node's tunnel and from no node's. */
static __always_inline bool tunnel_refuses(const struct packet *p)
{
	struct addr to = p->flow.daddr; /* as in pods_at */

	return cfg.tunnel_port && !cfg.any_source_port && p->flow.dport == bpf_htons(cfg.tunnel_port) &&
	       p->flow.proto == IPPROTO_UDP && bpf_ntohs(p->flow.sport) < TUNNEL_FIRST_PORT &&
	       bpf_map_lookup_elem(&node_addrs, &to);
}

/* Reads the address of the node that a packet came from through the tunnel. False: it did not come
 * through it, but was put here by this node. */
static __always_inline bool tunnel_sender(struct __sk_buff *skb, struct addr *from)
{
	struct bpf_tunnel_key key = {};

	if (!bpf_skb_get_tunnel_key(skb, &key, sizeof(key), 0)) {
		*from = addr_from_v4(bpf_htonl(key.remote_ipv4));
		return true;
	}
	if (bpf_skb_get_tunnel_key(skb, &key, sizeof(key), BPF_F_TUNINFO_IPV6))
		return false;
	__builtin_memcpy(from, key.remote_ipv6, sizeof(*from));
	return true;
}

/* Reports whether an address that belongs behind no node may be a source all the same: nodes forward
 * through the tunnel for clients outside. */
static __always_inline bool tunnel_is_outside(const struct addr *addr)
{
	__u32 first = bpf_ntohl(addr->word[addr_is_v4(addr) ? 3 : 0]);
	struct addr key = *addr; /* as in pods_at */

	if (addr_is_v4(addr) ? first >> 24 == 0 || first >> 16 == 0xa9fe || first >= 0xe0000000
			     : first >> 22 == 0xfe800000 >> 22 || first >> 24 == 0xff)
		return false;
	return !addr_is_any(&key) && !addr_is_loopback(&key) && !bpf_map_lookup_elem(&node_addrs, &key);
}

/* Reads the addresses of a packet; its header need not be linear. */
static __always_inline bool tunnel_read(struct __sk_buff *skb, struct packet *p)
{
	__u32 head = sizeof(struct ethhdr) + sizeof(struct ipv6hdr);

	return pods_read(skb, p) ||
	       (!bpf_skb_pull_data(skb, skb->len < head ? skb->len : head) && pods_read(skb, p));
}

/* Reports whether a packet may come out of the tunnel. Before all nodes are known, all do. Not
 * inlined, to have a stack frame of its own. */
static __noinline int tunnel_lets_out(struct __sk_buff *skb)
{
	struct cluster_node *node, *owner;
	struct prefix_key source = { .prefix_len = PREFIX_BITS };
	struct packet p = {};
	struct addr none = {};

	if (!tunnel_sender(skb, &source.addr))
		return true;
	node = cluster_sender(&source.addr);
	if (node && tunnel_read(skb, &p)) {
		source.addr = p.flow.saddr;
		owner = bpf_map_lookup_elem(&node_sources, &source);
		if (owner ? owner->number == node->number : tunnel_is_outside(&source.addr))
			return true;
	}
	return !cluster_node_at(&none);
}
