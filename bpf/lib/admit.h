/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what may come in by a device of the node. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "cluster.h"
#include "config.h"
#include "flow.h"
#include "maps.h"
#include "packet.h"
#include "pod_maps.h"
#include "types.h"

/* Reports whether a packet may belong to a connection that the stack translated before our programs
 * were attached, see `conntrack_import`. */
static __always_inline bool admit_may_be_imported(const struct packet *p)
{
	__u32 zero = 0, *until;

	if (packet_begins_flow(p))
		return false;
	until = bpf_map_lookup_elem(&conntrack_import, &zero);
	return until && *until && (__s32)(*until - flow_now()) >= 0;
}

/* Which pods' addresses may be the source of what comes in by a device of the node. What this node's
 * pods send comes in by their own devices. Between pods of different nodes, where there is a
 * tunnel, all goes through it, by way of services too; only what pods answer to processes of the
 * node, and to clients outside, goes past it. */

/* Reports whether a packet belongs to a flow that the fast path handles, established or with a backend
 * that answers directly, and of which such packets come in by devices: its row stands for the check
 * there, and so it does here. What may begin a flow anew never goes the fast path. */
static __always_inline bool admit_is_known(const struct packet *p)
{
	struct flow key = p->flow; /* as in cluster_pod_at */
	struct ct_entry *row = flow_table_lookup(&key);

	if (p->tcp_flags & TCP_SYN)
		return false;
	if (!row) {
		row = bpf_map_lookup_elem(&ct_pending, &key);
		if (!row || !(row->kind & FLOW_DSR))
			return false;
	}
	return flow_is(row, FLOW_COMES_IN) && !flow_leaves(row);
}

/* Reports whether a packet is for a frontend. */
static __always_inline bool admit_dials(const struct packet *p)
{
	struct svc_key key = { .addr = p->flow.daddr, .port = p->flow.dport, .proto = p->flow.proto };

	if (!key.port) /* it has none, and there are rows of addresses */
		return false;
	if (bpf_map_lookup_elem(&svcs, &key))
		return true;
	if (!bpf_map_lookup_elem(&node_addrs, &key.addr))
		return false;
	key.addr = addr_any(&key.addr);
	return bpf_map_lookup_elem(&svcs, &key);
}

/* Reports whether a packet is for this node's end of the tunnel, which is the client that pods behind
 * the tunnel see and answer. */
static __always_inline bool admit_answers_tunnel(const struct packet *p)
{
	__u32 which = p->is_v4 ? SNAT_TUNNEL4 : SNAT_TUNNEL6;
	struct addr *end = bpf_map_lookup_elem(&snat_addrs, &which);

	return end && addr_equal(end, &p->flow.daddr);
}

/* Reports whether a packet that came in by a device, and not by the tunnel's, cannot come from the pod
 * whose address it has. Not inlined, to have a stack frame of its own. */
__noinline int admit_is_forged(const struct packet *p)
{
	struct prefix_key source = { .prefix_len = PREFIX_BITS };
	struct cluster_node *owner;
	bool to_pod;

	if (!p)
		return false;
	if (cluster_pod_at(&p->flow.saddr))
		return !admit_is_known(p);
	if (!cfg.tunnel_port)
		return false;
	to_pod = cluster_pod_at(&p->flow.daddr);
	if (!to_pod && !admit_answers_tunnel(p) && !admit_dials(p))
		return false;
	source.addr = p->flow.saddr;
	owner = bpf_map_lookup_elem(&node_sources, &source);
	/* Nodes are among what belongs behind them, and dial services. */
	return owner && !(owner->flags & CLUSTER_NODE_SELF) && (to_pod || !cluster_node_at(&source.addr)) &&
	       !admit_is_known(p);
}

/* Who may send to the tunnel between nodes, and what may come out of it. Nothing in a packet of VXLAN
 * is secret, and a node takes what comes out of its tunnel for what another node's pods have sent.
 * So pods reach no node's tunnel, nodes send to it from ports that nothing else is given, and what
 * comes out has a source that belongs behind the node that sent it, or behind no node. */

/* The source ports of nodes' tunnels (IFLA_VXLAN_PORT_RANGE) are these and those above. */
#define TUNNEL_FIRST_PORT 61000

/* Reports whether a packet from outside is for this node's tunnel and from no node's. */
static __always_inline bool admit_refuses_tunnel(const struct packet *p)
{
	struct addr to = p->flow.daddr; /* as in cluster_pod_at */

	return cfg.tunnel_port && !cfg.any_source_port && p->flow.dport == bpf_htons(cfg.tunnel_port) &&
	       p->flow.proto == IPPROTO_UDP && bpf_ntohs(p->flow.sport) < TUNNEL_FIRST_PORT &&
	       bpf_map_lookup_elem(&node_addrs, &to);
}

/* Reads the address of the node that a packet came from through the tunnel. False: it did not come
 * through it, but was put here by this node. */
static __always_inline bool admit_tunnel_sender(struct __sk_buff *skb, struct addr *from)
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
static __always_inline bool admit_tunnel_is_outside(const struct addr *addr)
{
	__u32 first = bpf_ntohl(addr->word[addr_is_v4(addr) ? 3 : 0]);
	struct addr key = *addr; /* as in cluster_pod_at */

	if (addr_is_v4(addr) ? first >> 24 == 0 || first >> 16 == 0xa9fe || first >= 0xe0000000
			     : first >> 22 == 0xfe800000 >> 22 || first >> 24 == 0xff)
		return false;
	return !addr_is_any(&key) && !addr_is_loopback(&key) && !bpf_map_lookup_elem(&node_addrs, &key);
}

/* Reads the addresses of a packet; its header need not be linear. */
static __always_inline bool admit_tunnel_read(struct __sk_buff *skb, struct packet *p)
{
	__u32 head = sizeof(struct ethhdr) + sizeof(struct ipv6hdr);

	return packet_read_addrs(skb, p) ||
	       (!bpf_skb_pull_data(skb, skb->len < head ? skb->len : head) && packet_read_addrs(skb, p));
}

/* Reports whether a packet may come out of the tunnel. Before all nodes are known, all do. Not
 * inlined, to have a stack frame of its own. */
static __noinline int admit_from_tunnel(struct __sk_buff *skb)
{
	struct cluster_node *node, *owner;
	struct prefix_key source = { .prefix_len = PREFIX_BITS };
	struct packet p = {};
	struct addr none = {};

	if (!admit_tunnel_sender(skb, &source.addr))
		return true;
	node = cluster_sender(&source.addr);
	if (node && admit_tunnel_read(skb, &p)) {
		source.addr = p.flow.saddr;
		owner = bpf_map_lookup_elem(&node_sources, &source);
		if (owner ? owner->number == node->number : admit_tunnel_is_outside(&source.addr))
			return true;
	}
	return !cluster_node_at(&none);
}
