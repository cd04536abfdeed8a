/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the decision about a packet of a known flow, established or pending. It writes no
 * packet, and reads none by its context: that is only passed on to bpf_fib_lookup. */
#pragma once

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "config.h"
#include "count.h"
#include "dsr_encap.h"
#include "flow.h"
#include "maps.h"
#include "packet.h"
#include "ranges.h"
#include "reason.h"
#include "route.h"
#include "seq.h"
#include "types.h"

/* Claims the key of the reply again, as it was. This is rare, so the route is looked up without the
 * cache. */
static __noinline int decide_claim_reply(void *ctx, const struct packet *p, const struct ct_entry *there)
{
	struct flow reply = flow_reverse(&p->flow, there);
	struct ct_entry row;

	flow_reply_row(&p->flow, there, &row);
	if (!flow_is(&row, FLOW_STACK))
		route_ask(ctx, p, &row);
	flow_finish(&reply, &row);
	return flow_claim(&reply, &row);
}

/* The flows that are not established: any flood may evict their rows at any moment. So a request is
 * forwarded only while the row of its reply exists too; otherwise the port that identifies the
 * reply may already belong to another flow. */

/* The result of an attempt to establish a flow. */
enum pending_outcome {
	PENDING_STAYS, /* a row was evicted, or `ct` is full */
	PENDING_MOVED,
	PENDING_LOST, /* another flow has the reply's key */
};

/* Drops a packet that cannot belong to the flow whose row it has: one of a pod or of this node that
 * came in from outside, or a reply that another node has forwarded, as nodes only forward what
 * clients send. */
static __always_inline bool decide_pending_refuses(const struct packet *p, struct action *a)
{
	if (flow_is_astray(&a->to))
		flow_drop(a, REASON_SPOOFED);
	else if ((p->is_forwarded || p->is_returned) && a->to.kind & FLOW_REPLY)
		flow_drop(a, REASON_STRAY);
	else
		return false;
	return true;
}

static __always_inline int decide_pending_forget(const struct flow *flow, const struct flow *back)
{
	__u32 gone = !bpf_map_delete_elem(&ct_pending, flow);

	gone += !bpf_map_delete_elem(&ct_pending, back);
	count_lru_deleted(LRU_CT_PENDING, gone);
	return 0;
}

/* Moves the reply's row to `ct`, where no flood can evict it. A program that claims a flow writes
 * `ct_pending` and then looks into `ct`; here it is the other way round, so at least one of the two
 * sees the other. */
static __always_inline int decide_pending_move_reply(const struct packet *p, const struct flow *back,
						     struct ct_entry *reply)
{
	int err = flow_table_insert(back, reply);
	struct ct_entry *known;

	if (err == -EEXIST) {
		known = flow_table_lookup(back);
		return known && flow_leads(known, &p->flow) ? PENDING_MOVED : PENDING_LOST;
	}
	if (err)
		return PENDING_STAYS;
	known = bpf_map_lookup_elem(&ct_pending, back);
	if (!known || flow_leads(known, &p->flow))
		return PENDING_MOVED;
	flow_table_delete(back);
	return PENDING_LOST;
}

static __always_inline void decide_pending_count(void)
{
	__u32 zero = 0;
	__u64 *opened = bpf_map_lookup_elem(&ct_opened, &zero);

	if (opened)
		(*opened)++;
}

/* Moves both rows of a flow. */
static __noinline int decide_pending_promote(const struct packet *p, struct action *a)
{
	struct flow back = flow_reverse(&p->flow, &a->to);
	struct ct_entry reply;
	bool torn = false;
	int outcome;

	if (!flow_find(&ct_pending, &back, &reply, &torn) || !flow_leads(&reply, &p->flow))
		return 0;
	reply.state = CT_OPEN;
	/* what the client has just acknowledged; an SCTP server shows its tag with its next packet */
	reply.seq_hi = p->flow.proto == IPPROTO_TCP ? seq_high(p->ack) : 0;
	a->to.seq_hi = packet_shakes_hands(p) ? seq_of(p) : 0;
	outcome = decide_pending_move_reply(p, &back, &reply);
	if (outcome == PENDING_LOST) {
		flow_pending_delete(&p->flow);
		return flow_drop(a, REASON_FLOW_RACE);
	}
	if (packet_shakes_hands(p))
		a->to.seen = route_epoch_opened(flow_now());
	a->to.state = p->tcp_flags & TCP_FIN ? CT_CLOSING : CT_OPEN;
	if (outcome == PENDING_MOVED && flow_table_write(&p->flow, &a->to)) {
		flow_table_delete(&back);
		outcome = PENDING_STAYS;
	}
	if (outcome == PENDING_MOVED) {
		decide_pending_count();
		return decide_pending_forget(&p->flow, &back);
	}
	a->reason = REASON_FLOWS_FULL;
	return 0;
}

