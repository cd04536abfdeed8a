/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains which pods' addresses may be the source of what comes in by a device of the
 * node. What this node's pods send comes in by their own devices. Between pods of different nodes,
 * where there is a tunnel, all goes through it; only what pods answer to processes of the node, and to
 * clients outside, goes past it. */
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

/* Reports whether a packet belongs to an established flow of which such packets come in by devices: its
 * row stands for the check, as it does on the short way. */
static __always_inline bool source_is_known(const struct packet *p)
{
	struct flow key = p->flow; /* as in pods_at */
	struct ct_entry *row = table_lookup(&key);

	return row && ct_comes_in(row) && !source_leaves(&key, row);
}

/* Reports whether a packet that came in by a device, and not by the tunnel's, cannot come from the pod
 * whose address it has. Not inlined, to have a stack frame of its own. */
__noinline int source_is_forged(const struct packet *p)
{
	struct prefix_key source = { .prefix_len = PREFIX_BITS };
	struct cluster_node *owner;

	if (!p)
		return false;
	if (pods_at(&p->flow.saddr))
		return !source_is_known(p);
	if (!cfg.tunnel_port || !pods_at(&p->flow.daddr))
		return false;
	source.addr = p->flow.saddr;
	owner = bpf_map_lookup_elem(&node_sources, &source);
	return owner && !(owner->flags & CLUSTER_NODE_SELF);
}
