/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains ICMP: an error follows the flow of the packet that it quotes, back to that
 * packet's sender; and the echo requests that addresses of services reply to. */
#pragma once

#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
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
#include "reject.h"
#include "rewrite.h"
#include "types.h"

/* The reply to an echo request to the address of a service. */

/* Addresses that reply have a row with port and protocol 0, which exists only if the agent is
 * configured so. With ICMP as the protocol, the sockets of ping would find the row. A packet with
 * options or extension headers is left to the stack. */
static __always_inline bool icmp_echo_is_asked(const struct packet *p, const struct icmp *icmp)
{
	struct svc_key key = { .addr = p->flow.daddr };
	__u32 base = p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);

	if (icmp->type != (p->is_v4 ? ICMP4_ECHO : ICMP6_ECHO) || icmp->code)
		return false;
	return !p->is_fragment && p->l4 == p->l3 + base && reject_reaches(p) && bpf_map_lookup_elem(&svcs, &key);
}

/* Turns an echo request to a service into its reply. The sums over the addresses stay the same,
 * since the addresses only change places. */
static __noinline int icmp_echo_answer(void *data, void *end, const struct packet *p)
{
	struct icmp *icmp = packet_at(data, end, p->l4, sizeof(*icmp));
	struct ipv6hdr *ip6 = packet_at(data, end, p->l3, sizeof(*ip6));
	struct iphdr *ip = packet_at(data, end, p->l3, sizeof(*ip));
	struct answering r = { .p = p };

	if (!icmp || !ip || !icmp_echo_is_asked(p, icmp) || !reject_link(data, end, &r))
		return false;
	if (p->is_v4) {
		icmp->type = ICMP4_ECHO_REPLY;
		icmp->check = csum_change(icmp->check, (__u16)~bpf_htons(ICMP4_ECHO << 8));
		ip->check =
			csum_change(ip->check, (__u32)(__u16)~bpf_htons(ip->ttl << 8) + bpf_htons(REJECT_TTL << 8));
		ip->ttl = REJECT_TTL;
		ip->saddr = p->flow.daddr.word[3];
		ip->daddr = p->flow.saddr.word[3];
		return true;
	}
	if (!ip6)
		return false;
	icmp->type = ICMP6_ECHO_REPLY;
	icmp->check = csum_change(icmp->check, bpf_htons(1 << 8));
	ip6->hop_limit = REJECT_TTL;
	__builtin_memcpy(&ip6->saddr, &p->flow.daddr, sizeof(struct addr));
	__builtin_memcpy(&ip6->daddr, &p->flow.saddr, sizeof(struct addr));
	return true;
}

/* An error about a packet takes the path of the replies to that packet. It changes no state of the
 * flow: it may be forged, and only the two ends can judge it. */
static __noinline int icmp_decide(const struct packet *p, const struct packet *quote, struct action *a)
{
	struct flow answer = {
		.saddr = quote->flow.daddr,
		.daddr = quote->flow.saddr,
		.sport = quote->flow.dport,
		.dport = quote->flow.sport,
		.proto = quote->flow.proto,
	};

	if (!addr_equal(&answer.daddr, &p->flow.daddr))
		return 0;
	return flow_apply_known(a, &answer);
}

/* A pair of addresses, and its difference to the sum over the pair that it replaces. */
struct ends {
	struct addr saddr;
	struct addr daddr;
	__u32 diff;
};

static __always_inline bool icmp_write_ends(void *data, void *end, const struct packet *p, const struct ends *to)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	if (p->is_v4) {
		ip = packet_at(data, end, p->l3, sizeof(*ip));
		if (!ip)
			return false;
		ip->saddr = to->saddr.word[3];
		ip->daddr = to->daddr.word[3];
		ip->check = csum_change(ip->check, to->diff);
		return true;
	}
	ip6 = packet_at(data, end, p->l3, sizeof(*ip6));
	if (!ip6)
		return false;
	__builtin_memcpy(&ip6->saddr, &to->saddr, sizeof(struct addr));
	__builtin_memcpy(&ip6->daddr, &to->daddr, sizeof(struct addr));
	return true;
}

