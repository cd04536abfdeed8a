/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what is to be done with a packet. It writes none, and never reads one by its context: that is
 * handed through to the helper that knows the routes. */
#pragma once

#include "half.h"

/* Asks again for the way of an established flow. */
static __noinline int decide_refresh(void *ctx, const struct packet *p, struct action *a)
{
	return ways_refresh(ctx, p, &a->to) ? table_replace(&p->flow, &a->to) : 0;
}

/* How far a direction is after a packet. */
static __always_inline __u8 decide_state(const struct packet *p, __u8 state)
{
	if (p->tcp_flags & TCP_RST)
		return CT_RESET;
	if (p->tcp_flags & TCP_FIN)
		return CT_CLOSING;
	return state == CT_RESET ? CT_OPEN : state;
}

/* Notes in a row of `ct` that it is used. `to` is its copy. True: for the first time in this tick. */
static __always_inline bool decide_touch(const struct packet *p, struct ct_entry *row, struct ct_entry *to)
{
	__u8 state = decide_state(p, to->state);
	__u32 now = ct_now();

	if (state != to->state) {
		to->state = state;
		row->state = state;
		if (cfg.growing)
			ct_touch_growing(&p->flow, to);
	}
	if (to->seen == now || first_is_syn(p))
		return false;
	to->seen = now;
	row->seen = now;
	if (cfg.growing)
		ct_touch_growing(&p->flow, to);
	return true;
}

/* Notes that a row is used, and does what the first packet of a tick is due. If a new way could not be written, the
 * row stays as old as it was, so that the next packet tries again. */
static __always_inline void decide_check(void *ctx, const struct packet *p, struct ct_entry *row, struct action *a)
{
	__u32 seen = a->to.seen;

	if (!decide_touch(p, row, &a->to))
		return;
	if (ranges_enforce_again(p, a, &seen))
		return;
	if (ways_are_due(&a->to, &seen) && decide_refresh(ctx, p, a)) {
		a->to.seen = seen;
		row->seen = seen;
		if (cfg.growing)
			ct_touch_growing(&p->flow, &a->to);
	}
}

/* Whether a packet begins a connection, as the direction of a row does. */
static __always_inline bool decide_begins(const struct packet *p, const struct ct_entry *row)
{
	return (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) ==
	       (row->flags & CT_REPLY ? TCP_SYN | TCP_ACK : TCP_SYN);
}

/* A client that begins anew where a flow has ended gets a backend that is there now. Forgets the flow then. So it
 * does if a server begins where both have ended: it answers somebody whose SYN was none of ours, as of a connection
 * that netfilter has given the port of the flow. A reply whose request has no row may be a moment ahead of that. */
static __noinline int decide_renew(const struct packet *p, const struct ct_entry *row)
{
	struct flow back = ct_back(&p->flow, row);
	struct ct_entry *other;
	bool ours;

	if (!decide_begins(p, row))
		return false;
	other = table_lookup(&back);
	ours = other && ct_leads(other, &p->flow);
	if (row->flags & CT_REPLY && (!ours || (row->state != CT_RESET && other->state <= CT_OPEN)))
		return false;
	if (ours && row->state <= CT_OPEN && other->state != CT_RESET)
		return false;
	table_delete(&p->flow);
	if (ours)
		table_delete(&back);
	return true;
}

/* Decides by a row of `ct`. False: there is none that counts. */
static __always_inline bool decide_known(void *ctx, const struct packet *p, struct action *a)
{
	bool torn = false;
	struct ct_entry *row;

	if (p->lacks & LACKS_CT)
		return false;
	row = ct_find(&ct, &p->flow, &a->to, &torn);
	if (torn)
		action_drop(a, REASON_FLOW_RACE);
	if (!row)
		return torn;
	if (ct_is_astray(&a->to)) {
		action_drop(a, REASON_SPOOFED);
		return true;
	}
	if (a->to.flags & CT_INSIDE || route_is_elsewhere(p, &a->to))
		return true;
	if (p->tcp_flags & TCP_SYN && decide_renew(p, &a->to))
		return false;
	a->verdict = VERDICT_REWRITE;
	decide_check(ctx, p, row, a);
	return true;
}

/* Decides about a packet with ports that came in. The action is all zero, and is the packet's to pass. False:
 * nothing is known of the packet's flow, which may begin with it. */
static __always_inline bool decide(void *ctx, const struct packet *p, struct action *a)
{
	return decide_known(ctx, p, a) || half_decide(ctx, p, a);
}

/* Whether a packet may begin anew. At a pod's device that is no answer: those here are to the node itself. It is
 * written like this for the sake of the stack. */
static __always_inline bool decide_may_renew(const struct packet *p, const struct ct_entry *row, enum ct_side side)
{
	return side == CT_FROM_POD ? !(row->flags & CT_REPLY) && first_is_syn(p) : p->tcp_flags & TCP_SYN;
}

/* Decides about a packet elsewhere, of a flow that is established. False: there is none that counts. Of
 * what leaves only what the node itself sends goes the way in its row, which has to be kept up. */
static __always_inline bool decide_known_at(void *ctx, const struct packet *p, struct action *a, enum ct_side side)
{
	bool torn = false;
	struct ct_entry *row = ct_find(&ct, &p->flow, &a->to, &torn);
	__u32 seen = a->to.seen;

	if (torn)
		action_drop(a, REASON_FLOW_RACE);
	if (!row)
		return torn;
	if (!ct_is_at(&a->to, side))
		return true;
	if (decide_may_renew(p, &a->to, side) && decide_renew(p, &a->to))
		return false;
	a->verdict = VERDICT_REWRITE;
	if (side == CT_LEAVING && a->to.flags & CT_NODE)
		decide_check(ctx, p, row, a);
	else if (decide_touch(p, row, &a->to))
		ranges_enforce_again(p, a, &seen);
	return true;
}

/* The same of one that is not. */
static __always_inline bool decide_half_at(void *ctx, const struct packet *p, struct action *a, enum ct_side side)
{
	bool torn = false;
	struct ct_entry *row = ct_find(&ct_half, &p->flow, &a->to, &torn);

	if (torn)
		action_drop(a, REASON_FLOW_RACE);
	if (!row)
		return torn;
	if (!ct_is_at(&a->to, side) || ranges_enforce(p, a))
		return true;
	half_touch(ctx, p, row, a);
	if (!(a->to.flags & CT_REPLY))
		return half_request(ctx, p, a);
	a->verdict = VERDICT_REWRITE;
	half_answered(p, &a->to);
	return true;
}

/* Decides about a packet elsewhere than where it came in: as it leaves the node, what a backend on this node
 * answers is translated, and what a pod of this node sends to the outside, or the node itself to services; at a
 * pod's device, what the pod sends to services and gets from them. False: nothing is known of the packet's flow.
 * What has a row of another place passes, and the action then has the row. */
static __always_inline bool decide_at(void *ctx, const struct packet *p, struct action *a, enum ct_side side)
{
	return decide_known_at(ctx, p, a, side) || decide_half_at(ctx, p, a, side);
}
