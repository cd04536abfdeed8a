/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the fast path. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/types.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "csum.h"
#include "dsr.h"
#include "dsr_encap.h"
#include "flow.h"
#include "flow_hash.h"
#include "packet.h"
#include "ranges.h"
#include "rewrite.h"
#include "route.h"
#include "seq.h"
#include "types.h"

/* The fast path, for what nearly all packets are: TCP or UDP without VLAN tags, options or extension
 * headers, unfragmented, of an established flow, where only the time has to be noted; or of a flow
 * that its backend answers directly, after its first packet. All of it is inline, because where the
 * processor has to guard returns against speculation a return costs as much as thirty instructions.
 * It writes the key as whole words, which is how the map's hash and the checksum read it, and the
 * offset and length of every header are compile-time constants.
 *
 * Any other packet is parsed again from its beginning (packet.h) and decided by decide.h; both ways
 * must have the same results. So the fast path writes nothing before it is certain that it can
 * handle the packet. */

/* Values below those that the programs' verdicts use. */
enum fastpath_outcome {
	FASTPATH_NOT = -2,     /* the packet takes the slow path */
	FASTPATH_UNKNOWN = -3, /* likewise, and `ct` has no row for its flow */
	FASTPATH_NEW = -4,     /* likewise, and neither has `ct_pending` */
};

enum {
	FASTPATH_L3 = sizeof(struct ethhdr),
	FASTPATH_IP4 = 0x45, /* version 4, without options */
};

/* The offsets of the header with the ports and of its checksum. From here on the verifier tracks
 * the second as a variable, and would not see that it depends on the protocol. */
struct fastpath {
	__u32 l4;
	__u32 check;
};

/* A compile-time constant. */
static __always_inline bool fastpath_is_v4(const struct fastpath *p)
{
	return p->l4 == FASTPATH_L3 + sizeof(struct iphdr);
}

static __always_inline __u8 fastpath_proto(const struct fastpath *p)
{
	return p->check == p->l4 + offsetof(struct tcphdr, check) ? IPPROTO_TCP : IPPROTO_UDP;
}

/* Excluded are packets without hops left, which are not forwarded; flags that begin or end a flow,
 * which have to be noted; and Geneve, which may contain another packet. The ports and the protocol
 * are the last word of the key. */
static __always_inline bool fastpath_read_l4(struct fastpath *p, struct flow *flow, void *data, void *end,
					     __u8 proto)
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

/* Writes an IPv4 address as a key has it, in the byte order that these programs are compiled
 * for. */
static __always_inline void fastpath_addr4(struct addr *addr, __be32 ip)
{
	__u64 words[2] = { 0, (__u64)ip << 32 | bpf_htonl(0xffff) };

	__builtin_memcpy(addr, words, sizeof(words));
}

static __always_inline bool fastpath_read4(struct fastpath *p, struct flow *flow, void *data, void *end)
{
	struct iphdr *ip = data + FASTPATH_L3;

	if ((void *)(ip + 1) > end || *(__u8 *)ip != FASTPATH_IP4 || ip->ttl <= 1 ||
	    ip->frag_off & bpf_htons(IP4_MORE | IP4_OFFSET))
		return false;
	p->l4 = FASTPATH_L3 + sizeof(*ip);
	fastpath_addr4(&flow->saddr, ip->saddr);
	fastpath_addr4(&flow->daddr, ip->daddr);
	return fastpath_read_l4(p, flow, data, end, ip->protocol);
}

/* An address with one half zero may be a mapped IPv4 address, which must not be on the wire, so it
 * takes the slow path. */
static __always_inline bool fastpath_read6(struct fastpath *p, struct flow *flow, void *data, void *end)
{
	struct ipv6hdr *ip = data + FASTPATH_L3;
	const __u64 *from = (void *)&ip->saddr;

	if ((void *)(ip + 1) > end || *(__u8 *)ip >> 4 != 6 || ip->hop_limit <= 1 || !from[0] || !from[2])
		return false;
	p->l4 = FASTPATH_L3 + sizeof(*ip);
	for (int i = 0; i < 4; i++)
		__builtin_memcpy((__u64 *)flow + i, from + i, sizeof(*from));
	return fastpath_read_l4(p, flow, data, end, ip->nexthdr);
}

