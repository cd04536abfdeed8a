/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the flows that are not established: any flood may evict their rows at any
 * moment. So a request is forwarded only while the row of its reply exists too; otherwise the port
 * that identifies the reply may already belong to another flow. */
#pragma once

#include "dsr.h"
#include "route_epoch.h"

/* The result of an attempt to establish a flow. */
enum pending_outcome {
	PENDING_STAYS, /* a row was evicted, or `ct` is full */
	PENDING_MOVED,
	PENDING_LOST, /* another flow has the reply's key */
};

/* Drops a packet that cannot belong to the flow whose row it has: one of a pod or of this node that
 * came in from outside, or a reply that another node has forwarded, as nodes only forward what
 * clients send. */
static __always_inline bool pending_refuses(const struct packet *p, struct action *a)
{
	if (ct_is_astray(&a->to))
		action_drop(a, REASON_SPOOFED);
	else if ((p->is_forwarded || p->is_returned) && a->to.flags & CT_REPLY)
		action_drop(a, REASON_STRAY);
	else
		return false;
	return true;
}

static __always_inline int pending_forget(const struct flow *flow, const struct flow *back)
{
	__u32 gone = !bpf_map_delete_elem(&ct_pending, flow);

	gone += !bpf_map_delete_elem(&ct_pending, back);
	lru_stats_deleted(LRU_CT_PENDING, gone);
	return 0;
}

/* Moves the reply's row to `ct`, where no flood can evict it. A program that claims a flow writes
 * `ct_pending` and then looks into `ct`; here it is the other way round, so at least one of the two
 * sees the other. */
static __always_inline int pending_move_reply(const struct packet *p, const struct flow *back,
					      struct ct_entry *reply)
{
	int err = table_insert(back, reply);
	struct ct_entry *known;

	if (err == -EEXIST) {
		known = table_lookup(back);
		return known && ct_leads(known, &p->flow) ? PENDING_MOVED : PENDING_LOST;
	}
	if (err)
		return PENDING_STAYS;
	known = bpf_map_lookup_elem(&ct_pending, back);
	if (!known || ct_leads(known, &p->flow))
		return PENDING_MOVED;
	table_delete(back);
	return PENDING_LOST;
}

static __always_inline void pending_count(void)
{
	__u32 zero = 0;
	__u64 *opened = bpf_map_lookup_elem(&ct_opened, &zero);

	if (opened)
		(*opened)++;
}

/* Moves both rows of a flow. */
static __noinline int pending_promote(const struct packet *p, struct action *a)
{
	struct flow back = ct_back(&p->flow, &a->to);
	struct ct_entry reply;
	bool torn = false;
	int outcome;

	if (!ct_find(&ct_pending, &back, &reply, &torn) || !ct_leads(&reply, &p->flow))
		return 0;
	reply.state = CT_OPEN;
	/* what the client has just acknowledged; an SCTP server shows its tag with its next packet */
	reply.seq_hi = p->flow.proto == IPPROTO_TCP ? seq_high(p->ack) : 0;
	a->to.seq_hi = packet_shakes_hands(p) ? seq_of(p) : 0;
	outcome = pending_move_reply(p, &back, &reply);
	if (outcome == PENDING_LOST) {
		ct_pending_delete(&p->flow);
		return action_drop(a, REASON_FLOW_RACE);
	}
	if (packet_shakes_hands(p))
		a->to.seen = route_epoch_opened(ct_now());
	a->to.state = p->tcp_flags & TCP_FIN ? CT_CLOSING : CT_OPEN;
	if (outcome == PENDING_MOVED && table_write(&p->flow, &a->to)) {
		table_delete(&back);
		outcome = PENDING_STAYS;
	}
	if (outcome == PENDING_MOVED) {
		pending_count();
		return pending_forget(&p->flow, &back);
	}
	a->reason = REASON_FLOWS_FULL;
	return 0;
}

/* What a client that has seen a reply will send: the next sequence number, or the requested SCTP
 * tag. Zero: an SCTP reply that requests no tag, so the association is older than the row. */
static __always_inline __u32 pending_expected(const struct packet *p)
{
	return bpf_ntohl(p->seq) + (p->flow.proto == IPPROTO_TCP && p->tcp_flags & TCP_SYN);
}

/* The backend has replied: stores in the request's row what the client has to acknowledge. A client
 * with a forged address has not seen it. */
