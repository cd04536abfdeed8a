/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how the node in front forwards packets in direct server return. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "csum.h"
#include "dsr.h"
#include "flow.h"
#include "flow_hash.h"
#include "maps.h"
#include "packet.h"
#include "ranges.h"
#include "rewrite.h"
#include "route.h"
#include "seq.h"
#include "types.h"

/* The option that tells the backend's node what the client dialed, in direct server return without
 * encapsulation. The packet is sent to the backend, from the client, with one more IPv4 option or
 * IPv6 destination options header. It comes first, right behind the fixed part of the header, so
 * that it can be removed without a search and the client's own options stay behind it.
 *
 * Every packet has the option, and every fragment. A packet without ports, such as an ICMP error, has
 * none in the option either. */

_Static_assert(sizeof(struct option4) == 8 && sizeof(struct option6) == 24,
	       "what is put into packets has no padding");

/* Reports whether the option fits into a packet. */
static __always_inline bool dsr_option_fits(void *data, void *end, const struct packet *p)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	if (p->is_v4) {
		ip = packet_at(data, end, p->l3, sizeof(*ip));
		return ip && ip->ihl * 4 + sizeof(struct option4) <= OPTION4_HEADER;
	}
	ip6 = packet_at(data, end, p->l3, sizeof(*ip6));
	return ip6 && ip6->nexthdr != IPPROTO_HOPOPTS;
}

/* Returns a length field increased by `more`. It is zero in a merged packet of more than 64 KiB. */
static __always_inline __be16 dsr_option_length(__be16 before, __u32 more)
{
	__u32 len = bpf_ntohs(before) + more;

	return before && len <= 0xffff ? bpf_htons(len) : 0;
}

/* Writes the option into the room behind the fixed part of the header. Returns the change to the
 * sum over the whole packet: zero for IPv4, where the header's checksum compensates. */
static __always_inline __u16 dsr_option_put4(struct iphdr *ip, const struct flow *flow)
{
	struct option4 *option = (void *)(ip + 1);
	__u32 before = *(__u32 *)ip;

	*option = (struct option4) {
		.type = OPTION4,
		.len = sizeof(*option),
		.port = flow->dport,
		.addr = flow->daddr.word[3],
	};
	ip->ihl += sizeof(*option) / 4;
	ip->tot_len = dsr_option_length(ip->tot_len, sizeof(*option));
	ip->check =
		csum_change(ip->check, csum_dsr_option(before, *(__u32 *)ip) + csum_fold(csum_words(option, 2)));
	return 0;
}

static __always_inline __u16 dsr_option_put6(struct ipv6hdr *ip, const struct flow *flow)
{
	struct option6 *option = (void *)(ip + 1);
	__u32 before = *((__u32 *)ip + 1);

	*option = (struct option6) {
		.next = ip->nexthdr,
		.words = sizeof(*option) / 8 - 1,
		.pad = OPTION6_PADDING,
		.type = OPTION6,
		.len = sizeof(option->port) + sizeof(option->addr),
		.port = flow->dport,
		.addr = flow->daddr,
	};
	ip->nexthdr = IPPROTO_DSTOPTS;
	ip->payload_len = dsr_option_length(ip->payload_len, sizeof(*option));
	return csum_fold((__u64)csum_dsr_option(before, *((__u32 *)ip + 1)) +
			 csum_words(option, sizeof(*option) / 4));
}

/* Flows to backends on other nodes that reply to their clients themselves: direct server return. The
 * node that forwards such a flow never sees a reply, so there is one row and no proof that the
 * client exists: the row stays in `ct_pending`. If it is evicted, the next packet chooses again,
 * from the same tables and by the same hash; so does another node that the network routes the flow
 * to. Every packet says what the client dialed, so the backend's node need not have seen an earlier
 * one. See dsr_ingress.h for the backend's node. Nearly all
 * packets take the fast path, see fastpath.h. */