/* The field behind the MAC addresses. */
static __always_inline __be16 fastpath_link(void *data)
{
	return *(__be16 *)(data + offsetof(struct ethhdr, h_proto));
}

/* Copies a row. What should leave and comes in takes the slow path, on which its source is asked for.
 * The barrier keeps the compiler from splitting the copy up and keeping the parts on
 * the stack a second time. */
static __always_inline bool fastpath_copy(const struct ct_entry *row, __u64 sum, struct ct_entry *to)
{
	bool is_whole = flow_copy(row, sum, to);

	asm volatile("" ::: "memory");
	return is_whole && flow_is(to, FLOW_COMES_IN) && !flow_leaves(to);
}

/* The part of the checksum's sum that comes from the key. It is computed before the lookup; otherwise
 * everything it is made of would have to stay on the stack, which is nearly full. */
static __always_inline __u64 fastpath_sum(const struct flow *flow)
{
	__u64 sum = flow_hash_sum(flow);

	asm volatile("" : "+r"(sum));
	return sum;
}

/* Marks a row as used. False, with nothing changed: more is due than that, because its route may
 * have changed, its RST was not accepted, or its client may no longer be allowed. The previous
 * `seen` is read only where it is needed. It may be the current tick by then: then another packet
 * has done what is due. */
static __always_inline bool fastpath_touch(const struct flow *flow, struct ct_entry *row, struct ct_entry *to)
{
	__u32 now = flow_now();

	if (to->state == CT_RESET)
		return false;
	if (to->seen == now)
		return true;
	to->seen = now;
	asm volatile("" ::: "memory");
	if (route_epoch_is_due(to, &row->seen) || (ranges_are_due(to, &row->seen) && !ranges_keep(flow, to)))
		return false;
	row->seen = to->seen;
	return true;
}

/* Notes how far a TCP packet has brought its direction, see seq.h. False: it is not where its
 * direction is, so it takes the slow path. The ports and the sequence number are in the bytes that
 * every packet on the fast path has. */
static __always_inline bool fastpath_follow(const struct fastpath *p, void *data, struct ct_entry *row)
{
	__u16 half, known;

	if (fastpath_proto(p) != IPPROTO_TCP)
		return true;
	half = bpf_ntohs(*(__be16 *)(data + p->l4 + offsetof(struct tcphdr, seq)));
	if (!half)
		half = 1; /* as in seq_high */
	known = row->seq_hi;
	if (half == known)
		return true;
	if (!known || !seq_is_near(half, known))
		return false;
	if (half != (__u16)(known - 1))
		row->seq_hi = half;
	return true;
}

/* Copies a row of `ct_pending` if its flow is answered by the backend directly and only the time has
 * to be noted. */
static __always_inline bool fastpath_is_dsr(const struct ct_entry *row, __u64 sum, struct ct_entry *to)
{
	return row->kind & FLOW_DSR && fastpath_copy(row, sum, to) && to->kind & FLOW_DSR && to->state == CT_OPEN;
}

/* The length of a packet according to its header; zero if the header does not tell. */
static __always_inline __u32 fastpath_len(const struct fastpath *p, void *data, void *end)
{
	if (data + p->l4 > end)
		return 0;
	if (fastpath_is_v4(p))
		return bpf_ntohs(((struct iphdr *)(data + FASTPATH_L3))->tot_len);
	return sizeof(struct ipv6hdr) + bpf_ntohs(((struct ipv6hdr *)(data + FASTPATH_L3))->payload_len);
}

/* Writes the encapsulation and the link header into the room in front of an unchanged packet.
 * Returns the change to the sum over the whole packet. */