/* What a client that has seen a reply will send: the next sequence number, or the requested SCTP
 * tag. Zero: an SCTP reply that requests no tag, so the association is older than the row. */
static __always_inline __u32 decide_pending_expected(const struct packet *p)
{
	return bpf_ntohl(p->seq) + (p->flow.proto == IPPROTO_TCP && p->tcp_flags & TCP_SYN);
}

/* The backend has replied: stores in the request's row what the client has to acknowledge. A client
 * with a forged address has not seen it. */
static __noinline int decide_pending_answered(const struct packet *p, const struct ct_entry *reply)
{
	struct flow request = flow_reverse(&p->flow, reply);
	struct ct_entry *row;

	row = bpf_map_lookup_elem(&ct_pending, &request);
	if (!row || !flow_leads(row, &p->flow))
		return 0;
	if (p->tcp_flags & TCP_RST)
		return seq_refuses(p, row) ? decide_pending_forget(&p->flow, &request) : 0;
	if (row->state == CT_ANSWERED && !(p->tcp_flags & TCP_SYN))
		return 0;
	if (packet_shakes_hands(p))
		row->expected_ack = decide_pending_expected(p);
	row->state = CT_ANSWERED;
	return 0;
}

static __always_inline bool decide_pending_proves(const struct packet *p, const struct ct_entry *row)
{
	if (row->state != CT_ANSWERED)
		return false;
	if (!packet_shakes_hands(p))
		return true;
	if (p->flow.proto == IPPROTO_SCTP)
		return !(p->tcp_flags & TCP_RST) && (!row->expected_ack || bpf_ntohl(p->ack) == row->expected_ack);
	return (p->tcp_flags & (TCP_ACK | TCP_RST)) == TCP_ACK &&
	       bpf_ntohl(p->ack) - row->expected_ack < CT_PROOF_WINDOW;
}

/* Who has the key of the reply. */
enum pending_owner {
	PENDING_NOBODY,
	PENDING_OURS,
	PENDING_ANOTHER,
};

static __noinline int decide_pending_owner(const struct packet *p, const struct ct_entry *there)
{
	struct flow back = flow_reverse(&p->flow, there);
	struct ct_entry *reply = bpf_map_lookup_elem(&ct_pending, &back);

	if (!reply)
		return PENDING_NOBODY;
	return flow_leads(reply, &p->flow) ? PENDING_OURS : PENDING_ANOTHER;
}

static __noinline int decide_pending_reset(const struct packet *p, const struct ct_entry *there)
{
	struct flow back = flow_reverse(&p->flow, there);

	return decide_pending_forget(&p->flow, &back);
}

/* Handles a request of a flow in `ct_pending`. False: the flow is no longer there. If the reply's row
 * was evicted it is claimed again, before another flow can take it. */
static __always_inline bool decide_pending_request(void *ctx, const struct packet *p, struct action *a)
{
	int owner = decide_pending_owner(p, &a->to);

	if (owner == PENDING_ANOTHER || (owner == PENDING_NOBODY && !decide_claim_reply(ctx, p, &a->to))) {
		flow_pending_delete(&p->flow);
		return false;
	}
	a->verdict = VERDICT_REWRITE;
	if (p->tcp_flags & TCP_RST && seq_gives_up(p, &a->to))
		decide_pending_reset(p, &a->to);
	else if (decide_pending_proves(p, &a->to))
		decide_pending_promote(p, a);
	return true;
}

