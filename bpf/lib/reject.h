/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the replies to packets that are refused: TCP resets and ICMP errors. A reply is
 * written over the packet; the caller, who has the context, makes room for it. */
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
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "csum.h"
#include "flow.h"
#include "maps.h"
#include "packet.h"
#include "rewrite.h"
#include "types.h"

enum {
	REJECT_MOST4 = 576,  /* RFC 1812, 4.3.2.3 */
	REJECT_MOST6 = 1280, /* RFC 4443, 3.1 */
	REJECT_QUOTE_MOST = REJECT_MOST6 - sizeof(struct ipv6hdr) - sizeof(struct icmp),
	REJECT_LINK_MOST = sizeof(struct ethhdr) + PACKET_TAGS * sizeof(struct vlan_tag),
	REJECT_TTL = 64,
	REJECT_TOS = 0xc0, /* TOS of errors: internetwork control, RFC 1812, 4.3.2.5 */
};

/* Errors may go to forged addresses: each CPU sends so many at once, then one per REJECT_EVERY. */
#define REJECT_BURST 64
#define REJECT_EVERY 4000000 /* ns */

/* The plan of a reply. */
struct answering {
	const struct packet *p;
	__u32 len;	 /* of the frame, including the part that cannot be read */
	__u32 base;	 /* length of the IP header without options or extensions */
	__u32 keep;	 /* how much of the frame is kept */
	__u32 room;	 /* how much is inserted before the IP header */
	__u32 link;	 /* offset of the link header after that */
	__u32 segment;	 /* how many sequence numbers the TCP segment occupies */
	bool is_partial; /* a device completes the TCP or UDP checksum */
};

static __always_inline bool reject_is_error(const struct action *a)
{
	return a->reject == REJECT_UNREACHABLE || a->reject == REJECT_EXPIRED || a->reject == REJECT_TOO_BIG;
}

/* Reports whether the source can be a single host: nothing else is sent a reply, RFC 1122,
 * 3.2.2. */
static __always_inline bool reject_reaches(const struct packet *p)
{
	const struct addr *to = &p->flow.saddr;
	__u32 first = bpf_ntohl(to->word[p->is_v4 ? 3 : 0]) >> 24;

	if (addr_is_any(to) || addr_is_loopback(to))
		return false;
	return p->is_v4 ? first && first < 224 : first != 0xff;
}

static __always_inline bool reject_is_allowed(void)
{
	__u64 now = bpf_ktime_get_coarse_ns(), gained;
	struct allowance *bucket;
	__u32 row = 0;

	bucket = bpf_map_lookup_elem(&allowances, &row);
	if (!bucket)
		return false;
	gained = (now - bucket->filled) / REJECT_EVERY;
	if (gained >= REJECT_BURST - bucket->tokens) {
		bucket->tokens = REJECT_BURST;
		bucket->filled = now;
	} else if (gained) {
		bucket->tokens += gained;
		bucket->filled += gained * REJECT_EVERY;
	}
	if (!bucket->tokens)
		return false;
	bucket->tokens--;
	return true;
}

static __always_inline bool reject_plan_reset(struct answering *r, void *data, void *end, __u32 stop)
{
	const struct packet *p = r->p;
	__u8 *words = packet_at(data, end, p->l4 + 12, 1);
	__u32 payload;

	if (p->flow.proto != IPPROTO_TCP || !words)
		return false;
	payload = p->l4 + (*words >> 4) * 4;
	if (payload > stop)
		return false;
	r->segment = stop - payload + !!(p->tcp_flags & TCP_SYN) + !!(p->tcp_flags & TCP_FIN);
	r->keep = p->l3 + r->base + sizeof(struct tcphdr);
	return true;
}

/* A first fragment may get errors that routers send. Errors that hosts send are about whole
 * packets. */
static __always_inline bool reject_is_about(const struct packet *p, const struct action *a)
{
	return !p->is_fragment || a->reject == REJECT_TOO_BIG || a->reject == REJECT_EXPIRED;
}

/* Computes how much room a reply takes. False: no reply is sent. Errors quote as much as they
 * may. */
