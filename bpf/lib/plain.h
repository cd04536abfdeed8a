/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the short way of what nearly all packets are: TCP or UDP without tags, options or extension
 * headers, in one piece, of a flow that is established, of which nothing is to be noted but the time; or of one
 * that its backend answers itself, once its client has gone on. It is all
 * inline, since where a processor has to guard each return from a function one costs as much as thirty
 * instructions; it writes the key as whole words, which the hash of the map and the seal read; and where a header
 * is and how long is known when it is compiled.
 *
 * Whatever else a packet is, it is read again from its beginning (packet.h) and decided about (decide.h), and what
 * is done here has to be the same. So nothing is written before it is certain that the packet is one of these. */
#pragma once

#include "ranges.h"
#include "ways.h"
#include "wrap.h"

/* What is less is no verdict of any program. */
enum plain_outcome {
	PLAIN_NOT = -2,	    /* it takes the long way */
	PLAIN_UNKNOWN = -3, /* likewise, and `ct` has no row of its flow */
	PLAIN_NEW = -4,	    /* nor has `ct_half` */
};

enum {
	PLAIN_L3 = sizeof(struct ethhdr),
	PLAIN_IP4 = 0x45, /* version 4, and no options */
};

/* Where the header is that has the ports, and its sum: the verifier follows the second from here, and would not see
 * that it goes with the protocol. */
struct plain {
	__u32 l4;
	__u32 check;
};

/* Known when it is compiled. */
static __always_inline bool plain_is_v4(const struct plain *p)
{
	return p->l4 == PLAIN_L3 + sizeof(struct iphdr);
}

/* What has no hops left is not forwarded, a flag that begins or ends a flow is noted, and what comes by Geneve may
 * have another packet inside. The ports and the protocol are the last word of a key. */
static __always_inline bool plain_read_l4(struct plain *p, struct flow *flow, void *data, void *end, __u8 proto)
{
	void *l4 = data + p->l4;
	__u64 word;

	if (proto == IPPROTO_TCP) {
		if (l4 + sizeof(struct tcphdr) > end || ((__u8 *)l4)[13] & (TCP_SYN | TCP_FIN | TCP_RST))
			return false;
		p->check = p->l4 + offsetof(struct tcphdr, check);
	} else {
		if (proto != IPPROTO_UDP || l4 + sizeof(struct udphdr) > end ||
		    ((struct udphdr *)l4)->dest == bpf_htons(GENEVE_PORT))
			return false;
		p->check = p->l4 + offsetof(struct udphdr, check);
	}
	word = *(__u32 *)l4 | (__u64)proto << 32;
	__builtin_memcpy((__u64 *)flow + 4, &word, sizeof(word));
	return true;
}

/* An address of IPv4 as it is in a key, in the order of bytes that these programs are compiled for. */
static __always_inline void plain_addr4(struct addr *addr, __be32 ip)
{
	__u64 words[2] = { 0, (__u64)ip << 32 | bpf_htonl(0xffff) };

	__builtin_memcpy(addr, words, sizeof(words));
}

static __always_inline bool plain_read4(struct plain *p, struct flow *flow, void *data, void *end)
{
	struct iphdr *ip = data + PLAIN_L3;

	if ((void *)(ip + 1) > end || *(__u8 *)ip != PLAIN_IP4 || ip->ttl <= 1 ||
	    ip->frag_off & bpf_htons(IP4_MORE | IP4_OFFSET))
		return false;
	p->l4 = PLAIN_L3 + sizeof(*ip);
	plain_addr4(&flow->saddr, ip->saddr);
	plain_addr4(&flow->daddr, ip->daddr);
	return plain_read_l4(p, flow, data, end, ip->protocol);
}

/* Addresses of which one half is zero may be of IPv4, and those are on no wire. */
static __always_inline bool plain_read6(struct plain *p, struct flow *flow, void *data, void *end)
{
	struct ipv6hdr *ip = data + PLAIN_L3;
	const __u64 *from = (void *)&ip->saddr;

	if ((void *)(ip + 1) > end || *(__u8 *)ip >> 4 != 6 || ip->hop_limit <= 1 || !from[0] || !from[2])
		return false;
	p->l4 = PLAIN_L3 + sizeof(*ip);
	for (int i = 0; i < 4; i++)
		__builtin_memcpy((__u64 *)flow + i, from + i, sizeof(*from));
	return plain_read_l4(p, flow, data, end, ip->nexthdr);
}

/* What comes after the hardware addresses. */
static __always_inline __be16 plain_link(void *data)
{
	return *(__be16 *)(data + offsetof(struct ethhdr, h_proto));
}

/* Copies a row out, for good: a compiler that took the copy apart would keep the parts on the stack once more. */
static __always_inline bool plain_copy(const struct ct_entry *row, __u64 sum, struct ct_entry *to)
{
	bool is_whole = ct_copy(row, sum, to);

	asm volatile("" ::: "memory");
	return is_whole && ct_comes_in(to);
}

