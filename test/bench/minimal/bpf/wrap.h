/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the least that direct server return needs: an IP header around an unfragmented
 * packet, from the node to the backend. */
#pragma once

#include "flows.h"

static __always_inline __u32 wrap_len(bool is_v4)
{
	return is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

/* Decrements the TTL of a packet, and returns its length without the link header. */
static __always_inline __u16 wrap_inner(struct packet *p)
{
	if (!p->ip4) {
		p->ip6->hop_limit--;
		return bpf_ntohs(p->ip6->payload_len) + sizeof(*p->ip6);
	}
	p->ip4->ttl--;
	replace(&p->ip4->check, (__u16)~bpf_htons(0x0100));
	return bpf_ntohs(p->ip4->tot_len);
}

static __always_inline bool wrap_ip4(struct iphdr *ip, void *end, const struct rewrite *to, __u16 len)
{
	__u32 sum = 0;

	if ((void *)(ip + 1) > end)
		return false;
	*ip = (struct iphdr) {
		.version = 4,
		.ihl = 5,
		.tot_len = bpf_htons(len + sizeof(*ip)),
		.ttl = 64,
		.protocol = IPPROTO_IPIP,
		.saddr = to->saddr[0],
		.daddr = to->daddr[0],
	};
	for (int i = 0; i < 10; i++)
		sum += ((__u16 *)ip)[i];
	ip->check = ~fold(sum);
	return true;
}

static __always_inline bool wrap_ip6(struct ipv6hdr *ip, void *end, const struct rewrite *to, __u16 len)
{
	if ((void *)(ip + 1) > end)
		return false;
	*(__be32 *)ip = bpf_htonl(6 << 28);
	ip->payload_len = bpf_htons(len);
	ip->nexthdr = IPPROTO_IPV6;
	ip->hop_limit = 64;
	__builtin_memcpy(&ip->saddr, to->saddr, 16);
	__builtin_memcpy(&ip->daddr, to->daddr, 16);
	return true;
}

/* Writes the outer headers, once there is room for them. */
static __always_inline bool wrap_write(void *data, void *end, bool is_v4, const struct rewrite *to, __u16 len)
{
	struct ethhdr *eth = data;

	if (is_v4 ? !wrap_ip4((void *)(eth + 1), end, to, len) : !wrap_ip6((void *)(eth + 1), end, to, len))
		return false;
	__builtin_memcpy(eth->h_dest, to->dmac, 6);
	__builtin_memcpy(eth->h_source, to->smac, 6);
	eth->h_proto = is_v4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	return true;
}
