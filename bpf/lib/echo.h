/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the reply to an echo request to the address of a service. */
#pragma once

#include "reject.h"

/* Addresses that reply have a row with port and protocol 0, which exists only if the agent is
 * configured so. With ICMP as the protocol, the sockets of ping would find the row. A packet with
 * options or extension headers is left to the stack. */
static __always_inline bool echo_is_asked(const struct packet *p, const struct icmp *icmp)
{
	struct svc_key key = { .addr = p->flow.daddr };
	__u32 base = p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);

	if (icmp->type != (p->is_v4 ? ICMP4_ECHO : ICMP6_ECHO) || icmp->code)
		return false;
	return !p->is_fragment && p->l4 == p->l3 + base && reject_reaches(p) && bpf_map_lookup_elem(&svcs, &key);
}

/* Turns an echo request to a service into its reply. The sums over the addresses stay the same,
 * since the addresses only change places. */
static __noinline int echo_answer(void *data, void *end, const struct packet *p)
{
	struct icmp *icmp = packet_at(data, end, p->l4, sizeof(*icmp));
	struct ipv6hdr *ip6 = packet_at(data, end, p->l3, sizeof(*ip6));
	struct iphdr *ip = packet_at(data, end, p->l3, sizeof(*ip));
	struct answering r = { .p = p };

	if (!icmp || !ip || !echo_is_asked(p, icmp) || !reject_link(data, end, &r))
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
