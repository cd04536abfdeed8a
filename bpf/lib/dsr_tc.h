/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what only tc does in direct server return: it restores packets, gives back those
 * whose replies could not be translated, and falls back to this node's address. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "cluster.h"
#include "config.h"
#include "dsr.h"
#include "dsr_encap.h"
#include "dsr_ingress.h"
#include "event.h"
#include "flow.h"
#include "maps.h"
#include "new_flow.h"
#include "packet.h"
#include "reason.h"
#include "route.h"
#include "types.h"

/* What a backend's node does with flows whose replies it cannot translate. Replies get the frontend's
 * address where they leave by a device with our tc programs. Replies to a client on this node, or
 * behind any other device, do not pass there. Packets of such a flow are given back, one by one, to
 * the node that forwarded them: in the same encapsulation, from this node to that one, with port
 * zero, which no backend has. So are packets for a backend that this node does not know to be the
 * service's. What that node does is below. */

/* Reports whether a packet is for no backend that is known here, or replies to a flow's first packet
 * would not leave by a device of ours, by a FIB lookup for such a reply. If the client is on this
 * node the lookup yields no device. A packet that came with an IP option cannot be given back,
 * because it does not tell which node sent it. */
static __noinline int dsr_return_is_due(void *ctx, const struct packet *p, const struct action *a)
{
	struct dsr_hint *hint = dsr_ingress_hint();
	struct ct_entry way = { .saddr = a->to.daddr, .daddr = p->flow.saddr };

	if (!hint || hint->direct == DSR_OFF)
		return false;
	if (!hint->is_known)
		return true;
	route_find(ctx, p, &way);
	return !way.ifindex || !bpf_map_lookup_elem(&nat_devices, &way.ifindex);
}

/* Gives a packet back, by tc_encap. This node keeps no state of the flow and has no alternative: a
 * packet that does not fit is dropped. */
static __noinline int dsr_return_send(void *ctx, const struct packet *p, struct action *a)
{
	struct dsr_hint *hint = dsr_ingress_hint();

	if (!hint)
		return flow_drop(a, REASON_BAD_TABLE);
	a->reason = REASON_DSR_RETURNED;
	a->is_first = false;
	a->to = (struct ct_entry) {
		.daddr = hint->from,
		.kind = FLOW_DSR + hint->direct,
	};
	if (!new_flow_masquerade(p->is_v4 ? SNAT_NODE4 : SNAT_NODE6, &a->to))
		return flow_drop(a, REASON_NO_ADDRESS);
	route_find(ctx, p, &a->to);
	return 0;
}

/* Flows whose backend was to reply directly and cannot: its node has given them back, see
 * dsr_tc.h, or the first packet does not fit with its encapsulation. They get this node's
 * address after all, and keep it: two rows replace the single one.
 *
 * A packet that is given back may be forged. So it counts only if it comes from a node, and a flow is
 * known that is forwarded to exactly this backend from exactly this address; any other is left
 * alone, with its headers. A flow that has been forwarded for a while stays as it is, and what is
 * given back of it is dropped. */

/* A flow may be given back for this many ticks after its first packet. Most are within one round
 * trip. */
#define DSR_FALLBACK_TICKS 32

/* Reports whether an encapsulated packet without a port belongs to a flow that is forwarded from the
 * address that it came to. */
static __always_inline bool dsr_fallback_is_known(const struct dsr_hint *hint, const struct flow *inner)
{
	struct ct_entry row;

	return flow_known(inner, &row) == CT_KNOWN && !(row.kind & FLOW_REPLY) && flow_kind(&row) != FLOW_DSR_OPT &&
	       addr_equal(&row.saddr, &hint->backend);
}

/* Parses the flow of the inner packet, in a stack frame of its own that is gone before the flow is
 * looked up. */
static __noinline int dsr_fallback_read(struct flow *flow, const struct packet *p, void *data, void *end, __u32 at)
{
	struct packet inner = {};
	int parsed;

	asm volatile("" : "+r"(at)); /* in one register, for the reason given at packet_at */
	if (at > PACKET_L4_MOST)
		return false;
	parsed = p->is_v4 ? packet_parse4(&inner, data, end, at) : packet_parse6(&inner, data, end, at);
	*flow = inner.flow;
	return parsed == PARSED_FLOW;
}

