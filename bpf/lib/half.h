/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the flows that are not established: any flood may evict their rows at any
 * moment. So a request is forwarded only while the row of its reply exists too; otherwise the port
 * that identifies the reply may already belong to another flow. */
#pragma once

#include "direct.h"
#include "ways.h"

/* The result of an attempt to establish a flow. */
enum half_outcome {
	HALF_STAYS, /* a row was evicted, or `ct` is full */
	HALF_MOVED,
	HALF_LOST, /* another flow has the reply's key */
};

/* Drops a packet that cannot belong to the flow whose row it has: one of a pod or of this node that
 * came in from outside, or a reply that another node has forwarded, as nodes only forward what
 * clients send. */
static __always_inline bool half_refuses(const struct packet *p, struct action *a)
{
	if (ct_is_astray(&a->to))
		action_drop(a, REASON_SPOOFED);
	else if ((p->is_unwrapped || p->is_returned) && a->to.flags & CT_REPLY)
		action_drop(a, REASON_STRAY);
	else
		return false;
	return true;
}

static __always_inline int half_forget(const struct flow *flow, const struct flow *back)
{
	__u32 gone = !bpf_map_delete_elem(&ct_half, flow);

	gone += !bpf_map_delete_elem(&ct_half, back);
	turnover_deleted(LRU_CT_HALF, gone);
	return 0;
}

/* Moves the reply's row to `ct`, where no flood can evict it. A program that claims a flow writes
 * `ct_half` and then looks into `ct`; here it is the other way round, so at least one of the two
 * sees the other. */
static __always_inline int half_move_reply(const struct packet *p, const struct flow *back, struct ct_entry *reply)
{
	int err = table_insert(back, reply);
	struct ct_entry *known;

	if (err == -EEXIST) {
		known = table_lookup(back);
		return known && ct_leads(known, &p->flow) ? HALF_MOVED : HALF_LOST;
	}
	if (err)
		return HALF_STAYS;
	known = bpf_map_lookup_elem(&ct_half, back);
	if (!known || ct_leads(known, &p->flow))
		return HALF_MOVED;
	table_delete(back);
	return HALF_LOST;
}

static __always_inline void half_count(void)
{
	__u32 zero = 0;
	__u64 *opened = bpf_map_lookup_elem(&ct_opened, &zero);

	if (opened)
		(*opened)++;
}

/* Moves both rows of a flow. */
static __noinline int half_promote(const struct packet *p, struct action *a)
{
	struct flow back = ct_back(&p->flow, &a->to);
	struct ct_entry reply;
	bool torn = false;
	int outcome;

	if (!ct_find(&ct_half, &back, &reply, &torn) || !ct_leads(&reply, &p->flow))
		return 0;
	reply.state = CT_OPEN;
	/* what the client has just acknowledged; an SCTP server shows its tag with its next packet */
	reply.seq_hi = p->flow.proto == IPPROTO_TCP ? seq_half(p->ack) : 0;
	a->to.seq_hi = packet_shakes_hands(p) ? seq_of(p) : 0;
	outcome = half_move_reply(p, &back, &reply);
	if (outcome == HALF_LOST) {
		ct_half_delete(&p->flow);
		return action_drop(a, REASON_FLOW_RACE);
	}
	if (packet_shakes_hands(p))
		a->to.seen = ways_opened(ct_now());
	a->to.state = p->tcp_flags & TCP_FIN ? CT_CLOSING : CT_OPEN;
	if (outcome == HALF_MOVED && table_write(&p->flow, &a->to)) {
		table_delete(&back);
		outcome = HALF_STAYS;
	}
	if (outcome == HALF_MOVED) {
		half_count();
		return half_forget(&p->flow, &back);
	}
	a->reason = REASON_FLOWS_FULL;
	return 0;
}

/* What a client that has seen a reply will send: the next sequence number, or the requested SCTP
 * tag. Zero: an SCTP reply that requests no tag, so the association is older than the row. */
static __always_inline __u32 half_expected(const struct packet *p)
{
	return bpf_ntohl(p->seq) + (p->flow.proto == IPPROTO_TCP && p->tcp_flags & TCP_SYN);
}

/* The backend has replied: stores in the request's row what the client has to acknowledge. A client
 * with a forged address has not seen it. */