static __noinline int reject_plan(struct answering *r, const struct action *a, void *data, void *end)
{
	const struct packet *p = r->p;
	struct ethhdr *eth = data;
	__u32 stop, most;

	if (!reject_is_about(p, a) || (void *)(eth + 1) > end || eth->h_dest[0] & 1 || !reject_reaches(p))
		return false;
	stop = packet_end(data, end, p);
	if (stop > r->len || stop < p->l4 + sizeof(struct udphdr))
		return false;
	r->base = p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	r->room = 0;
	if (a->reject == REJECT_RESET)
		return reject_plan_reset(r, data, end, stop);
	r->room = r->base + sizeof(struct icmp);
	most = p->l3 + (p->is_v4 ? REJECT_MOST4 : REJECT_MOST6) - r->room;
	r->keep = stop < most ? stop : most;
	return reject_is_error(a) && r->keep >= p->l4 + sizeof(struct udphdr) && reject_is_allowed();
}

/* Moves the link header to the front and swaps its addresses. */
static __always_inline bool reject_link(void *data, void *end, const struct answering *r)
{
	void *from = packet_at(data, end, r->link, REJECT_LINK_MOST);
	void *to = packet_at(data, end, 0, REJECT_LINK_MOST);
	struct ethhdr *eth = to;
	__u8 mac[ETH_ALEN];

	if (!from || !to)
		return false;
	for (__u32 at = 0; r->link && at < REJECT_LINK_MOST && at < r->p->l3; at += 2)
		*(__u16 *)(to + at) = *(__u16 *)(from + at);
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	return true;
}

/* Replies come from the address that was dialed, which is where the client expects them from. */
static __always_inline bool reject_ip4(struct iphdr *ip, const struct packet *p, __u32 len, __u8 proto)
{
	if (!ip)
		return false;
	*ip = (struct iphdr) {
		.version = 4,
		.ihl = 5,
		.tos = proto == IPPROTO_ICMP ? REJECT_TOS : 0,
		.tot_len = bpf_htons(sizeof(*ip) + len),
		.frag_off = bpf_htons(IP4_DONT),
		.ttl = REJECT_TTL,
		.protocol = proto,
		.saddr = p->flow.daddr.word[3],
		.daddr = p->flow.saddr.word[3],
	};
	ip->check = ~csum_fold(csum_words(ip, sizeof(*ip) / 4));
	return true;
}

static __always_inline bool reject_ip6(struct ipv6hdr *ip, const struct packet *p, __u32 len, __u8 proto)
{
	if (!ip)
		return false;
	*(__be32 *)ip = bpf_htonl(0x60000000);
	ip->payload_len = bpf_htons(len);
	ip->nexthdr = proto;
	ip->hop_limit = REJECT_TTL;
	__builtin_memcpy(&ip->saddr, &p->flow.daddr, sizeof(struct addr));
	__builtin_memcpy(&ip->daddr, &p->flow.saddr, sizeof(struct addr));
	return true;
}

/* The sum over the pseudo header. The first three words of a mapped IPv4 address add nothing to
 * it. */
static __always_inline __u64 reject_pseudo(const struct packet *p, __u32 len, __u8 proto)
{
	return csum_words(&p->flow.saddr, 4) + csum_words(&p->flow.daddr, 4) + bpf_htonl(len) + bpf_htonl(proto);
}

/* Writes the IP header of a reply with `len` bytes of payload. */
static __always_inline bool reject_ip(void *data, void *end, const struct answering *r, __u32 len)
{
	const struct packet *p = r->p;

	if (p->is_v4)
		return reject_ip4(packet_at(data, end, p->l3, sizeof(struct iphdr)), p, len,
				  r->room ? IPPROTO_ICMP : IPPROTO_TCP);
	return reject_ip6(packet_at(data, end, p->l3, sizeof(struct ipv6hdr)), p, len,
			  r->room ? IPPROTO_ICMPV6 : IPPROTO_TCP);
}

/* RFC 9293, 3.10.7.1: if the segment has an ACK, that is the reset's sequence number; if not, the
 * reset acknowledges the segment. */
static __always_inline bool reject_reset(void *data, void *end, const struct answering *r)
{
	const struct packet *p = r->p;
	struct tcphdr *tcp = packet_at(data, end, p->l3 + r->base, sizeof(*tcp));
	__u64 sum = reject_pseudo(p, sizeof(*tcp), IPPROTO_TCP);

	if (!tcp)
		return false;
	*tcp = (struct tcphdr) { .source = p->flow.dport, .dest = p->flow.sport, .doff = 5, .rst = 1 };
	if (p->tcp_flags & TCP_ACK) {
		tcp->seq = p->ack;
	} else {
		tcp->ack = 1;
		tcp->ack_seq = bpf_htonl(bpf_ntohl(p->seq) + r->segment);
	}
	tcp->check = r->is_partial ? csum_fold(sum) : ~csum_fold(sum + csum_words(tcp, sizeof(*tcp) / 4));
	return reject_ip(data, end, r, sizeof(*tcp));
}

