/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how tc restores the packet that a client sent from one that another node
 * forwarded, by any of the methods. */
#pragma once

#include "cluster.h"
#include "fallback.h"
#include "read.h"
#include "skb.h"

enum {
	FORWARDED_HEAD = 128, /* covers the IP header and what follows it */
};

/* Reports whether the backend that a packet was forwarded to is on this node: a service here has it,
 * or its route leads to no device of ours, as those of pods. The latter is true also of one that no
 * service has any more, so that its flows go on. */
static __noinline int forwarded_is_here(void *ctx, const struct packet *p)
{
	struct svc_key key = { .addr = p->flow.daddr, .hosted = HOSTED_BACKEND };
	struct ct_entry way = { .saddr = p->flow.saddr, .daddr = p->flow.daddr };

	if (bpf_map_lookup_elem(&svcs, &key))
		return true;
	route_find(ctx, p, &way);
	return !way.ifindex || !bpf_map_lookup_elem(&served, &way.ifindex);
}

/* Reports whether a packet's option names a frontend, or without ports the address of one. */
static __always_inline bool forwarded_is_for_frontend(const struct packet *p, const struct action *a)
{
	struct svc_key to = { .addr = a->to.daddr, .port = a->to.dport, .proto = p->flow.proto };

	return option_has_ports(p) ? unwrap_is_frontend(&to) : unwrap_is_address(&to.addr);
}

/* Reports whether another node sent a packet to this one: it forwarded it, or gives it back. Whoever
 * else sends such a packet has it treated like any other. */
static __always_inline bool forwarded_is(struct __sk_buff *skb, struct hint *hint, const struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (!unwrap_read(hint, p, data, end) || !cluster_sender(&hint->from))
		return false;
	if (hint->direct == DIRECT_GENEVE && !cfg.any_source_port && bpf_ntohs(p->flow.sport) > GENEVE_LAST_SOURCE)
		return false;
	return hint->port ? unwrap_is_ours(hint, p, data, end) && forwarded_is_here(skb, p)
			  : fallback_is_ours(hint, p, data, end);
}

/* Reports whether a packet has our option, and makes it linear up to there. */
static __always_inline bool forwarded_has_option(struct __sk_buff *skb, const struct packet *p)
{
	return !bpf_skb_pull_data(skb, skb->len < FORWARDED_HEAD ? skb->len : FORWARDED_HEAD) &&
	       option_is_there(p, (void *)(long)skb->data, (void *)(long)skb->data_end);
}

/* Gives a packet whose option was removed the destination that the option named. Not inlined, to have
 * a stack frame of its own, which is gone while the packet is read. */
static __noinline int forwarded_point(struct __sk_buff *skb, struct packet *p, const struct unmarked *to)
{
	struct action a = {};

	a.to.daddr = to->addr;
	a.to.dport = option_has_ports(p) ? to->port : p->flow.dport;
	if (!forwarded_is_for_frontend(p, &a) || !skb_point(skb, p, &a))
		return false;
	p->flow.daddr = a.to.daddr;
	p->flow.dport = a.to.dport;
	return true;
}

/* Restores a packet that has our IP option. A packet that only looks as if it had one belongs to no
 * flow. */
__noinline int tc_undirect(struct __sk_buff *skb, struct packet *p)
{
	struct hint *hint = hosted_hint();
	struct unmarked to = {};
	int found, parsed;

	if (!p || !hint)
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
	return forwarded_point(skb, p, &to) ? parsed : PARSED_OTHER;
}

/* Restores a packet that another node forwarded. Returns how the restored packet was parsed. */
__noinline int tc_unwrap(struct __sk_buff *skb, struct packet *p)
{
	struct hint *hint = hosted_hint();
	int parsed;

	if (p && option_is_due(p))
		return forwarded_has_option(skb, p) && forwarded_is_here(skb, p) ? tc_undirect(skb, p)
										 : PARSED_OTHER;
	if (!p || !hint || !forwarded_is(skb, hint, p) ||
	    bpf_skb_adjust_room(skb, -(__s32)hint->len, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return PARSED_OTHER;
	parsed = read_packet(skb, p, 0);
	p->is_unwrapped = hint->port;
	p->is_returned = !hint->port;
	return parsed;
}