static __noinline int dsr_fallback_is_ours(const struct dsr_hint *hint, const struct packet *p, void *data,
					   void *end)
{
	struct flow flow;

	return dsr_fallback_read(&flow, p, data, end, p->l3 + hint->len) && dsr_fallback_is_known(hint, &flow);
}

/* Reports whether a packet that could not be forwarded to the backend's node may use this node's
 * address instead. */
static __always_inline bool dsr_fallback_is_due(const struct packet *p, const struct action *a)
{
	__u16 age = flow_now() - a->to.created;

	if (!p->is_returned)
		return a->is_first && a->reason == REASON_TOO_BIG;
	return age <= DSR_FALLBACK_TICKS || (packet_shakes_hands(p) && a->to.state == CT_NEW);
}

/* Creates both rows of a flow that has none or a single one; no monitor is told of it. */
__noinline int dsr_insert_rows(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	return p && a ? new_flow_enter(skb, p, a) : 0;
}

/* Handles the first packet of a flow that another node forwarded. Inlined: a frame for it would be one
 * too many. */
static __always_inline void dsr_ingress_new_flow(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	if (dsr_return_is_due(skb, p, a)) {
		dsr_return_send(skb, p, a);
		return;
	}
	dsr_insert_rows(skb, p, a);
	if (a->verdict == VERDICT_REWRITE)
		event_tell(p, a, HOOK_TC, 0);
}

/* Uses this node's address for a flow that its backend was to answer directly. */
static __always_inline void dsr_fallback_enter(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	a->reject = REJECT_NONE;
	a->to.kind = FLOW_REMOTE | (a->to.kind & FLOW_HAS_RANGES);
	a->to.state = CT_NEW;
	a->to.seq_hi = 0;
	a->verdict = VERDICT_REWRITE;
	a->reason = REASON_NONE;
	dsr_insert_rows(skb, p, a);
}

/* Removes the option from a received packet. */
static __always_inline bool dsr_option_remove_from(struct __sk_buff *skb, const struct packet *p)
{
	int diff = dsr_option_remove((void *)(long)skb->data, (void *)(long)skb->data_end, p, skb->len);

	if (diff < 0)
		return false;
	bpf_csum_update(skb, diff);
	return !bpf_skb_adjust_room(skb, -(__s32)dsr_option_len(p), BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO);
}

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
	if (!dsr_ingress_is_for_frontend(p, &a) || !dsr_rewrite_destination(skb, p, &a))
		return false;
	p->flow.daddr = a.to.daddr;
	p->flow.dport = a.to.dport;
	return true;
}

/* Restores a packet that has our IP option. A packet that only looks as if it had one belongs to no
 * flow. */
__noinline int dsr_option_restore(struct __sk_buff *skb, struct packet *p)
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
	if (found == DSR_OPTION_STRAY || !dsr_option_remove_from(skb, p))
		return PARSED_OTHER;
	parsed = packet_read(skb, p, 0);
	p->is_forwarded = true;
	if (parsed != PARSED_FLOW && parsed != PARSED_ICMP && parsed != PARSED_LATER)
		return PARSED_OTHER;
	hint->backend = p->flow.daddr;
	hint->port = p->flow.dport;
	hint->direct = DSR_OFF; /* an option does not say which node added it */
	return dsr_ingress_point(skb, p, &to) ? parsed : PARSED_OTHER;
}

/* Restores a packet that another node forwarded. Returns how the restored packet was parsed. */
__noinline int dsr_ingress_decap(struct __sk_buff *skb, struct packet *p)
{
	struct dsr_hint *hint = dsr_ingress_hint();
	int parsed;

	if (p && dsr_option_is_due(p))
		return dsr_ingress_has_option(skb, p) && dsr_ingress_is_here(skb, p) ? dsr_option_restore(skb, p)
										     : PARSED_OTHER;
	if (!p || !hint || !dsr_ingress_is(skb, hint, p) ||
	    bpf_skb_adjust_room(skb, -(__s32)hint->len, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return PARSED_OTHER;
	parsed = packet_read(skb, p, 0);
	p->is_forwarded = hint->port;
	p->is_returned = !hint->port;
	return parsed;
}
