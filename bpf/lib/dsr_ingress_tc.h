/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how tc restores the packet that a client sent from one that another node
 * forwarded, by any of the methods. */
#pragma once

#include "cluster.h"
#include "dsr_fallback.h"
#include "read.h"
#include "skb.h"

enum {
	FORWARDED_HEAD = 128, /* covers the IP header and what follows it */
};

/* Reports whether the backend that a packet was forwarded to is on this node: a service here has it,
 * or its route leads to no device of ours, as those of pods. The latter is true also of one that no
 * service has any more, so that its flows go on. */
static __noinline int dsr_ingress_is_here(void *ctx, const struct packet *p)
{
	struct svc_key key = { .addr = p->flow.daddr, .hosted = HOSTED_BACKEND };
	struct ct_entry way = { .saddr = p->flow.saddr, .daddr = p->flow.daddr };

	if (bpf_map_lookup_elem(&svcs, &key))
		return true;
	route_find(ctx, p, &way);
	return !way.ifindex || !bpf_map_lookup_elem(&nat_devices, &way.ifindex);
}

/* Reports whether a packet's option names a frontend, or without ports the address of one. */
static __always_inline bool dsr_ingress_is_for_frontend(const struct packet *p, const struct action *a)
{
	struct svc_key to = { .addr = a->to.daddr, .port = a->to.dport, .proto = p->flow.proto };

	return dsr_option_has_ports(p) ? dsr_ingress_is_frontend(&to) : dsr_ingress_is_address(&to.addr);
}

/* Reports whether another node sent a packet to this one: it forwarded it, or gives it back. Whoever
 * else sends such a packet has it treated like any other. */
static __always_inline bool dsr_ingress_is(struct __sk_buff *skb, struct dsr_hint *hint, const struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (!dsr_ingress_read(hint, p, data, end) || !cluster_sender(&hint->from))
		return false;
	if (hint->direct == DSR_GENEVE && !cfg.any_source_port && bpf_ntohs(p->flow.sport) > GENEVE_LAST_SOURCE)
		return false;
	return hint->port ? dsr_ingress_is_ours(hint, p, data, end) && dsr_ingress_is_here(skb, p)
			  : dsr_fallback_is_ours(hint, p, data, end);
}

/* Reports whether a packet has our option, and makes it linear up to there. */
static __always_inline bool dsr_ingress_has_option(struct __sk_buff *skb, const struct packet *p)
{
	return !bpf_skb_pull_data(skb, skb->len < FORWARDED_HEAD ? skb->len : FORWARDED_HEAD) &&
	       dsr_option_is_there(p, (void *)(long)skb->data, (void *)(long)skb->data_end);
}

/* Gives a packet whose option was removed the destination that the option named. Not inlined, to have
 * a stack frame of its own, which is gone while the packet is read. */
static __noinline int dsr_ingress_point(struct __sk_buff *skb, struct packet *p, const struct dsr_option *to)
{
	struct action a = {};

	a.to.daddr = to->addr;
	a.to.dport = dsr_option_has_ports(p) ? to->port : p->flow.dport;
	if (!dsr_ingress_is_for_frontend(p, &a) || !skb_point(skb, p, &a))
		return false;
	p->flow.daddr = a.to.daddr;
	p->flow.dport = a.to.dport;
	return true;
}

/* Restores a packet that has our IP option. A packet that only looks as if it had one belongs to no
 * flow. */
__noinline int tc_remove_option(struct __sk_buff *skb, struct packet *p)
{
	struct dsr_hint *hint = dsr_ingress_hint();
	struct dsr_option to = {};
	int found, parsed;

	if (!p || !hint)
		return PARSED_OTHER;
	found = dsr_option_read(&to, p, (void *)(long)skb->data, (void *)(long)skb->data_end);
	if (found == DSR_OPTION_NONE)
		return PARSED_OTHER;
	p->is_forwarded = true;
	if (found == DSR_OPTION_STRAY || !skb_remove_option(skb, p))
		return PARSED_OTHER;
	parsed = read_packet(skb, p, 0);
	p->is_forwarded = true;
	if (parsed != PARSED_FLOW && parsed != PARSED_ICMP && parsed != PARSED_LATER)
		return PARSED_OTHER;
	hint->backend = p->flow.daddr;
	hint->port = p->flow.dport;
	hint->direct = DSR_OFF; /* an option does not say which node added it */
	return dsr_ingress_point(skb, p, &to) ? parsed : PARSED_OTHER;
}

/* Restores a packet that another node forwarded. Returns how the restored packet was parsed. */
__noinline int tc_decap(struct __sk_buff *skb, struct packet *p)
{
	struct dsr_hint *hint = dsr_ingress_hint();
	int parsed;

	if (p && dsr_option_is_due(p))
		return dsr_ingress_has_option(skb, p) && dsr_ingress_is_here(skb, p) ? tc_remove_option(skb, p)
										     : PARSED_OTHER;
	if (!p || !hint || !dsr_ingress_is(skb, hint, p) ||
	    bpf_skb_adjust_room(skb, -(__s32)hint->len, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return PARSED_OTHER;
	parsed = read_packet(skb, p, 0);
	p->is_forwarded = hint->port;
	p->is_returned = !hint->port;
	return parsed;
}
