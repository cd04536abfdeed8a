/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what makes a packet one for a backend that it names, with what its client dialled in an
 * option.
 */
#pragma once

#include "option.h"
#include "rewrite.h"

/* Points a packet at another end, which the action has, and leaves it its source: the row of the flow that an error
 * of ICMP is about has that of the client, and the error may be a router's. The sums of what comes behind the
 * header of IP are left to be changed by what the action then has. */
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

static __always_inline int option_write4(void *data, void *end, const struct packet *p)
{
	struct iphdr *ip = packet_at(data, end, p->l3, sizeof(*ip) + sizeof(struct option4));

	return ip ? option_put4(ip, &p->flow) : -1;
}

static __always_inline int option_write6(void *data, void *end, const struct packet *p)
{
	struct ipv6hdr *ip = packet_at(data, end, p->l3, sizeof(*ip) + sizeof(struct option6));

	return ip ? option_put6(ip, &p->flow) : -1;
}

/* Writes the option into the room that was made for it. Returns what that adds to the sum over a whole packet,
 * where a header of IPv4 has a sum that makes up for it; less than zero if the packet is not as it was read. */
static __noinline int option_write(void *data, void *end, const struct packet *p)
{
	return p->is_v4 ? option_write4(data, end, p) : option_write6(data, end, p);
}