/* Looks the route of a flow up again: a flow of datagrams that nobody answers is never established,
 * and yet goes on. */
static __noinline int decide_pending_refresh(void *ctx, const struct packet *p, struct action *a)
{
	if (!route_epoch_refresh(ctx, p, &a->to))
		return 0;
	return bpf_map_update_elem(&ct_pending, &p->flow, &a->to, BPF_EXIST);
}

/* Marks a row of `ct_pending` as used, unless its `seen` is no time, and refreshes its route if that
 * is due. As in `ct`, a row whose new route cannot be written keeps its old `seen`. */
static __always_inline void decide_pending_touch(void *ctx, const struct packet *p, struct ct_entry *row,
						 struct action *a)
{
	__u32 seen = a->to.seen;

	if (packet_shakes_hands(p) && !(a->to.kind & FLOW_REPLY))
		return;
	a->to.seen = flow_now();
	if (a->to.seen == seen)
		return;
	row->seen = a->to.seen;
	if (route_epoch_is_due(&a->to, &seen) && decide_pending_refresh(ctx, p, a))
		row->seen = seen;
}

/* Decides by a row of `ct_pending`. False: there is no valid one. */
static __always_inline bool decide_pending_decide(void *ctx, const struct packet *p, struct action *a)
{
	bool torn = false;
	struct ct_entry *row;

	if (p->lacks & LACKS_PENDING)
		return false;
	row = flow_find(&ct_pending, &p->flow, &a->to, &torn);
	if (torn)
		flow_drop(a, REASON_FLOW_RACE);
	if (!row)
		return torn;
	if (decide_pending_refuses(p, a))
		return true;
	if (flow_is_of_pod(&a->to) || route_is_elsewhere(p, &a->to))
		return true;
	if (a->to.kind & FLOW_DSR)
		return dsr_decide(ctx, p, row, a);
	if (ranges_enforce(p, a))
		return true;
	decide_pending_touch(ctx, p, row, a);
	/* because of the new route; if this program forgot the flow, tc would not find it */
	if (route_is_elsewhere(p, &a->to))
		return true;
	if (!(a->to.kind & FLOW_REPLY))
		return decide_pending_request(ctx, p, a);
	a->verdict = VERDICT_REWRITE;
	decide_pending_answered(p, &a->to);
	return true;
}

/* Looks the route of an established flow up again. */
static __noinline int decide_refresh(void *ctx, const struct packet *p, struct action *a)
{
	return route_epoch_refresh(ctx, p, &a->to) ? flow_table_replace(&p->flow, &a->to) : 0;
}

/* Reports whether a packet opens a connection, for the direction of a row. */
static __always_inline bool decide_begins(const struct packet *p, const struct ct_entry *row)
{
	return (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) ==
	       (row->kind & FLOW_REPLY ? TCP_SYN | TCP_ACK : TCP_SYN);
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
	__u32 now = flow_now();

	if (state != to->state) {
		to->state = state;
		row->state = state;
		if (cfg.growing)
			flow_touch_growing(&p->flow, to);
	}
	if (to->seen == now || packet_is_syn(p))
		return false;
	to->seen = now;
	row->seen = now;
	if (cfg.growing)
		flow_touch_growing(&p->flow, to);
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
			flow_touch_growing(&p->flow, &a->to);
	}
}

/* If a client opens a new connection where a flow has ended, forgets that flow, so that the client
 * gets a current backend. The same if a server does where both directions have ended: its SYN-ACK
 * replies to a SYN that was none of ours, for example of a connection to which netfilter gave the
 * port of the flow. A reply's row without a request's row is kept: the latter is written a moment
 * later. */
static __noinline int decide_renew(const struct packet *p, const struct ct_entry *row)
{
	struct flow back = flow_reverse(&p->flow, row);
	struct ct_entry *other;
	bool ours;

	if (!decide_begins(p, row))
		return false;
	other = flow_table_lookup(&back);
	ours = other && flow_leads(other, &p->flow);
	if (row->kind & FLOW_REPLY && (!ours || (row->state != CT_RESET && other->state <= CT_OPEN)))
		return false;
	if (ours && row->state <= CT_OPEN && other->state != CT_RESET)
		return false;
	flow_table_delete(&p->flow);
	if (ours)
		flow_table_delete(&back);
	return true;
}

