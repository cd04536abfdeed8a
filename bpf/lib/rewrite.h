/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the writing of headers, which is the same in tc and XDP, unlike that of TCP
 * and UDP checksums. */
#pragma once

#include "crc32c.h"
#include "decide.h"

static __always_inline __u32 rewrite_check_offset(const struct packet *p)
{
	return p->flow.proto == IPPROTO_TCP ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check);
}

/* Changes an SCTP checksum, which covers the ports but no address. Zero means that there is none,
 * because a device has yet to compute it, or at all (RFC 9653), and stays. A packet whose length
 * says that it ends within its header has none either. */
static __always_inline bool rewrite_sctp(void *data, void *end, const struct packet *p, __be16 sport, __be16 dport)
{
	struct sctp *sctp = packet_at(data, end, p->l4, sizeof(*sctp));
	__u32 stop = packet_end(data, end, p), diff;

	if (!sctp)
		return false;
	diff = (p->flow.sport ^ sport) | (__u32)(p->flow.dport ^ dport) << 16;
	if (diff && sctp->check && stop >= p->l4 + sizeof(*sctp))
		sctp->check ^= crc32c_change(diff, stop - p->l4);
	return true;
}

static __always_inline void rewrite_ip4(struct iphdr *ip, const struct ct_entry *to, bool forward)
{
	__u32 diff = to->addr_diff;

	if (forward) {
		ip->ttl--;
		diff += (__u16)~bpf_htons(0x100);
	}
	ip->saddr = to->saddr.word[3];
	ip->daddr = to->daddr.word[3];
	ip->check = csum_change(ip->check, diff);
}

/* Both structs have the two addresses next to each other. */
static __always_inline void rewrite_ip6(struct ipv6hdr *ip, const struct ct_entry *to, bool forward)
{
	const __u64 *from = (const __u64 *)&to->saddr;
	__u64 *addrs = (void *)&ip->saddr;

	if (forward)
		ip->hop_limit--;
	for (int i = 0; i < 4; i++)
		addrs[i] = from[i];
}

/* As both have the two ports. */
static __always_inline void rewrite_ports(void *l4, const struct ct_entry *to)
{
	*(__u32 *)l4 = *(const __u32 *)&to->sport;
}

/* And the two MAC addresses. */
static __always_inline void rewrite_hosts(void *eth, const struct ct_entry *to)
{
	const __u32 *from = (const __u32 *)to->dmac;
	__u32 *hosts = eth;

	for (int i = 0; i < 3; i++)
		hosts[i] = from[i];
}

/* Changes a complete TCP or UDP checksum. Zero means that a UDP packet has none, and stays; so a
 * result of zero is written as 0xffff. */
static __always_inline void rewrite_check(__u16 *check, __u8 proto, const struct ct_entry *to)
{
	__u16 sum = *check;

	if (proto == IPPROTO_UDP && !sum)
		return;
	sum = csum_change(sum, (__u32)to->addr_diff + to->port_diff);
	*check = proto == IPPROTO_UDP && !sum ? 0xffff : sum;
}

/* Writes the MAC addresses of the next link. */
static __always_inline bool rewrite_link(void *data, void *end, const struct action *a)
{
	if (data + sizeof(struct ethhdr) > end)
		return false;
	rewrite_hosts(data, &a->to);
	return true;
}

static __always_inline bool rewrite_ip(void *data, void *end, const struct packet *p, const struct action *a,
				       bool forward)
{
	void *ip = data + p->l3;

	if (p->is_v4) {
		if (ip + sizeof(struct iphdr) > end)
			return false;
		rewrite_ip4(ip, &a->to, forward);
		return true;
	}
	if (ip + sizeof(struct ipv6hdr) > end)
		return false;
	rewrite_ip6(ip, &a->to, forward);
	return true;
}

static __always_inline bool rewrite_hops(void *data, void *end, const struct packet *p)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	if (p->is_v4) {
		ip = packet_at(data, end, p->l3, sizeof(*ip));
		if (!ip)
			return false;
		ip->ttl--;
		ip->check = csum_change(ip->check, (__u16)~bpf_htons(0x100));
		return true;
	}
	ip6 = packet_at(data, end, p->l3, sizeof(*ip6));
	if (!ip6)
		return false;
	ip6->hop_limit--;
	return true;
}

/* Writes the addresses of a fragment, which has no ports. */
static __noinline int rewrite_fragment(void *data, void *end, const struct packet *p, const struct action *a)
{
	return p->l3 <= PACKET_L4_MOST && rewrite_ip(data, end, p, a, false);
}

/* Writes everything except the TCP or UDP checksum. With `forward`, the packet leaves here as a
 * router sends it. False: the packet is not what was parsed before, which cannot happen. */
static __always_inline bool rewrite_headers(void *data, void *end, const struct packet *p, const struct action *a,
					    bool forward)
{
	void *l4 = data + p->l4;

	if (p->l3 > PACKET_L4_MOST || p->l4 > PACKET_L4_MOST || l4 + sizeof(struct udphdr) > end)
		return false;
	rewrite_ports(l4, &a->to);
	return rewrite_ip(data, end, p, a, forward) && (!forward || rewrite_link(data, end, a));
}