/* Looks the route of a flow up again. */
static __noinline int dsr_refresh(void *ctx, const struct packet *p, struct action *a)
{
	if (!route_epoch_refresh(ctx, p, &a->to))
		return 0;
	return bpf_map_update_elem(&ct_pending, &p->flow, &a->to, BPF_EXIST);
}

/* Drops a packet whose client is no longer in the source ranges, and ends its flow; true if it did.
 * A packet that may begin a flow is judged each time. */
static __always_inline bool dsr_cut_off(const struct packet *p, struct action *a, __u32 now)
{
	__u32 seen = a->to.seen;

	if (p->is_forwarded || packet_is_syn(p) || a->to.state < CT_OPEN)
		return ranges_enforce(p, a);
	a->to.seen = now;
	return seen != now && ranges_enforce_again(p, a, &seen);
}

/* The state of the client after a packet. One that seems forged changes nothing, see seq.h. This node
 * has no acknowledgments to compare: if the network has led the flow past it for a while, the end is
 * not recognized, and the row lives as long as that of an idle connection. */
static __always_inline __u8 dsr_state(const struct packet *p, struct ct_entry *row, struct ct_entry *to)
{
	return packet_is_syn(p) || seq_fits(p, row, to) ? dsr_client_state(p, to->state) : to->state;
}

/* Decides by the row of such a flow. False: the flow has ended, or another node forwarded this
 * packet: that node has chosen itself, and a packet is not forwarded twice. */
static __noinline int dsr_decide(void *ctx, const struct packet *p, struct ct_entry *row, struct action *a)
{
	__u32 seen = a->to.seen, now = flow_now();
	__u8 state;

	if (dsr_cut_off(p, a, now))
		return true;
	if (p->is_forwarded || (packet_is_syn(p) && a->to.state > CT_OPEN)) {
		flow_pending_delete(&p->flow);
		return false;
	}
	a->verdict = VERDICT_REWRITE;
	a->is_first = a->to.state == CT_ANSWERED && packet_begins_flow(p);
	state = dsr_state(p, row, &a->to);
	if (state != a->to.state) {
		a->to.state = state;
		row->state = state;
	}
	if (seen == now || (packet_is_syn(p) && state != CT_NEW))
		return true;
	a->to.seen = now;
	row->seen = now;
	if (route_epoch_is_due(&a->to, &seen) && dsr_refresh(ctx, p, a))
		row->seen = seen;
	return true;
}

static __always_inline int dsr_option_write4(void *data, void *end, const struct packet *p)
{
	struct iphdr *ip = packet_at(data, end, p->l3, sizeof(*ip) + sizeof(struct option4));

	return ip ? dsr_option_put4(ip, &p->flow) : -1;
}

static __always_inline int dsr_option_write6(void *data, void *end, const struct packet *p)
{
	struct ipv6hdr *ip = packet_at(data, end, p->l3, sizeof(*ip) + sizeof(struct option6));

	return ip ? dsr_option_put6(ip, &p->flow) : -1;
}

/* Writes the option into the room that was made for it. Returns the change to the sum over the
 * whole packet, which in IPv4 is zero because the header's checksum compensates, or a negative
 * value if the packet is not what was parsed before. */
static __noinline int dsr_option_write(void *data, void *end, const struct packet *p)
{
	return p->is_v4 ? dsr_option_write4(data, end, p) : dsr_option_write6(data, end, p);
}

/* The encapsulation of packets that a backend on another node is to answer directly. The packet itself
 * stays as the client sent it, less one hop. Around it is an IP header from this node to the
 * backend, so whatever routes packets to the backend routes this one as well, and no node has to
 * know on which node the backend is.
 *
 * With IP in IP, the backend's port is in the IPv4 identification, which unfragmented packets do not
 * use, or in the IPv6 flow label. A device that segments a merged packet increments the
 * identification with each segment. The first one has the right port, and for the others the
 * receiver knows the flow already. With Geneve, the port is in an option. The UDP checksum of
 * Geneve is zero, in IPv6 too (RFC 6935): the inner packet has its own checksum, and the receiver
 * trusts nothing else that it cannot check. */