static __always_inline __u64 fastpath_encap(const struct fastpath *p, const struct flow *flow, void *data,
					    const struct ct_entry *to, bool is_geneve)
{
	void *inner = data + dsr_encap_room(fastpath_is_v4(p), is_geneve ? FLOW_DSR_GENEVE : FLOW_DSR_IPIP),
	     *ip = data + FASTPATH_L3;
	__u64 diff = rewrite_hop_sum(fastpath_is_v4(p));

	rewrite_hop(inner + FASTPATH_L3, fastpath_is_v4(p));
	diff += fastpath_is_v4(p) ? dsr_encap_header4(ip, inner + FASTPATH_L3, to, is_geneve)
				  : dsr_encap_header6(ip, inner + FASTPATH_L3, to, is_geneve);
	asm volatile("" : "+r"(diff)); /* added up by now: the stack has no room for its parts */
	if (is_geneve)
		diff += dsr_encap_tunnel(data + p->l4, to, fastpath_is_v4(p), dsr_encap_port(flow_hash(flow)),
					 fastpath_len(p, inner, inner + p->l4));
	rewrite_hosts(data, to);
	((struct ethhdr *)data)->h_proto = fastpath_is_v4(p) ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	return diff;
}

/* Writes the option. Returns the same. */
static __always_inline __u16 fastpath_option(const struct fastpath *p, void *data, const struct flow *flow)
{
	return fastpath_is_v4(p) ? dsr_option_put4(data + FASTPATH_L3, flow)
				 : dsr_option_put6(data + FASTPATH_L3, flow);
}

/* Rewrites everything but the TCP or UDP checksum. */
static __always_inline void fastpath_rewrite(const struct fastpath *p, void *data, const struct ct_entry *to,
					     bool forward)
{
	rewrite_ports(data + p->l4, to);
	if (fastpath_is_v4(p))
		rewrite_ip4(data + FASTPATH_L3, to, forward);
	else
		rewrite_ip6(data + FASTPATH_L3, to, forward);
	if (forward)
		rewrite_hosts(data, to);
}

/* Returns the maps known to lack the packet's flow, an enum lacks, from the outcome of the short
 * way. Not static: so the verifier walks the slow path once, and not for each outcome. */
__noinline int fastpath_lacks(int outcome)
{
	if (outcome == FASTPATH_NEW)
		return LACKS_CT | LACKS_PENDING;
	return outcome == FASTPATH_UNKNOWN ? LACKS_CT : 0;
}

/* How tc sends packets of flows that their backend answers directly.
 * If a function returns false for lack of memory, the packet has been written in part. */

/* Reports whether the row's device accepts `len` bytes, or the packet's own length if that is zero,
 * and returns its MTU in `a`. */
static __always_inline bool fastpath_tc_takes(struct __sk_buff *skb, struct action *a, __u32 len)
{
	a->mtu = len;
	if (len && len <= DSR_ENCAP_EVERY_LINK && !skb->gso_size)
		return true;
	return bpf_check_mtu(skb, a->to.ifindex == skb->ifindex ? 0 : a->to.ifindex, &a->mtu, 0, 0) <= 0;
}

/* Reports whether the device accepts a packet with its encapsulation. Merged UDP packets take the
 * slow path, because their segments must not become smaller. */
static __always_inline bool fastpath_tc_fits(struct __sk_buff *skb, struct action *a,
					     const struct fastpath *offsets)
{
	__u32 len = fastpath_len(offsets, (void *)(long)skb->data, (void *)(long)skb->data_end);

	if (!len || (fastpath_proto(offsets) == IPPROTO_UDP && skb->gso_size))
		return false;
	return fastpath_tc_takes(skb, a, len + dsr_encap_room(fastpath_is_v4(offsets), flow_kind(&a->to)));
}

/* Encapsulates a packet for its backend. */
static __always_inline bool fastpath_tc_encap(struct __sk_buff *skb, const struct flow *flow,
					      const struct ct_entry *to, const struct fastpath *offsets,
					      bool is_geneve)
{
	__u32 room = dsr_encap_room(fastpath_is_v4(offsets), is_geneve ? FLOW_DSR_GENEVE : FLOW_DSR_IPIP);
	__u64 flags = dsr_encap_grow_flags(fastpath_is_v4(offsets), fastpath_proto(offsets), is_geneve), diff;
	void *data;

	if (!dsr_encap_grow_by(skb, room, flags, to->dport))
		return false;
	data = (void *)(long)skb->data;
	if (data + room + offsets->l4 > (void *)(long)skb->data_end)
		return false;
	diff = fastpath_encap(offsets, flow, data, to, is_geneve);
	if (!fastpath_is_v4(offsets) || is_geneve)
		bpf_csum_update(skb, csum_fold(diff));
	return true;
}

