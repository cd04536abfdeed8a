/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains flows whose backend was to reply directly and cannot: its node has given them
 * back, see dsr_return.h, or the first packet does not fit with its encapsulation. They get this node's
 * address after all, and keep it: two rows replace the single one.
 *
 * A packet that is given back may be forged. So it counts only if it comes from a node, and a flow is
 * known that is forwarded to exactly this backend from exactly this address; any other is left
 * alone, with its headers. A flow that has been forwarded for a while stays as it is, and what is
 * given back of it is dropped. */
#pragma once

#include "dsr_return.h"
#include "dsr.h"
#include "dsr_ingress.h"

/* A flow may be given back for this many ticks after its first packet. Most are within one round
 * trip. */
#define DSR_FALLBACK_TICKS 32

/* Reports whether an encapsulated packet without a port belongs to a flow that is forwarded from the
 * address that it came to. */
static __always_inline bool dsr_fallback_is_known(const struct dsr_hint *hint, const struct flow *inner)
{
	struct ct_entry row;

	return ct_known(inner, &row) == CT_KNOWN && !(row.flags & CT_REPLY) &&
	       (row.flags & CT_DSR) >> DSR_SHIFT != DSR_OPT && addr_equal(&row.saddr, &hint->backend);
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
	__u16 age = ct_now() - a->to.addr_diff;

	if (!p->is_returned)
		return a->is_first && a->reason == REASON_TOO_BIG;
	return age <= DSR_FALLBACK_TICKS || (packet_shakes_hands(p) && a->to.state == CT_NEW);
}

/* Creates both rows of a flow that has none or a single one; no monitor is told of it. */
__noinline int tc_enter(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	return p && a ? new_flow_enter(skb, p, a) : 0;
}

/* Handles the first packet of a flow that another node forwarded. Inlined: a frame for it would be one
 * too many. */
static __always_inline void tc_host(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	if (dsr_return_is_due(skb, p, a)) {
		dsr_return_send(skb, p, a);
		return;
	}
	tc_enter(skb, p, a);
	if (a->verdict == VERDICT_REWRITE)
		event_tell(p, a, HOOK_TC, 0);
}

/* Uses this node's address for a flow that its backend was to answer directly. */
static __always_inline void dsr_fallback_enter(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	a->reject = REJECT_NONE;
	a->to.flags &= CT_GUARDED;
	a->to.state = CT_NEW;
	a->to.seq_hi = 0;
	a->verdict = VERDICT_REWRITE;
	a->reason = REASON_NONE;
	tc_enter(skb, p, a);
}
