/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the special case of IPv6 packets merged to more than their length field can
 * express. Linux inserts a jumbogram header between the IPv6 and TCP headers and removes it before
 * segmentation, so no link ever carries it. But bpf_check_mtu counts it when it checks whether the
 * segments fit. */
#pragma once

#include <bpf/bpf_helpers.h>

#include "packet.h"

enum {
	JUMBO_LEN = 8,
	JUMBO_OPTION = 0xc2, /* the option, which is all that the header contains */
	JUMBO_L4 = sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + JUMBO_LEN,
};

/* Reports whether the segments of such a packet fit a link with this MTU. */
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