/* Changes an SCTP checksum as in a whole packet, using the length that the quoted packet had. */
static __always_inline bool icmp_write_quote_sctp(void *data, void *end, const struct packet *quote,
						  const struct action *a, __u32 *diff)
{
	struct sctp *sctp = packet_at(data, end, quote->l4, sizeof(*sctp));
	__u32 before;

	if (!sctp || quote->l4 + sizeof(*sctp) > quote->stop)
		return true;
	before = sctp->check;
	if (!rewrite_sctp(data, end, quote, a->to.dport, a->to.sport))
		return false;
	*diff += csum_fold((__u64)(__u32)~before + sctp->check);
	return true;
}

/* Writes the ports and the checksum of a quoted packet, and adds to `diff` how that changes the sum
 * over the quote. A truncated quote no longer contains its checksum: the bytes there, beyond the
 * end of the error, are padding. UDP may have had none. */
static __always_inline bool icmp_write_quote_l4(void *data, void *end, const struct packet *quote,
						const struct action *a, __u32 *diff)
{
	__u32 at = quote->l4 + rewrite_check_offset(quote);
	struct udphdr *l4 = packet_at(data, end, quote->l4, sizeof(*l4));
	__u16 *check = packet_at(data, end, at, sizeof(*check));

	if (!l4)
		return false;
	l4->source = a->to.dport;
	l4->dest = a->to.sport;
	*diff += a->to.port_diff;
	if (quote->flow.proto == IPPROTO_SCTP)
		return icmp_write_quote_sctp(data, end, quote, a, diff);
	if (!check || at + sizeof(*check) > quote->stop || (quote->flow.proto == IPPROTO_UDP && !*check))
		return true;
	*diff += (__u16)~csum_fold((__u32)a->to.addr_diff + a->to.port_diff);
	*check = csum_change(*check, (__u32)a->to.addr_diff + a->to.port_diff);
	if (quote->flow.proto == IPPROTO_UDP && !*check)
		*check = 0xffff;
	return true;
}

/* If the row translates the source of the replies, the error gets the translated source too:
 * routers on the other side have addresses that mean nothing here, and firewalls drop packets from
 * them. */
static __always_inline struct ends icmp_outer(const struct packet *p, const struct packet *quote,
					      const struct action *a)
{
	struct ends outer = { .saddr = a->to.saddr, .daddr = a->to.daddr };

	if (addr_equal(&quote->flow.daddr, &outer.saddr))
		outer.saddr = p->flow.saddr;
	outer.diff = csum_fold(csum_addr_diff(&p->flow.saddr, &outer.saddr) +
			       csum_addr_diff(&p->flow.daddr, &outer.daddr));
	return outer;
}

/* Translates an error and the packet it quotes. The ICMPv6 checksum also covers the addresses of
 * its own header; in IPv4 the quoted header's own checksum compensates for its addresses. */
static __noinline int icmp_rewrite(void *data, void *end, const struct packet *p, const struct packet *quote,
				   const struct action *a)
{
	struct ends inner = { .saddr = a->to.daddr, .daddr = a->to.saddr, .diff = a->to.addr_diff };
	struct ends outer = icmp_outer(p, quote, a);
	struct icmp *icmp = packet_at(data, end, p->l4, sizeof(*icmp));
	__u32 diff = p->is_v4 ? 0 : inner.diff + outer.diff;

	if (!icmp)
		return false;
	if (!icmp_write_ends(data, end, quote, &inner) || !icmp_write_ends(data, end, p, &outer) ||
	    !icmp_write_quote_l4(data, end, quote, a, &diff))
		return false;
	icmp->check = csum_change(icmp->check, diff);
	return true;
}
