/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what is special about packets of IPv6 that were merged to more than the length in their header
 * can say. Linux puts a header of its own between those of IPv6 and TCP, which says the length, and takes it off
 * before the packet is cut up: no link ever has it. But it counts it when it is asked whether the pieces fit. */
#pragma once

#include <bpf/bpf_helpers.h>

#include "packet.h"

enum {
	JUMBO_LEN = 8,
	JUMBO_OPTION = 0xc2, /* all that it has */
	JUMBO_L4 = sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + JUMBO_LEN,
};

/* Whether the pieces of a packet that is such a one fit a link that takes so much. */
static __always_inline bool jumbo_fits(struct __sk_buff *skb, __u32 mtu)
{
	void *data = (void *)(long)skb->data;
	struct ipv6hdr *ip6 = data + sizeof(struct ethhdr);
	__u8 *tcp = data + JUMBO_L4;

	if (skb->protocol != bpf_htons(ETH_P_IPV6) || !skb->gso_size ||
	    (void *)(tcp + sizeof(struct tcphdr)) > (void *)(long)skb->data_end)
		return false;
	return ip6->nexthdr == IPPROTO_HOPOPTS && !ip6->payload_len &&
	       sizeof(*ip6) + (tcp[12] >> 4) * 4 + skb->gso_size <= mtu;
}
