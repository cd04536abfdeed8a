/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the encapsulation of packets that a backend on another node is to answer
 * directly. The packet itself stays as the client sent it, less one hop. Around it is an IP header
 * from this node to the backend, so whatever routes packets to the backend routes this one as well,
 * and no node has to know on which node the backend is.
 *
 * With IP in IP, the backend's port is in the IPv4 identification, which unfragmented packets do
 * not use, or in the IPv6 flow label. A device that segments a merged packet increments the
 * identification with each segment. The first one has the right port, and for the others the
 * receiver knows the flow already. With Geneve, the port is in an option. The UDP checksum of
 * Geneve is zero, in IPv6 too (RFC 6935): the inner packet has its own checksum, and the receiver
 * trusts nothing else that it cannot check. */
#pragma once

#include "dsr_option.h"
#include "rewrite.h"

enum {
	DSR_ENCAP_TTL = 64,
	DSR_ENCAP_TOS = 0xfc,	   /* the bits that are copied: ECN is kept in the inner packet only */
	DSR_ENCAP_LABEL = 0x10000, /* so that port 0 differs from no label */
};

/* No link between nodes has a smaller MTU, although IPv4 would allow it (68, RFC 791), so packets
 * up to this length need no check. */
#define DSR_ENCAP_EVERY_LINK 576

static __always_inline enum dsr_mode dsr_encap_mode(const struct ct_entry *to)
{
	return (to->flags & CT_DSR) >> DSR_SHIFT;
}

static __always_inline bool dsr_encap_is_geneve(const struct action *a)
{
	return dsr_encap_mode(&a->to) == DSR_GENEVE;
}

/* The number of bytes added to a packet of either family. */
static __always_inline __u32 dsr_encap_room(bool is_v4, enum dsr_mode mode)
{
	if (mode == DSR_OPT)
		return is_v4 ? sizeof(struct option4) : sizeof(struct option6);
	return (is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) +
	       (mode == DSR_GENEVE ? sizeof(struct tunnel) : 0);
}

static __always_inline __u32 dsr_encap_len(const struct packet *p, const struct action *a)
{
	return dsr_encap_room(p->is_v4, dsr_encap_mode(&a->to));
}

/* Writes what follows the outer IP header, for a packet of `len` bytes, and returns the sum over
 * it. The source port has a number that depends on the flow, so that devices that balance packets
 * over links keep flows apart. All is written in whole words, since nothing is known about the
 * alignment of headers. */
static __always_inline __u64 dsr_encap_tunnel(void *at, const struct ct_entry *to, bool is_v4, __u16 number,
					      __u32 len)
{
	const __u32 *hosts = (const __u32 *)to->dmac;
	__u32 word[] = {
		bpf_htons(GENEVE_FIRST_SOURCE + number % (GENEVE_LAST_SOURCE - GENEVE_FIRST_SOURCE + 1)) |
			(__u32)bpf_htons(GENEVE_PORT) << 16,
		bpf_htons(sizeof(struct tunnel) + len),
		GENEVE_WORDS | GENEVE_CRITICAL << 8 | (__u32)bpf_htons(GENEVE_ETHERNET) << 16,
		0,
		bpf_htons(GENEVE_CLASS) | GENEVE_BACKEND << 16 | 1 << 24,
		to->dport,
		hosts[0],
		hosts[1],
		hosts[2],
	};
	__u16 proto = is_v4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	__u64 sum = proto;

	for (int i = 0; i < 9; i++) {
		((__u32 *)at)[i] = word[i];
		sum += word[i];
	}
	*(__u16 *)(at + sizeof(word)) = proto;
	return sum;
}

/* Writes the outer header, in words as well, in the byte order that these programs are compiled
 * for. Returns the change to the sum over the whole packet: zero, because the header's checksum
 * compensates. */
static __always_inline __u64 dsr_encap_header4(struct iphdr *ip, const struct iphdr *inner,
					       const struct ct_entry *to, bool is_geneve)
{
	__u16 len = bpf_ntohs(inner->tot_len) + sizeof(*ip) + (is_geneve ? sizeof(struct tunnel) : 0);
	__u32 word[] = {
		0x45 | (inner->tos & DSR_ENCAP_TOS) << 8 | (__u32)bpf_htons(len) << 16,
		to->dport | (__u32)bpf_htons(IP4_DONT) << 16,
		DSR_ENCAP_TTL | (is_geneve ? IPPROTO_UDP : IPPROTO_IPIP) << 8,
		to->saddr.word[3],
		to->daddr.word[3],
	};

	word[2] |= (__u32)(__u16)~csum_fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]) << 16;
	for (int i = 0; i < 5; i++)
		((__u32 *)ip)[i] = word[i];
	return 0;
}

