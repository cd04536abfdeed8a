/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains who is a node of the cluster. */
#pragma once

#include "maps.h"

static __always_inline struct cluster_node *cluster_node_at(const struct addr *addr)
{
	struct addr key = *addr; /* as in pods_at */

	return bpf_map_lookup_elem(&cluster_nodes, &key);
}

/* Returns the node that a packet from outside came from. This node sends itself nothing that way, so
 * its own address there is somebody else's lie. */
static __always_inline struct cluster_node *cluster_sender(const struct addr *from)
{
	struct cluster_node *node = cluster_node_at(from);

	return node && node->number && !(node->flags & CLUSTER_NODE_SELF) ? node : NULL;
}
