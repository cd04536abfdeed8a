/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains addresses of Services that lead nowhere: a port that a ClusterIP does not have,
 * and addresses in the cluster's ServiceCIDRs that no Service has. No route leads to them, so routers
 * would send such packets in circles. */
#pragma once

#include "maps.h"

/* Reports whether an address is one for ClusterIPs and not one of this node: a process of the node may
 * have a ClusterIP on purpose, such as a DNS cache. Not static, to have a stack frame of its own, and
 * with a copy of the key because Linux 6.1 accepts none in the frame of an unknown caller. */
__noinline int clusterip_is(const struct addr *addr)
{
	struct range_key key = { .prefix_len = RANGE_BITS, .service = RANGES_CLUSTER_IPS };

	if (!addr)
		return false;
	key.addr = *addr;
	return bpf_map_lookup_elem(&src_ranges, &key) && !bpf_map_lookup_elem(&node_addrs, &key.addr);
}

/* Reports whether no service has an address and port for ClusterIPs. One that this client may not use
 * has them all the same. */
static __always_inline bool clusterip_leads_nowhere(const struct svc_key *to)
{
	return clusterip_is(&to->addr) && !bpf_map_lookup_elem(&svcs, to);
}