static __always_inline __u64 dsr_encap_header6(struct ipv6hdr *ip, const struct ipv6hdr *inner,
					       const struct ct_entry *to, bool is_geneve)
{
	__u32 class = bpf_ntohl(*(__be32 *)inner) & DSR_ENCAP_TOS << 20;
	__u16 len = bpf_ntohs(inner->payload_len) + sizeof(*inner) + (is_geneve ? sizeof(struct tunnel) : 0);
	const __u64 *from = (const __u64 *)&to->saddr;
	__u64 *addrs = (void *)&ip->saddr;
	__u32 word[] = {
		bpf_htonl(6 << 28 | class | DSR_ENCAP_LABEL | bpf_ntohs(to->dport)),
		bpf_htons(len) | (is_geneve ? IPPROTO_UDP : IPPROTO_IPV6) << 16 | DSR_ENCAP_TTL << 24,
	};

	((__u32 *)ip)[0] = word[0];
	((__u32 *)ip)[1] = word[1];
	for (int i = 0; i < 4; i++)
		addrs[i] = from[i];
	return (__u64)word[0] + word[1] + csum_words(&to->saddr, 2 * sizeof(struct addr) / 4);
}

static __always_inline __u16 dsr_encap_port(__u64 hash)
{
	return hash >> 48;
}

static __always_inline bool dsr_encap_ip4(void *data, void *end, const struct packet *p, const struct action *a)
{
	struct iphdr *inner = packet_at(data, end, p->l3 + dsr_encap_len(p, a), sizeof(*inner));
	struct iphdr *ip = packet_at(data, end, p->l3, sizeof(*ip));
	void *tunnel;

	if (!ip || !inner)
		return false;
	dsr_encap_header4(ip, inner, &a->to, dsr_encap_is_geneve(a));
	if (!dsr_encap_is_geneve(a))
		return true;
	tunnel = packet_at(data, end, p->l3 + sizeof(*ip), sizeof(struct tunnel));
	if (tunnel)
		dsr_encap_tunnel(tunnel, &a->to, true, dsr_encap_port(ct_hash(&p->flow)),
				 bpf_ntohs(inner->tot_len));
	return tunnel;
}

static __always_inline bool dsr_encap_ip6(void *data, void *end, const struct packet *p, const struct action *a)
{
	struct ipv6hdr *inner = packet_at(data, end, p->l3 + dsr_encap_len(p, a), sizeof(*inner));
	struct ipv6hdr *ip = packet_at(data, end, p->l3, sizeof(*ip));
	void *tunnel;

	if (!ip || !inner)
		return false;
	dsr_encap_header6(ip, inner, &a->to, dsr_encap_is_geneve(a));
	if (!dsr_encap_is_geneve(a))
		return true;
	tunnel = packet_at(data, end, p->l3 + sizeof(*ip), sizeof(struct tunnel));
	if (tunnel)
		dsr_encap_tunnel(tunnel, &a->to, false, dsr_encap_port(ct_hash(&p->flow)),
				 bpf_ntohs(inner->payload_len) + sizeof(*inner));
	return tunnel;
}

/* Writes the encapsulation and the link header, once there is room for them. */
static __noinline int dsr_encap_write(void *data, void *end, const struct packet *p, const struct action *a)
{
	if (p->is_v4 ? !dsr_encap_ip4(data, end, p, a) : !dsr_encap_ip6(data, end, p, a))
		return false;
	return rewrite_link(data, end, a);
}

/* The change to the sum over the whole packet. An IPv4 header's checksum compensates for the
 * header. */
static __always_inline __u16 dsr_encap_sum(void *data, void *end, const struct packet *p, const struct action *a)
{
	__u32 base = p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct ipv6hdr *ip = packet_at(data, end, p->l3, sizeof(*ip));
	struct tunnel *t = packet_at(data, end, p->l3 + base, sizeof(*t));
	__u64 sum = 0;

	if (!p->is_v4 && ip)
		sum += csum_words(ip, sizeof(*ip) / 4);
	if (dsr_encap_is_geneve(a) && t)
		sum += csum_words(t, sizeof(*t) / 4) + t->eth.h_proto;
	return csum_fold(sum);
}

/* The length of a packet with its encapsulation but without the link header; zero if the packet is
 * not what was parsed before. A merged packet of more than 64 KiB does not tell its length. */
static __always_inline __u32 dsr_encap_mtu(void *data, void *end, const struct packet *p, const struct action *a)
{
	__u32 stop = packet_end(data, end, p);

	return stop > p->l3 ? stop - p->l3 + dsr_encap_len(p, a) : 0;
}

/* Drops a packet that is too big for the route to the backend, and tells the client how much it may
 * send. */
static __always_inline int dsr_encap_refuse(const struct packet *p, struct action *a)
{
	a->mtu -= dsr_encap_len(p, a);
	a->reject = REJECT_TOO_BIG;
	return action_drop(a, REASON_TOO_BIG);
}

/* Lets a packet that comes in once more be recognized as the first of its flow again. */
static __noinline int dsr_begin_again(const struct packet *p, const struct action *a)
{
	struct flow key = p->flow; /* as in ct_known */
	struct ct_entry *row = a->is_first ? bpf_map_lookup_elem(&ct_pending, &key) : NULL;

	if (row && row->flags & CT_DSR)
		row->state = CT_ANSWERED;
	return 0;
}
