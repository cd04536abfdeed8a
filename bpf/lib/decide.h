/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the decision about a packet. It writes no packet, and reads none by its
 * context: that is only passed on to bpf_fib_lookup. */
#pragma once

#include "pending.h"

/* Looks the route of an established flow up again. */
static __noinline int decide_refresh(void *ctx, const struct packet *p, struct action *a)
{
	return route_epoch_refresh(ctx, p, &a->to) ? table_replace(&p->flow, &a->to) : 0;
}

/* Reports whether a packet opens a connection, for the direction of a row. */
static __always_inline bool decide_begins(const struct packet *p, const struct ct_entry *row)
{
	return (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) ==
	       (row->flags & CT_REPLY ? TCP_SYN | TCP_ACK : TCP_SYN);
}

/* The state of a direction after a packet. One that seems forged changes nothing, and neither does a
 * SYN, whose sequence number is that of another connection. */
static __always_inline __u8 decide_state(const struct packet *p, struct ct_entry *row, struct ct_entry *to)
{
	__u8 state = to->state;

	if (decide_begins(p, row))
		seq_note_syn(p, row, to);
	if (packet_is_syn(p) || !seq_fits(p, row, to))
		return state;
	if (p->tcp_flags & TCP_RST)
		return CT_RESET;
	if (p->tcp_flags & TCP_FIN)
		return CT_CLOSING;
	return state == CT_RESET ? CT_OPEN : state;
}

/* Marks a row of `ct` as used. `to` is its copy. True: for the first time in this tick. */
static __always_inline bool decide_touch(const struct packet *p, struct ct_entry *row, struct ct_entry *to)
{
	__u8 state = decide_state(p, row, to);
	__u32 now = ct_now();

	if (state != to->state) {
		to->state = state;
		row->state = state;
		if (cfg.growing)
			ct_touch_growing(&p->flow, to);
	}
	if (to->seen == now || packet_is_syn(p))
		return false;
	to->seen = now;
	row->seen = now;
	if (cfg.growing)
		ct_touch_growing(&p->flow, to);
	return true;
}

/* Marks a row as used, and does what is due with the first packet of a tick. If a new route cannot
 * be written, the row keeps its old `seen`, so that the next packet tries again. */
static __always_inline void decide_check(void *ctx, const struct packet *p, struct ct_entry *row, struct action *a)
{
	__u32 seen = a->to.seen;

	if (!decide_touch(p, row, &a->to))
		return;
	if (ranges_enforce_again(p, a, &seen))
		return;
	if (route_epoch_is_due(&a->to, &seen) && decide_refresh(ctx, p, a)) {
		a->to.seen = seen;
		row->seen = seen;
		if (cfg.growing)
			ct_touch_growing(&p->flow, &a->to);
	}
}

/* If a client opens a new connection where a flow has ended, forgets that flow, so that the client
 * gets a current backend. The same if a server does where both directions have ended: its SYN-ACK
 * replies to a SYN that was none of ours, for example of a connection to which netfilter gave the
 * port of the flow. A reply's row without a request's row is kept: the latter is written a moment
 * later. */
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

/* Decides by a row of `ct`. False: there is no valid one. */
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
	if (pending_refuses(p, a))
		return true;
	if (a->to.flags & CT_POD_FLOW || route_is_elsewhere(p, &a->to))
		return true;
	if (p->tcp_flags & TCP_SYN && decide_renew(p, &a->to))
		return false;
	a->verdict = VERDICT_REWRITE;
	decide_check(ctx, p, row, a);
	return true;
}

/* Decides about a packet with ports that came in. `a` must be zero, which means to pass the packet.
 * False: nothing is known of the packet's flow, which may begin with it. */
static __always_inline bool decide(void *ctx, const struct packet *p, struct action *a)
{
	return decide_known(ctx, p, a) || pending_decide(ctx, p, a);
}

/* Reports whether a packet may open a new connection. At a pod's device a SYN-ACK may not: there it
 * answers the node itself. Written as one expression to save stack. */
static __always_inline bool decide_may_renew(const struct packet *p, const struct ct_entry *row, enum ct_side side)
{
	return side == CT_FROM_POD ? !(row->flags & CT_REPLY) && packet_is_syn(p) : p->tcp_flags & TCP_SYN;
}

/* Decides by a row of an established flow where packets do not come in from outside. False: there
 * is no valid one. Of leaving packets, only the node's own use the route in their row, so only that
 * is refreshed. */
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

/* Reports whether what would leave with a pod's address, as a reply, opens a connection. Whoever sent to
 * the pod's port may have wanted to see that address. */
static __always_inline bool decide_is_lured(const struct packet *p, const struct ct_entry *row)
{
	return cfg.masquerade && row->flags & CT_REPLY && packet_is_syn(p) &&
	       addr_equal(&row->saddr, &p->flow.saddr);
}

/* The same for a flow that is not established. */
static __always_inline bool decide_pending_at(void *ctx, const struct packet *p, struct action *a,
					      enum ct_side side)
{
	bool torn = false;
	struct ct_entry *row = ct_find(&ct_pending, &p->flow, &a->to, &torn);

	if (torn)
		action_drop(a, REASON_FLOW_RACE);
	if (!row)
		return torn;
	if (!ct_is_at(&a->to, side) || ranges_enforce(p, a))
		return true;
	if (side == CT_LEAVING && decide_is_lured(p, &a->to))
		return false;
	pending_touch(ctx, p, row, a);
	if (!(a->to.flags & CT_REPLY))
		return pending_request(ctx, p, a);
	a->verdict = VERDICT_REWRITE;
	pending_answered(p, &a->to);
	return true;
}

/* Decides about a packet other than where it came in. Where packets leave the node, these are
 * replies of local backends, packets of pods to the outside, and the node's own packets to
 * services. At a pod's device, these are the pod's packets to services and their replies. False:
 * nothing is known of the packet's flow. A packet whose row is translated elsewhere passes, and `a`
 * has the row. */
static __always_inline bool decide_at(void *ctx, const struct packet *p, struct action *a, enum ct_side side)
{
	return decide_known_at(ctx, p, a, side) || decide_pending_at(ctx, p, a, side);
}
