/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains who is who: nodes, pods, clients in a service's source ranges, addresses of
 * Services. */
#pragma once

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>

#include "maps.h"
#include "pod_maps.h"
#include "types.h"

/* Addresses of Services that lead nowhere: a port that a ClusterIP does not have, and addresses in the
 * cluster's ServiceCIDRs that no Service has. No route leads to them, so routers would send such
 * packets in circles. */

/* Reports whether an address is one for ClusterIPs and not one of this node: a process of the node may
 * have a ClusterIP on purpose, such as a DNS cache. Not static, to have a stack frame of its own, and
 * with a copy of the key because Linux 6.1 accepts none in the frame of an unknown caller. */
__noinline int cluster_ip_is(const struct addr *addr)
{
	struct range_key key = { .prefix_len = RANGE_BITS, .service = RANGES_CLUSTER_IPS };

	if (!addr)
		return false;
	key.addr = *addr;
	return bpf_map_lookup_elem(&src_ranges, &key) && !bpf_map_lookup_elem(&node_addrs, &key.addr);
}

/* Reports whether no service has an address and port for ClusterIPs. One that this client may not use
 * has them all the same. */
static __always_inline bool cluster_ip_leads_nowhere(const struct svc_key *to)
{
	return cluster_ip_is(&to->addr) && !bpf_map_lookup_elem(&svcs, to);
}

static __always_inline bool cluster_ranges_allow(const struct service *service, __u32 index,
						 const struct addr *client)
{
	struct range_key key = { .prefix_len = RANGE_BITS, .service = index, .addr = *client };

	return !(service->flags & SERVICE_SOURCE_RANGES) || bpf_map_lookup_elem(&src_ranges, &key);
}

/* Reports whether a client's address is a node's or in a node's pod CIDR, as far as the agent
 * knows. */
static __always_inline bool cluster_is_node_or_pod(const struct addr *client)
{
	struct range_key key = { .prefix_len = RANGE_BITS, .service = RANGES_PODS, .addr = *client };

	return bpf_map_lookup_elem(&src_ranges, &key);
}

/* Reports whether an address is a node's, as far as Node objects tell. */
static __always_inline bool cluster_is_node(const struct addr *addr)
{
	struct addr key = *addr; /* as in flow_known */
	struct cluster_node *node = bpf_map_lookup_elem(&cluster_nodes, &key);

	return node && node->number;
}

static __always_inline struct cluster_node *cluster_node_at(const struct addr *addr)
{
	struct addr key = *addr; /* as in cluster_pod_at */

	return bpf_map_lookup_elem(&cluster_nodes, &key);
}

/* Returns the node that a packet from outside came from. This node sends itself nothing that way, so
 * its own address there is somebody else's lie. */
static __always_inline struct cluster_node *cluster_sender(const struct addr *from)
{
	struct cluster_node *node = cluster_node_at(from);

	return node && node->number && !(node->flags & CLUSTER_NODE_SELF) ? node : NULL;
}

/* Who has begun such a flow: a pod, or the node itself, whose replies from pods are
 * translated as they leave the pod. */
enum packet_client {
	PACKET_CLIENT_POD = 1,
	PACKET_CLIENT_NODE = 2,
};

/* Reports whether there ever was a flow of any of these. */
static __always_inline bool cluster_packet_clients_have(__u32 by)
{
	__u32 zero = 0, *used = bpf_map_lookup_elem(&packet_clients, &zero);

	return used && *(volatile __u32 *)used & by;
}

/* Notes that there is such a flow. Both its row and this are written before its first packet goes
 * on. */
static __always_inline void cluster_packet_clients_note(__u32 by)
{
	__u32 zero = 0, *used = bpf_map_lookup_elem(&packet_clients, &zero);

	if (used && !(*(volatile __u32 *)used & by))
		__sync_fetch_and_or(used, by);
}

static __always_inline struct pod *cluster_pod_at(const struct addr *addr)
{
	/* Linux 6.1 does not accept a key in the stack frame of a caller that it does not know */
	struct addr key = *addr;

	return bpf_map_lookup_elem(&pods, &key);
}