/* Sends a packet to its backend with what its client dialed in an option. */
static __always_inline bool fastpath_tc_option(struct __sk_buff *skb, const struct flow *flow,
					       const struct ct_entry *to, const struct fastpath *offsets)
{
	__u32 room = dsr_encap_room(fastpath_is_v4(offsets), FLOW_DSR_OPT);
	void *data = (void *)(long)skb->data;
	__u16 diff;

	if (data + offsets->check + sizeof(__u16) > (void *)(long)skb->data_end)
		return false;
	fastpath_rewrite(offsets, data, to, true);
	if (rewrite_skb_replace(skb, offsets->check, fastpath_proto(offsets), to) ||
	    !dsr_option_make_room(skb, room, fastpath_proto(offsets)))
		return false;
	data = (void *)(long)skb->data;
	if (data + room + offsets->l4 > (void *)(long)skb->data_end)
		return false;
	diff = fastpath_option(offsets, data, flow);
	if (!fastpath_is_v4(offsets)) {
		rewrite_skb_sum_ip6(skb, to, true);
		bpf_csum_update(skb, diff);
	}
	return true;
}

/* How XDP sends packets of flows that their backend answers directly.
 * If a function returns false for lack of headroom, the packet has been written in part. */

/* Reports whether the device that a packet came in by accepts `len` bytes, or the packet's own
 * length if that is zero. */
static __always_inline bool fastpath_xdp_takes(struct xdp_md *ctx, struct action *a, __u32 len)
{
	a->mtu = len;
	return (len && len <= DSR_ENCAP_EVERY_LINK) || bpf_check_mtu(ctx, 0, &a->mtu, 0, 0) <= 0;
}

/* Copies an even number of bytes to a place at least eight bytes earlier. */
static __always_inline void fastpath_xdp_copy(void *to, const void *from, __u32 len)
{
	__u32 at = 0;

	for (; at + 8 <= len; at += 8)
		*(__u64 *)(to + at) = *(__u64 *)(from + at);
	for (; at < len; at += 2)
		*(__u16 *)(to + at) = *(__u16 *)(from + at);
}

/* Encapsulates a packet for its backend. */
static __always_inline bool fastpath_xdp_encap(struct xdp_md *ctx, const struct flow *flow,
					       const struct ct_entry *to, const struct fastpath *offsets,
					       bool is_geneve)
{
	__u32 room = dsr_encap_room(fastpath_is_v4(offsets), is_geneve ? FLOW_DSR_GENEVE : FLOW_DSR_IPIP);
	void *data;

	if (bpf_xdp_adjust_head(ctx, -(int)room))
		return false;
	data = (void *)(long)ctx->data;
	if (data + room + offsets->l4 > (void *)(long)ctx->data_end)
		return false;
	fastpath_encap(offsets, flow, data, to, is_geneve);
	return true;
}

/* Sends a packet to its backend with what its client dialed in an option. */
static __always_inline bool fastpath_xdp_option(struct xdp_md *ctx, const struct flow *flow,
						const struct ct_entry *to, const struct fastpath *offsets)
{
	__u32 room = dsr_encap_room(fastpath_is_v4(offsets), FLOW_DSR_OPT);
	void *data = (void *)(long)ctx->data;

	if (data + offsets->check + sizeof(__u16) > (void *)(long)ctx->data_end)
		return false;
	fastpath_rewrite(offsets, data, to, true);
	rewrite_check(data + offsets->check, fastpath_proto(offsets), to);
	if (bpf_xdp_adjust_head(ctx, -(int)room))
		return false;
	data = (void *)(long)ctx->data;
	if (data + room + offsets->l4 > (void *)(long)ctx->data_end)
		return false;
	fastpath_xdp_copy(data, data + room, offsets->l4);
	fastpath_option(offsets, data, flow);
	return true;
}
