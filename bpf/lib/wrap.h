/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what is put around a packet that a backend on another node is to answer itself. The packet
 * stays what the client sent, less a hop; around it there is an IP header from this node to the backend, so
 * whatever carries packets to the backend carries this one too, and no node has to know which one the backend is
 * on.
 *
 * With IP in IP the backend's port is in the number by which fragments of IPv4 would be told apart, of which there
 * are none, or in the flow label of IPv6. A device that cuts up a merged packet counts the number on from one piece
 * to the next; the first one has it right, and for those that follow the flow is known where they arrive. With
 * Geneve it is in an option. The sum of UDP is left out there, in IPv6 too (RFC 6935): what is inside has its own,
 * and who reads the rest believes nothing that it does not know from elsewhere. */
#pragma once

#include "option.h"
#include "rewrite.h"

enum {
	WRAP_TTL = 64,
	WRAP_TOS = 0xfc,      /* what is copied: congestion is noted inside alone */
	WRAP_LABEL = 0x10000, /* so that a port does not look like no label */
	WRAP_SPORT = 0xc000,
};

/* No link between nodes takes less, though IPv4 would allow it (68, RFC 791), so none is asked about that. */
#define WRAP_EVERY_LINK 576

static __always_inline enum direct wrap_mode(const struct ct_entry *to)
{
	return (to->flags & CT_DIRECT) >> DIRECT_SHIFT;
}

static __always_inline bool wrap_is_geneve(const struct action *a)
{
	return wrap_mode(&a->to) == DIRECT_GENEVE;
}

/* How many bytes are added to a packet of either family. */
static __always_inline __u32 wrap_room(bool is_v4, enum direct mode)
{
	if (mode == DIRECT_OPT)
		return is_v4 ? sizeof(struct option4) : sizeof(struct option6);
	return (is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) +
	       (mode == DIRECT_GENEVE ? sizeof(struct tunnel) : 0);
}

static __always_inline __u32 wrap_len(const struct packet *p, const struct action *a)
{
	return wrap_room(p->is_v4, wrap_mode(&a->to));
}

/* Writes what follows the outer header, for a packet of so many bytes, and returns the sum over it. A number of the
 * flow's tells flows apart for whoever spreads them over links. All of it is written by words, as headers are here
 * that lie where they lie. */
