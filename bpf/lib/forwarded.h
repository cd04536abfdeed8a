/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how tc restores the packet that a client sent from one that another node
 * forwarded, by any of the methods. */
#pragma once

#include "fallback.h"
#include "read.h"
#include "skb.h"

enum {
	FORWARDED_HEAD = 128, /* covers the IP header and what follows it */
};

/* Restores a packet that has our IP option. A packet that only looks as if it had one belongs to no
 * flow. */
__noinline int tc_undirect(struct __sk_buff *skb, struct packet *p)
{
	struct hint *hint = hosted_hint();
	struct unmarked to = {};
	struct action a = {};
	int found, parsed;

	if (!p || !hint || bpf_skb_pull_data(skb, skb->len < FORWARDED_HEAD ? skb->len : FORWARDED_HEAD))
		return PARSED_OTHER;
	found = unmark_read(&to, p, (void *)(long)skb->data, (void *)(long)skb->data_end);
	if (found == UNMARK_NONE)
		return PARSED_OTHER;
	p->is_unwrapped = true;
	if (found == UNMARK_STRAY || !skb_unmark(skb, p))
		return PARSED_OTHER;
	parsed = read_packet(skb, p, 0);
	p->is_unwrapped = true;
	if (parsed != PARSED_FLOW && parsed != PARSED_ICMP && parsed != PARSED_LATER)
		return PARSED_OTHER;
	hint->backend = p->flow.daddr;
	hint->port = p->flow.dport;
	hint->direct = DIRECT_OFF; /* an option does not say which node added it */
	a.to.daddr = to.addr;
	a.to.dport = option_has_ports(p) ? to.port : p->flow.dport;
	if (!skb_point(skb, p, &a))
		return PARSED_OTHER;
	p->flow.daddr = a.to.daddr;
	p->flow.dport = a.to.dport;
	return parsed;
}

/* Restores a packet that another node forwarded. Returns how the restored packet was parsed. */
__noinline int tc_unwrap(struct __sk_buff *skb, struct packet *p)
{
	struct hint *hint = hosted_hint();
	int parsed;

	if (p && option_is_due(p))
		return tc_undirect(skb, p);
	if (!p || !hint || !fallback_or_forwarded(hint, p, (void *)(long)skb->data, (void *)(long)skb->data_end) ||
	    bpf_skb_adjust_room(skb, -(__s32)hint->len, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return PARSED_OTHER;
	parsed = read_packet(skb, p, 0);
	p->is_unwrapped = hint->port;
	p->is_returned = !hint->port;
	return parsed;
}