static __noinline int pending_answered(const struct packet *p, const struct ct_entry *reply)
{
	struct flow request = ct_back(&p->flow, reply);
	struct ct_entry *row;

	row = bpf_map_lookup_elem(&ct_pending, &request);
	if (!row || !ct_leads(row, &p->flow))
		return 0;
	if (p->tcp_flags & TCP_RST)
		return seq_refuses(p, row) ? pending_forget(&p->flow, &request) : 0;
	if (row->state == CT_ANSWERED && !(p->tcp_flags & TCP_SYN))
		return 0;
	if (packet_shakes_hands(p))
		row->seen = pending_expected(p);
	row->state = CT_ANSWERED;
	return 0;
}

static __always_inline bool pending_proves(const struct packet *p, const struct ct_entry *row)
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
enum pending_owner {
	PENDING_NOBODY,
	PENDING_OURS,
	PENDING_ANOTHER,
};

static __noinline int pending_owner(const struct packet *p, const struct ct_entry *there)
{
	struct flow back = ct_back(&p->flow, there);
	struct ct_entry *reply = bpf_map_lookup_elem(&ct_pending, &back);

	if (!reply)
		return PENDING_NOBODY;
	return ct_leads(reply, &p->flow) ? PENDING_OURS : PENDING_ANOTHER;
}

static __noinline int pending_reset(const struct packet *p, const struct ct_entry *there)
{
	struct flow back = ct_back(&p->flow, there);

	return pending_forget(&p->flow, &back);
}

/* Handles a request of a flow in `ct_pending`. False: the flow is no longer there. If the reply's row
 * was evicted it is claimed again, before another flow can take it. */
static __always_inline bool pending_request(void *ctx, const struct packet *p, struct action *a)
{
	int owner = pending_owner(p, &a->to);

	if (owner == PENDING_ANOTHER || (owner == PENDING_NOBODY && !new_flow_claim(ctx, p, &a->to))) {
		ct_pending_delete(&p->flow);
		return false;
	}
	a->verdict = VERDICT_REWRITE;
	if (p->tcp_flags & TCP_RST && seq_gives_up(p, &a->to))
		pending_reset(p, &a->to);
	else if (pending_proves(p, &a->to))
		pending_promote(p, a);
	return true;
}

/* Looks the route of a flow up again: a flow of datagrams that nobody answers is never established,
 * and yet goes on. */
static __noinline int pending_refresh(void *ctx, const struct packet *p, struct action *a)
{
	if (!route_epoch_refresh(ctx, p, &a->to))
		return 0;
	return bpf_map_update_elem(&ct_pending, &p->flow, &a->to, BPF_EXIST);
}

/* Marks a row of `ct_pending` as used, unless its `seen` is no time, and refreshes its route if that
 * is due. As in `ct`, a row whose new route cannot be written keeps its old `seen`. */
static __always_inline void pending_touch(void *ctx, const struct packet *p, struct ct_entry *row, struct action *a)
{
	__u32 seen = a->to.seen;

	if (packet_shakes_hands(p) && !(a->to.flags & CT_REPLY))
		return;
	a->to.seen = ct_now();
	if (a->to.seen == seen)
		return;
	row->seen = a->to.seen;
	if (route_epoch_is_due(&a->to, &seen) && pending_refresh(ctx, p, a))
		row->seen = seen;
}

/* Decides by a row of `ct_pending`. False: there is no valid one. */
static __always_inline bool pending_decide(void *ctx, const struct packet *p, struct action *a)
{
	bool torn = false;
	struct ct_entry *row;

	if (p->lacks & LACKS_PENDING)
		return false;
	row = ct_find(&ct_pending, &p->flow, &a->to, &torn);
	if (torn)
		action_drop(a, REASON_FLOW_RACE);
	if (!row)
		return torn;
	if (pending_refuses(p, a))
		return true;
	if (a->to.flags & CT_POD_FLOW || route_is_elsewhere(p, &a->to))
		return true;
	if (a->to.flags & CT_DSR)
		return dsr_decide(ctx, p, row, a);
	if (ranges_enforce(p, a))
		return true;
	pending_touch(ctx, p, row, a);
	/* because of the new route; if this program forgot the flow, tc would not find it */
	if (route_is_elsewhere(p, &a->to))
		return true;
	if (!(a->to.flags & CT_REPLY))
		return pending_request(ctx, p, a);
	a->verdict = VERDICT_REWRITE;
	pending_answered(p, &a->to);
	return true;
}