static __always_inline __u64 wrap_tunnel(void *at, const struct ct_entry *to, bool is_v4, __u16 number, __u32 len)
{
	const __u32 *hosts = (const __u32 *)to->dmac;
	__u32 word[] = {
		bpf_htons(WRAP_SPORT | number) | (__u32)bpf_htons(GENEVE_PORT) << 16,
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

/* Writes the outer header, by words as well, in the order of bytes that these programs are compiled for. Returns
 * what it adds to the sum over a whole packet: nothing, since its own sum makes up for it. */
static __always_inline __u64 wrap_header4(struct iphdr *ip, const struct iphdr *inner, const struct ct_entry *to,
					  bool is_geneve)
{
	__u16 len = bpf_ntohs(inner->tot_len) + sizeof(*ip) + (is_geneve ? sizeof(struct tunnel) : 0);
	__u32 word[] = {
		0x45 | (inner->tos & WRAP_TOS) << 8 | (__u32)bpf_htons(len) << 16,
		to->dport | (__u32)bpf_htons(IP4_DONT) << 16,
		WRAP_TTL | (is_geneve ? IPPROTO_UDP : IPPROTO_IPIP) << 8,
		to->saddr.word[3],
		to->daddr.word[3],
	};

	word[2] |= (__u32)(__u16)~csum_fold((__u64)word[0] + word[1] + word[2] + word[3] + word[4]) << 16;
	for (int i = 0; i < 5; i++)
		((__u32 *)ip)[i] = word[i];
	return 0;
}

static __always_inline __u64 wrap_header6(struct ipv6hdr *ip, const struct ipv6hdr *inner,
					  const struct ct_entry *to, bool is_geneve)
{
	__u32 class = bpf_ntohl(*(__be32 *)inner) & WRAP_TOS << 20;
	__u16 len = bpf_ntohs(inner->payload_len) + sizeof(*inner) + (is_geneve ? sizeof(struct tunnel) : 0);
	const __u64 *from = (const __u64 *)&to->saddr;
	__u64 *addrs = (void *)&ip->saddr;
	__u32 word[] = {
		bpf_htonl(6 << 28 | class | WRAP_LABEL | bpf_ntohs(to->dport)),
		bpf_htons(len) | (is_geneve ? IPPROTO_UDP : IPPROTO_IPV6) << 16 | WRAP_TTL << 24,
	};

	((__u32 *)ip)[0] = word[0];
	((__u32 *)ip)[1] = word[1];
	for (int i = 0; i < 4; i++)
		addrs[i] = from[i];
	return (__u64)word[0] + word[1] + csum_words(&to->saddr, 2 * sizeof(struct addr) / 4);
}

static __always_inline __u16 wrap_number(__u64 hash)
{
	return hash >> 48;
}

static __always_inline bool wrap_ip4(void *data, void *end, const struct packet *p, const struct action *a)
{
	struct iphdr *inner = packet_at(data, end, p->l3 + wrap_len(p, a), sizeof(*inner));
	struct iphdr *ip = packet_at(data, end, p->l3, sizeof(*ip));
	void *tunnel;

	if (!ip || !inner)
		return false;
	wrap_header4(ip, inner, &a->to, wrap_is_geneve(a));
	if (!wrap_is_geneve(a))
		return true;
	tunnel = packet_at(data, end, p->l3 + sizeof(*ip), sizeof(struct tunnel));
	if (tunnel)
		wrap_tunnel(tunnel, &a->to, true, wrap_number(ct_hash(&p->flow)), bpf_ntohs(inner->tot_len));
	return tunnel;
}

static __always_inline bool wrap_ip6(void *data, void *end, const struct packet *p, const struct action *a)
{
	struct ipv6hdr *inner = packet_at(data, end, p->l3 + wrap_len(p, a), sizeof(*inner));
	struct ipv6hdr *ip = packet_at(data, end, p->l3, sizeof(*ip));
	void *tunnel;

	if (!ip || !inner)
		return false;
	wrap_header6(ip, inner, &a->to, wrap_is_geneve(a));
	if (!wrap_is_geneve(a))
		return true;
	tunnel = packet_at(data, end, p->l3 + sizeof(*ip), sizeof(struct tunnel));
	if (tunnel)
		wrap_tunnel(tunnel, &a->to, false, wrap_number(ct_hash(&p->flow)),
			    bpf_ntohs(inner->payload_len) + sizeof(*inner));
	return tunnel;
}

/* Writes what is around a packet, once there is room, and the header of the link. */
static __noinline int wrap_write(void *data, void *end, const struct packet *p, const struct action *a)
{
	if (p->is_v4 ? !wrap_ip4(data, end, p, a) : !wrap_ip6(data, end, p, a))
		return false;
	return rewrite_link(data, end, a);
}

/* What that adds to the sum over a whole packet. A header of IPv4 has a sum that makes up for it. */
static __always_inline __u16 wrap_sum(void *data, void *end, const struct packet *p, const struct action *a)
{
	__u32 base = p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct ipv6hdr *ip = packet_at(data, end, p->l3, sizeof(*ip));
	struct tunnel *t = packet_at(data, end, p->l3 + base, sizeof(*t));
	__u64 sum = 0;

	if (!p->is_v4 && ip)
		sum += csum_words(ip, sizeof(*ip) / 4);
	if (wrap_is_geneve(a) && t)
		sum += csum_words(t, sizeof(*t) / 4) + t->eth.h_proto;
	return csum_fold(sum);
}

/* The length of a packet with that, and without the header of its link; zero if it is not as it was read. A merged
 * one of more than 64 KiB does not say. */
static __always_inline __u32 wrap_mtu(void *data, void *end, const struct packet *p, const struct action *a)
{
	__u32 stop = packet_end(data, end, p);

	return stop > p->l3 ? stop - p->l3 + wrap_len(p, a) : 0;
}

/* Says that a packet is too big for the way to the backend, and how much a client may send. */
static __always_inline int wrap_refuse(const struct packet *p, struct action *a)
{
	a->mtu -= wrap_len(p, a);
	a->answer = ANSWER_TOO_BIG;
	return action_drop(a, REASON_TOO_BIG);
}

/* Has a packet that comes in again be taken for the first of its flow then too, if it is. */
static __noinline int direct_again(const struct packet *p, const struct action *a)
{
	struct flow key = p->flow; /* as in ct_known */
	struct ct_entry *row = a->is_first ? bpf_map_lookup_elem(&ct_half, &key) : NULL;

	if (row && row->flags & CT_DIRECT)
		row->state = CT_ANSWERED;
	return 0;
}