/* Adds the sum over the quote. With a partial checksum, the bytes that it covers add up to the
 * complement of the checksum field, whatever they are. */
static __always_inline bool reject_quote_sum(void *data, void *end, const struct answering *r, __u64 *sum)
{
	struct csum_range range = { data, end, *sum, r->p->l3 + r->room, r->keep - r->p->l3 };
	__be16 *check;

	if (r->is_partial) {
		range.len = r->p->l4 - r->p->l3;
		check = packet_at(data, end, range.at + range.len + rewrite_check_offset(r->p), sizeof(*check));
		if (!check)
			return false;
		range.sum += (__u16) ~*check;
	}
	*sum = csum_bytes(&range);
	return true;
}

static __always_inline struct icmp reject_kind(const struct packet *p, const struct action *a)
{
	struct icmp icmp = {};

	if (a->reject == REJECT_UNREACHABLE) {
		icmp.type = p->is_v4 ? ICMP4_UNREACHABLE : ICMP6_UNREACHABLE;
		icmp.code = p->is_v4 ? ICMP4_CODE_PORT : ICMP6_CODE_PORT;
	} else if (a->reject == REJECT_EXPIRED) {
		icmp.type = p->is_v4 ? ICMP4_EXPIRED : ICMP6_EXPIRED;
	} else {
		icmp.type = p->is_v4 ? ICMP4_UNREACHABLE : ICMP6_TOO_BIG;
		icmp.code = p->is_v4 ? ICMP4_CODE_TOO_BIG : 0;
		icmp.rest = bpf_htonl(a->mtu); /* in IPv4 the lower half of the same word */
	}
	return icmp;
}

static __always_inline bool reject_error(void *data, void *end, const struct answering *r, const struct action *a)
{
	const struct packet *p = r->p;
	struct icmp *icmp = packet_at(data, end, p->l3 + r->base, sizeof(*icmp));
	__u32 len = sizeof(struct icmp) + r->keep - p->l3;
	__u64 sum;

	if (!icmp)
		return false;
	*icmp = reject_kind(p, a);
	sum = csum_words(icmp, sizeof(*icmp) / 4) + (p->is_v4 ? 0 : reject_pseudo(p, len, IPPROTO_ICMPV6));
	if (!reject_quote_sum(data, end, r, &sum))
		return false;
	icmp->check = ~csum_fold(sum);
	return reject_ip(data, end, r, len);
}

/* Writes the reply once there is room for it. */
static __noinline int reject_write(const struct answering *r, const struct action *a, void *data, void *end)
{
	if (!reject_link(data, end, r))
		return false;
	return r->room ? reject_error(data, end, r, a) : reject_reset(data, end, r);
}

/* A reset keeps its TCP header at the same place, because the position is where a device completes
 * the checksum. So IP options before it are removed. */
static __always_inline bool reject_tc_make_room(struct __sk_buff *skb, const struct answering *r)
{
	__s32 spare = r->p->l4 - r->p->l3 - r->base;

	if (!r->room && spare > 0 && bpf_skb_adjust_room(skb, -spare, BPF_ADJ_ROOM_NET, 0))
		return false;
	return !bpf_skb_change_tail(skb, r->keep, 0) &&
	       (!r->room || !bpf_skb_adjust_room(skb, r->room, BPF_ADJ_ROOM_MAC, 0)) &&
	       !bpf_skb_pull_data(skb, skb->len);
}

/* Turns a dropped packet into the reply to it. */
__noinline int reject_tc(struct __sk_buff *skb, const struct packet *p, const struct action *a)
{
	struct answering r = { .p = p, .len = skb->len };

	if (!p || !a || !reject_plan(&r, a, (void *)(long)skb->data, (void *)(long)skb->data_end))
		return false;
	r.is_partial = rewrite_skb_is_partial(skb, p);
	return reject_tc_make_room(skb, &r) &&
	       reject_write(&r, a, (void *)(long)skb->data, (void *)(long)skb->data_end);
}