static __noinline int half_answered(const struct packet *p, const struct ct_entry *reply)
{
	struct flow request = ct_back(&p->flow, reply);
	struct ct_entry *row;

	row = bpf_map_lookup_elem(&ct_half, &request);
	if (!row || !ct_leads(row, &p->flow))
		return 0;
	if (p->tcp_flags & TCP_RST)
		return seq_refuses(p, row) ? half_forget(&p->flow, &request) : 0;
	if (row->state == CT_ANSWERED && !(p->tcp_flags & TCP_SYN))
		return 0;
	if (packet_shakes_hands(p))
		row->seen = half_expected(p);
	row->state = CT_ANSWERED;
	return 0;
}

static __always_inline bool half_proves(const struct packet *p, const struct ct_entry *row)
{
	if (row->state != CT_ANSWERED)
		return false;
	if (!packet_shakes_hands(p))
		return true;
	if (p->flow.proto == IPPROTO_SCTP)
		return !(p->tcp_flags & TCP_RST) && (!row->seen || bpf_ntohl(p->ack) == row->seen);
	return (p->tcp_flags & (TCP_ACK | TCP_RST)) == TCP_ACK && bpf_ntohl(p->ack) - row->seen < CT_PROOF_WINDOW;
}

/* Who has the key of the reply. */
enum half_owner {
	HALF_NOBODY,
	HALF_OURS,
	HALF_ANOTHER,
};

static __noinline int half_owner(const struct packet *p, const struct ct_entry *there)
{
	struct flow back = ct_back(&p->flow, there);
	struct ct_entry *reply = bpf_map_lookup_elem(&ct_half, &back);

	if (!reply)
		return HALF_NOBODY;
	return ct_leads(reply, &p->flow) ? HALF_OURS : HALF_ANOTHER;
}

static __noinline int half_reset(const struct packet *p, const struct ct_entry *there)
{
	struct flow back = ct_back(&p->flow, there);

	return half_forget(&p->flow, &back);
}

/* Handles a request of a flow in `ct_half`. False: the flow is no longer there. If the reply's row
 * was evicted it is claimed again, before another flow can take it. */
static __always_inline bool half_request(void *ctx, const struct packet *p, struct action *a)
{
	int owner = half_owner(p, &a->to);

	if (owner == HALF_ANOTHER || (owner == HALF_NOBODY && !first_claim(ctx, p, &a->to))) {
		ct_half_delete(&p->flow);
		return false;
	}
	a->verdict = VERDICT_REWRITE;
	if (p->tcp_flags & TCP_RST && seq_gives_up(p, &a->to))
		half_reset(p, &a->to);
	else if (half_proves(p, &a->to))
		half_promote(p, a);
	return true;
}

/* Looks the route of a flow up again: a flow of datagrams that nobody answers is never established,
 * and yet goes on. */
static __noinline int half_refresh(void *ctx, const struct packet *p, struct action *a)
{
	if (!ways_refresh(ctx, p, &a->to))
		return 0;
	return bpf_map_update_elem(&ct_half, &p->flow, &a->to, BPF_EXIST);
}

/* Marks a row of `ct_half` as used, unless its `seen` is no time, and refreshes its route if that
 * is due. As in `ct`, a row whose new route cannot be written keeps its old `seen`. */
static __always_inline void half_touch(void *ctx, const struct packet *p, struct ct_entry *row, struct action *a)
{
	__u32 seen = a->to.seen;

	if (packet_shakes_hands(p) && !(a->to.flags & CT_REPLY))
		return;
	a->to.seen = ct_now();
	if (a->to.seen == seen)
		return;
	row->seen = a->to.seen;
	if (ways_are_due(&a->to, &seen) && half_refresh(ctx, p, a))
		row->seen = seen;
}

/* Decides by a row of `ct_half`. False: there is no valid one. */
static __always_inline bool half_decide(void *ctx, const struct packet *p, struct action *a)
{
	bool torn = false;
	struct ct_entry *row;

	if (p->lacks & LACKS_HALF)
		return false;
	row = ct_find(&ct_half, &p->flow, &a->to, &torn);
	if (torn)
		action_drop(a, REASON_FLOW_RACE);
	if (!row)
		return torn;
	if (half_refuses(p, a))
		return true;
	if (a->to.flags & CT_INSIDE || route_is_elsewhere(p, &a->to))
		return true;
	if (a->to.flags & CT_DIRECT)
		return direct_decide(ctx, p, row, a);
	if (ranges_enforce(p, a))
		return true;
	half_touch(ctx, p, row, a);
	/* because of the new route; if this program forgot the flow, tc would not find it */
	if (route_is_elsewhere(p, &a->to))
		return true;
	if (!(a->to.flags & CT_REPLY))
		return half_request(ctx, p, a);
	a->verdict = VERDICT_REWRITE;
	half_answered(p, &a->to);
	return true;
}
