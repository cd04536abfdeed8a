/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains which pods' addresses may be the source of what comes in by a device of the
 * node. What this node's pods send comes in by their own devices. Between pods of different nodes,
 * where there is a tunnel, all goes through it, by way of services too; only what pods answer to
 * processes of the node, and to clients outside, goes past it. */
#pragma once

#include "cluster.h"
#include "ct.h"
#include "packetcfg.h"
#include "pods.h"

/* Reports whether packets of a row leave the node rather than come in: answers of a backend on this
 * node to a client by the client's own address. A row of the node's own flow looks alike. */
static __always_inline bool source_leaves(const struct flow *flow, const struct ct_entry *row)
{
	return (row->flags & (CT_REPLY | CT_NODE)) == CT_REPLY && addr_equal(&flow->daddr, &row->daddr);
}

/* Reports whether a packet belongs to a flow that the fast path handles, established or with a backend
 * that answers directly, and of which such packets come in by devices: its row stands for the check
 * there, and so it does here. What may begin a flow anew never goes the fast path. */
static __always_inline bool source_is_known(const struct packet *p)
{
	struct flow key = p->flow; /* as in pods_at */
	struct ct_entry *row = table_lookup(&key);

	if (p->tcp_flags & TCP_SYN)
		return false;
	if (!row) {
		row = bpf_map_lookup_elem(&ct_pending, &key);
		if (!row || !(row->flags & CT_DSR))
			return false;
	}
	return ct_comes_in(row) && !source_leaves(&key, row);
}

/* Reports whether a packet is for a frontend. */
static __always_inline bool source_dials(const struct packet *p)
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
static __always_inline bool source_answers_tunnel(const struct packet *p)
{
	__u32 which = p->is_v4 ? SNAT_TUNNEL4 : SNAT_TUNNEL6;
	struct addr *end = bpf_map_lookup_elem(&snat_addrs, &which);

	return end && addr_equal(end, &p->flow.daddr);
}

/* Reports whether a packet that came in by a device, and not by the tunnel's, cannot come from the pod
 * whose address it has. Not inlined, to have a stack frame of its own. */
__noinline int source_is_forged(const struct packet *p)
{
	struct prefix_key source = { .prefix_len = PREFIX_BITS };
	struct cluster_node *owner;
	bool to_pod;

	if (!p)
		return false;
	if (pods_at(&p->flow.saddr))
		return !source_is_known(p);
	if (!cfg.tunnel_port)
		return false;
	to_pod = pods_at(&p->flow.daddr);
	if (!to_pod && !source_answers_tunnel(p) && !source_dials(p))
		return false;
	source.addr = p->flow.saddr;
	owner = bpf_map_lookup_elem(&node_sources, &source);
	/* Nodes are among what belongs behind them, and dial services. */
	return owner && !(owner->flags & CLUSTER_NODE_SELF) && (to_pod || !cluster_node_at(&source.addr)) &&
	       !source_is_known(p);
}
