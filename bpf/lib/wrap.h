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

static __always_inline bool wrap_is_geneve(const struct action *a)
{
	return (a->to.flags & CT_DIRECT) >> DIRECT_SHIFT == DIRECT_GENEVE;
}

/* How many bytes are added. */
static __always_inline __u32 wrap_len(const struct packet *p, const struct action *a)
{
	if (option_is_mode(a))
		return option_len(p);
	return (p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) +
	       (wrap_is_geneve(a) ? sizeof(struct tunnel) : 0);
}

/* Writes what follows the outer header, for a packet of so many bytes. The port of the source tells flows apart for
 * whoever spreads them over links. */
static __always_inline bool wrap_tunnel(void *data, void *end, const struct packet *p, const struct action *a,
					__u32 len)
{
	__u32 base = p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct tunnel *t = packet_at(data, end, p->l3 + base, sizeof(*t));

	if (!t)
		return false;
	t->udp.source = bpf_htons(WRAP_SPORT | (__u16)(ct_hash(&p->flow) >> 48));
	t->udp.dest = bpf_htons(GENEVE_PORT);
	t->udp.len = bpf_htons(sizeof(*t) + len);
	t->udp.check = 0;
	t->geneve = (struct geneve) {
		.words = GENEVE_WORDS,
		.flags = GENEVE_CRITICAL,
		.proto = bpf_htons(GENEVE_ETHERNET),
		.class = bpf_htons(GENEVE_CLASS),
		.type = GENEVE_BACKEND,
		.len = 1,
		.port = a->to.dport,
	};
	__builtin_memcpy(t->eth.h_dest, a->to.dmac, ETH_ALEN);
	__builtin_memcpy(t->eth.h_source, a->to.smac, ETH_ALEN);
	t->eth.h_proto = p->is_v4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	return true;
}

static __always_inline bool wrap_ip4(void *data, void *end, const struct packet *p, const struct action *a)
{
	struct iphdr *inner = packet_at(data, end, p->l3 + wrap_len(p, a), sizeof(*inner));
	struct iphdr *ip = packet_at(data, end, p->l3, sizeof(*ip));

	if (!ip || !inner)
		return false;
	*ip = (struct iphdr) {
		.version = 4,
		.ihl = 5,
		.tos = inner->tos & WRAP_TOS,
		.tot_len = bpf_htons(bpf_ntohs(inner->tot_len) + wrap_len(p, a)),
		.id = a->to.dport,
		.frag_off = bpf_htons(IP4_DONT),
		.ttl = WRAP_TTL,
		.protocol = wrap_is_geneve(a) ? IPPROTO_UDP : IPPROTO_IPIP,
		.saddr = a->to.saddr.word[3],
		.daddr = a->to.daddr.word[3],
	};
	ip->check = ~csum_fold(csum_words(ip, sizeof(*ip) / 4));
	return !wrap_is_geneve(a) || wrap_tunnel(data, end, p, a, bpf_ntohs(inner->tot_len));
}

static __always_inline bool wrap_ip6(void *data, void *end, const struct packet *p, const struct action *a)
{
	struct ipv6hdr *inner = packet_at(data, end, p->l3 + wrap_len(p, a), sizeof(*inner));
	struct ipv6hdr *ip = packet_at(data, end, p->l3, sizeof(*ip));
	__u32 class, len;

	if (!ip || !inner)
		return false;
	class = bpf_ntohl(*(__be32 *)inner) & WRAP_TOS << 20;
	len = bpf_ntohs(inner->payload_len) + sizeof(*inner);
	*(__be32 *)ip = bpf_htonl(6 << 28 | class | WRAP_LABEL | bpf_ntohs(a->to.dport));
	ip->payload_len = bpf_htons(len + (wrap_is_geneve(a) ? sizeof(struct tunnel) : 0));
	ip->nexthdr = wrap_is_geneve(a) ? IPPROTO_UDP : IPPROTO_IPV6;
	ip->hop_limit = WRAP_TTL;
	__builtin_memcpy(&ip->saddr, &a->to.saddr, sizeof(struct addr));
	__builtin_memcpy(&ip->daddr, &a->to.daddr, sizeof(struct addr));
	return !wrap_is_geneve(a) || wrap_tunnel(data, end, p, a, len);
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
