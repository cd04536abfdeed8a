/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how a packet is addressed to a backend, with what its client dialed in an IP
 * option. */
#pragma once

#include "dsr_option.h"
#include "rewrite.h"

/* Changes a packet's destination to the action's and keeps its source. That cannot come from the
 * row: for an ICMP error the row has the client's address, but the error may come from a router.
 * The caller updates the checksums behind the IP header by the differences in the action. */
static __noinline int rewrite_target(void *data, void *end, const struct packet *p, struct action *a)
{
	struct udphdr *l4;

	a->to.saddr = p->flow.saddr;
	a->to.sport = p->flow.sport;
	ct_finish(&p->flow, &a->to);
	if (!rewrite_fragment(data, end, p, a))
		return false;
	if (!p->l4 || packet_is_icmp(p))
		return true;
	l4 = packet_at(data, end, p->l4, sizeof(*l4));
	if (!l4)
		return false;
	l4->dest = a->to.dport;
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