enum {
	DSR_ENCAP_TTL = 64,
	DSR_ENCAP_TOS = 0xfc,	   /* the bits that are copied: ECN is kept in the inner packet only */
	DSR_ENCAP_LABEL = 0x10000, /* so that port 0 differs from no label */
};

/* No link between nodes has a smaller MTU, although IPv4 would allow it (68, RFC 791), so packets
 * up to this length need no check. */
#define DSR_ENCAP_EVERY_LINK 576

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
		dsr_encap_tunnel(tunnel, &a->to, true, dsr_encap_port(flow_hash(&p->flow)),
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
		dsr_encap_tunnel(tunnel, &a->to, false, dsr_encap_port(flow_hash(&p->flow)),
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

/* The changes of a packet for which tc needs the kernel's help: making room in a packet that may be a
 * merged one, and fixing its checksums. */

/* Changes a packet's destination, with its checksums. */
static __always_inline bool dsr_rewrite_destination(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 check = dsr_option_check(p);

	if (!rewrite_target(data, end, p, a))
		return false;
	if (dsr_option_has_ports(p))
		return !rewrite_skb_sum(skb, p, a, false);
	if (check && bpf_l4_csum_replace(skb, check, 0, a->to.addr_diff, BPF_F_PSEUDO_HDR))
		return false;
	if (!p->is_v4)
		bpf_csum_update(skb, a->to.addr_diff);
	return true;
}

/* Makes room for the option. Every segment of a merged TCP packet becomes smaller by as much. */
static __always_inline bool dsr_option_make_room(struct __sk_buff *skb, __u32 len, __u8 proto)
{
	__u64 flags = proto == IPPROTO_UDP ? BPF_F_ADJ_ROOM_FIXED_GSO : 0;

	return !bpf_skb_adjust_room(skb, len, BPF_ADJ_ROOM_NET, flags);
}

/* Inserts the option. */
static __always_inline bool dsr_option_insert(struct __sk_buff *skb, const struct packet *p)
{
	int diff;

	if (!dsr_option_make_room(skb, dsr_option_len(p), p->flow.proto))
		return false;
	diff = dsr_option_write((void *)(long)skb->data, (void *)(long)skb->data_end, p);
	if (diff >= 0)
		bpf_csum_update(skb, diff);
	return diff >= 0;
}

static __always_inline __u64 dsr_encap_grow_flags(bool is_v4, __u8 proto, bool is_geneve)
{
	__u64 flags = is_v4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;

	if (proto == IPPROTO_UDP)
		flags |= BPF_F_ADJ_ROOM_FIXED_GSO;
	if (is_geneve)
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2_ETH |
			 BPF_F_ADJ_ROOM_ENCAP_L2((__u64)sizeof(struct ethhdr));
	return flags;
}

/* The kernel refuses to encapsulate a packet that was encapsulated before, even after
 * decapsulation. It can still segment such a packet if the new encapsulation equals the old one
 * (which it does when a packet is given back, without a port). A packet that is not merged needs no
 * segmentation. */
static __always_inline bool dsr_encap_grow_by(struct __sk_buff *skb, __u32 len, __u64 flags, __be16 port)
{
	if (!bpf_skb_adjust_room(skb, len, BPF_ADJ_ROOM_MAC, flags))
		return true;
	return (!port || !skb->gso_size) &&
	       !bpf_skb_adjust_room(skb, len, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
}

static __always_inline bool dsr_encap_grow(struct __sk_buff *skb, const struct packet *p, const struct action *a)
{
	return dsr_encap_grow_by(skb, dsr_encap_len(p, a),
				 dsr_encap_grow_flags(p->is_v4, p->flow.proto, dsr_encap_is_geneve(a)),
				 a->to.dport);
}