/* What the seal of a row adds to. It is made before the row is looked up, as all that it is made of would have to
 * be kept on the stack until then, where there is little room. */
static __always_inline __u64 plain_sum(const struct flow *flow)
{
	__u64 sum = ct_sum(flow);

	asm volatile("" : "+r"(sum));
	return sum;
}

/* Notes that a row is used. False: it is due more than that, since its way may be another, its reset was not heeded
 * or its client may not have it any more, and nothing is noted. When it was used before is read where it is needed,
 * and may be now: then another packet has done what is due. */
static __always_inline bool plain_touch(const struct flow *flow, struct ct_entry *row, struct ct_entry *to)
{
	__u32 now = ct_now();

	if (to->state == CT_RESET)
		return false;
	if (to->seen == now)
		return true;
	to->seen = now;
	asm volatile("" ::: "memory");
	if (ways_are_due(to, &row->seen) || (ranges_are_due(to, &row->seen) && !ranges_keep(flow, to)))
		return false;
	row->seen = to->seen;
	return true;
}

/* Whether a row of `ct_half` is of a flow that its backend answers itself, and of which nothing is to be noted but
 * the time. It is copied out then. */
static __always_inline bool plain_is_direct(const struct ct_entry *row, __u64 sum, struct ct_entry *to)
{
	return row->flags & CT_DIRECT && plain_copy(row, sum, to) && to->flags & CT_DIRECT && to->state == CT_OPEN;
}

/* The length of a packet as its header has it; zero if that does not say. */
static __always_inline __u32 plain_len(const struct plain *p, void *data, void *end)
{
	if (data + p->l4 > end)
		return 0;
	if (plain_is_v4(p))
		return bpf_ntohs(((struct iphdr *)(data + PLAIN_L3))->tot_len);
	return sizeof(struct ipv6hdr) + bpf_ntohs(((struct ipv6hdr *)(data + PLAIN_L3))->payload_len);
}

static __always_inline void plain_hop(const struct plain *p, void *data)
{
	struct iphdr *ip = data + PLAIN_L3;

	if (!plain_is_v4(p)) {
		((struct ipv6hdr *)ip)->hop_limit--;
		return;
	}
	ip->ttl--;
	ip->check = csum_change(ip->check, (__u16)~bpf_htons(0x100));
}

/* Writes what is around a packet, and the header of the link. There is room, and the packet behind it is as it
 * came. Returns what that adds to the sum over the whole of it. */
static __always_inline __u64 plain_wrap(const struct plain *p, const struct flow *flow, void *data,
					const struct ct_entry *to, bool is_geneve)
{
	void *inner = data + wrap_room(plain_is_v4(p), is_geneve ? DIRECT_GENEVE : DIRECT_IPIP),
	     *ip = data + PLAIN_L3;
	__u64 diff = plain_is_v4(p) ? 0 : (__u16)~bpf_htons(1);

	plain_hop(p, inner);
	diff += plain_is_v4(p) ? wrap_header4(ip, inner + PLAIN_L3, to, is_geneve)
			       : wrap_header6(ip, inner + PLAIN_L3, to, is_geneve);
	if (is_geneve)
		diff += wrap_tunnel(data + p->l4, to, plain_is_v4(p), wrap_number(ct_hash(flow)),
				    plain_len(p, inner, inner + p->l4));
	rewrite_hosts(data, to);
	((struct ethhdr *)data)->h_proto = plain_is_v4(p) ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	return diff;
}

/* Writes the option. Returns the same. */
static __always_inline __u16 plain_mark(const struct plain *p, void *data, const struct flow *flow)
{
	return plain_is_v4(p) ? option_put4(data + PLAIN_L3, flow) : option_put6(data + PLAIN_L3, flow);
}

/* Writes all but the sum of TCP or UDP. */
static __always_inline void plain_rewrite(const struct plain *p, void *data, const struct ct_entry *to,
					  bool forward)
{
	rewrite_ports(data + p->l4, to);
	if (plain_is_v4(p))
		rewrite_ip4(data + PLAIN_L3, to, forward);
	else
		rewrite_ip6(data + PLAIN_L3, to, forward);
	if (forward)
		rewrite_hosts(data, to);
}

static __always_inline __u8 plain_proto(const struct plain *p)
{
	return p->check == p->l4 + offsetof(struct tcphdr, check) ? IPPROTO_TCP : IPPROTO_UDP;
}

/* What is known to lack rows of a packet's flow, by its outcome. Not static: the verifier then walks the long way
 * once, and not for each outcome. */
__noinline int plain_lacks(int outcome)
{
	if (outcome == PLAIN_NEW)
		return LACKS_CT | LACKS_HALF;
	return outcome == PLAIN_UNKNOWN ? LACKS_CT : 0;
}
