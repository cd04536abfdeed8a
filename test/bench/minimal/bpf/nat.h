/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what the smallest possible rewriting programs share: the rewrite computed in
 * advance by user space, and the parsing of plain packets. Checks that only a product needs are
 * missing: fragments, options and ICMP errors are not considered. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum {
	V4,
	V6,
	FAMILIES,
};

/* The rewrite of a packet. An IPv4 address only uses the first word. The differences are sums of
 * the new values minus the old ones, so that programs need not know the old ones. */
struct rewrite {
	__be32 saddr[4];
	__be32 daddr[4];
	__be16 sport; /* 0 = unchanged */
	__be16 dport; /* 0 = unchanged */
	__u32 addr_diff;
	__u32 port_diff;
	__u8 dmac[6];
	__u8 smac[6];
	__u32 ifindex;
};

/* Packets with the same rewrite: those to an address and port, or for replies those from it. */
struct side {
	__be32 addr[4];
	__be16 port;
	__u16 reply;
	struct rewrite to;
};

/* By direction and family. */
const volatile struct side forward[FAMILIES] = {};
const volatile struct side reply[FAMILIES] = {};

struct packet {
	struct ethhdr *eth;
	struct iphdr *ip4;
	struct ipv6hdr *ip6;
	struct udphdr *l4; /* for TCP too: both begin with the ports */
	__u8 proto;
	__u8 l4_offset;
	__u8 check_offset; /* of the checksum of TCP or UDP, in the packet */
};

static __always_inline bool parse_l4(struct packet *p, void *data, void *end)
{
	p->l4 = data + p->l4_offset;
	switch (p->proto) {
	case IPPROTO_TCP:
		p->check_offset = p->l4_offset + 16;
		return (void *)p->l4 + 20 <= end;
	case IPPROTO_UDP:
		p->check_offset = p->l4_offset + 6;
		return (void *)(p->l4 + 1) <= end;
	default:
		return false;
	}
}

static __always_inline bool parse(struct packet *p, void *data, void *end)
{
	p->eth = data;
	if (data + sizeof(*p->eth) + sizeof(*p->ip4) > end)
		return false;
	if (p->eth->h_proto == bpf_htons(ETH_P_IP)) {
		p->ip4 = (void *)(p->eth + 1);
		p->ip6 = NULL;
		p->proto = p->ip4->protocol;
		p->l4_offset = sizeof(*p->eth) + sizeof(*p->ip4);
		return p->ip4->ihl == 5 && parse_l4(p, data, end);
	}
	p->ip4 = NULL;
	p->ip6 = (void *)(p->eth + 1);
	if (p->eth->h_proto != bpf_htons(ETH_P_IPV6) || (void *)(p->ip6 + 1) > end)
		return false;
	p->proto = p->ip6->nexthdr;
	p->l4_offset = sizeof(*p->eth) + sizeof(*p->ip6);
	return parse_l4(p, data, end);
}

static __always_inline bool same6(const __be32 *a, const __be32 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

/* Whether a packet belongs to a side. */
static __always_inline bool matches(const struct packet *p, const struct side *side)
{
	if ((side->reply ? p->l4->source : p->l4->dest) != side->port)
		return false;
	if (p->ip4)
		return (side->reply ? p->ip4->saddr : p->ip4->daddr) == side->addr[0];
	return same6(side->reply ? p->ip6->saddr.in6_u.u6_addr32 : p->ip6->daddr.in6_u.u6_addr32, side->addr);
}

/* Returns the side of a family. Hides from the compiler which object this is. Otherwise it would
 * use the zeroes that the object has at compile time instead of the values set at load. */
static __always_inline const struct side *side_of(const volatile struct side *sides, int family)
{
	const struct side *side = (const struct side *)&sides[family];

	asm volatile("" : "+r"(side));
	return side;
}

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Updates a checksum with a difference. */
static __always_inline void replace(__be16 *check, __u32 diff)
{
	__u32 sum = (__u16) ~*check + fold(diff);

	*check = ~fold(sum);
}

/* Writes everything but the checksum of TCP or UDP. */
static __always_inline void rewrite_headers(struct packet *p, const struct rewrite *to)
{
	if (p->ip4) {
		p->ip4->saddr = to->saddr[0];
		p->ip4->daddr = to->daddr[0];
		p->ip4->ttl--;
		/* The TTL was decremented. The checksum of an IP header is never left to a device. */
		replace(&p->ip4->check, (__u32)fold(to->addr_diff) + (__u16)~bpf_htons(0x0100));
	} else {
		__builtin_memcpy(&p->ip6->saddr, to->saddr, 16);
		__builtin_memcpy(&p->ip6->daddr, to->daddr, 16);
		p->ip6->hop_limit--;
	}
	if (to->sport)
		p->l4->source = to->sport;
	if (to->dport)
		p->l4->dest = to->dport;
	__builtin_memcpy(p->eth->h_dest, to->dmac, 6);
	__builtin_memcpy(p->eth->h_source, to->smac, 6);
}