/* Decides by a row of `ct`. False: there is no valid one. */
static __always_inline bool decide_known(void *ctx, const struct packet *p, struct action *a)
{
	bool torn = false;
	struct ct_entry *row;

	if (p->lacks & LACKS_CT)
		return false;
	row = flow_find(&ct, &p->flow, &a->to, &torn);
	if (torn)
		flow_drop(a, REASON_FLOW_RACE);
	if (!row)
		return torn;
	if (decide_pending_refuses(p, a))
		return true;
	if (flow_is_of_pod(&a->to) || route_is_elsewhere(p, &a->to))
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
	return decide_known(ctx, p, a) || decide_pending_decide(ctx, p, a);
}

/* Reports whether a packet may open a new connection. At a pod's device a SYN-ACK may not: there it
 * answers the node itself. Written as one expression to save stack. */
static __always_inline bool decide_may_renew(const struct packet *p, const struct ct_entry *row,
					     enum flow_place side)
{
	return side == FLOW_FROM_POD ? !(row->kind & FLOW_REPLY) && packet_is_syn(p) : p->tcp_flags & TCP_SYN;
}

/* Decides by a row of an established flow where packets do not come in from outside. False: there
 * is no valid one. Of leaving packets, only the node's own use the route in their row, so only that
 * is refreshed. */
static __always_inline bool decide_known_at(void *ctx, const struct packet *p, struct action *a,
					    enum flow_place side)
{
	bool torn = false;
	struct ct_entry *row = flow_find(&ct, &p->flow, &a->to, &torn);
	__u32 seen = a->to.seen;

	if (torn)
		flow_drop(a, REASON_FLOW_RACE);
	if (!row)
		return torn;
	if (!flow_is(&a->to, side))
		return true;
	if (decide_may_renew(p, &a->to, side) && decide_renew(p, &a->to))
		return false;
	a->verdict = VERDICT_REWRITE;
	if (side == FLOW_LEAVES && flow_is_of_host(&a->to))
		decide_check(ctx, p, row, a);
	else if (decide_touch(p, row, &a->to))
		ranges_enforce_again(p, a, &seen);
	return true;
}

/* Reports whether what would leave with a pod's address, as a reply, opens a connection. Whoever sent to
 * the pod's port may have wanted to see that address. */
static __always_inline bool decide_is_lured(const struct packet *p, const struct ct_entry *row)
{
	return cfg.masquerade && row->kind & FLOW_REPLY && packet_is_syn(p) &&
	       addr_equal(&row->saddr, &p->flow.saddr);
}

/* The same for a flow that is not established. */
static __always_inline bool decide_pending_at(void *ctx, const struct packet *p, struct action *a,
					      enum flow_place side)
{
	bool torn = false;
	struct ct_entry *row = flow_find(&ct_pending, &p->flow, &a->to, &torn);

	if (torn)
		flow_drop(a, REASON_FLOW_RACE);
	if (!row)
		return torn;
	if (!flow_is(&a->to, side) || ranges_enforce(p, a))
		return true;
	if (side == FLOW_LEAVES && decide_is_lured(p, &a->to))
		return false;
	decide_pending_touch(ctx, p, row, a);
	if (!(a->to.kind & FLOW_REPLY))
		return decide_pending_request(ctx, p, a);
	a->verdict = VERDICT_REWRITE;
	decide_pending_answered(p, &a->to);
	return true;
}

/* Decides about a packet other than where it came in. Where packets leave the node, these are
 * replies of local backends, packets of pods to the outside, and the node's own packets to
 * services. At a pod's device, these are the pod's packets to services and their replies. False:
 * nothing is known of the packet's flow. A packet whose row is translated elsewhere passes, and `a`
 * has the row. */
static __always_inline bool decide_at(void *ctx, const struct packet *p, struct action *a, enum flow_place side)
{
	return decide_known_at(ctx, p, a, side) || decide_pending_at(ctx, p, a, side);
}
