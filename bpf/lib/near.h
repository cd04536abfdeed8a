/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains which of a pod's packets stay on the node, and which of them are about its link. */
#pragma once

#include "antispoof.h"

/* Reports whether a pod's packet stays on the node. */
static __always_inline bool pod_is_near(const struct packet *p, const struct pod *to)
{
	struct addr addr = p->flow.daddr; /* as in pods_at */

	return to || (!p->is_v4 && antispoof_stays6(&addr)) || bpf_map_lookup_elem(&node_addrs, &addr);
}

/* Longer neighbor discovery carries something else: a router's advertisement with a few prefixes and
 * name servers fits. */
#define POD_LONGEST_ND 512

/* Reports whether a packet is ARP or neighbor discovery, which must not wait behind other packets.
 * Neighbor discovery from beyond the link has a lower hop limit, and if a pod sends it there it has
 * another kind of destination. ARP fits the shortest frame; what is longer carries something else. */
static __always_inline bool pod_is_neighbours(struct __sk_buff *skb, struct packet *p, bool sends)
{
	struct ipv6hdr ip6;
	__u8 type;

	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return skb->len <= ETH_ZLEN;
	if (skb->protocol != bpf_htons(ETH_P_IPV6) || skb->len > POD_LONGEST_ND ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &ip6, sizeof(ip6)) || ip6.nexthdr != IPPROTO_ICMPV6 ||
	    ip6.hop_limit != ND_HOPS ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + sizeof(ip6), &type, sizeof(type)) ||
	    type < ND_SOLICIT_ROUTER || type > ND_REDIRECT)
		return false;
	__builtin_memcpy(&p->flow.daddr, &ip6.daddr, sizeof(struct addr));
	return !sends || pod_is_near(p, NULL);
}
