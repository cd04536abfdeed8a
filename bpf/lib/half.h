/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the flows that are not established: what can be pushed out at any moment, by anybody. A
 * request therefore goes nowhere unless the row of its reply is there too, since else the port that the reply is
 * told by may be another flow's by now. */
#pragma once

#include "direct.h"
#include "ways.h"

/* What an attempt to establish a flow came to. */
enum half_outcome {
	HALF_STAYS, /* a row was pushed out, or there is no room */
	HALF_MOVED,
	HALF_LOST, /* another flow has the reply's */
};

static __always_inline int half_forget(const struct flow *flow, const struct flow *back)
{
	__u32 gone = !bpf_map_delete_elem(&ct_half, flow);

	gone += !bpf_map_delete_elem(&ct_half, back);
	turnover_deleted(LRU_CT_HALF, gone);
	return 0;
}

/* Puts the reply's row where no flood can push it out. Whoever claims a flow writes `ct_half` and then looks into
 * `ct`, and here it is the other way round: so of two at least one sees the other. */
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

/* What a client that has seen an answer will show: the number after it, or the tag that was asked for. Zero: the
 * answer of SCTP asks for none, so the association is older than the row. */
static __always_inline __u32 half_expected(const struct packet *p)
{
	return bpf_ntohl(p->seq) + (p->flow.proto == IPPROTO_TCP && p->tcp_flags & TCP_SYN);
}

/* The backend has spoken: the row of the request learns what the client has to acknowledge. Who only guesses at
 * addresses has not seen it. */
static __noinline int half_answered(const struct packet *p, const struct ct_entry *reply)
{
	struct flow request = ct_back(&p->flow, reply);
	struct ct_entry *row;

	if (p->tcp_flags & TCP_RST)
		return half_forget(&p->flow, &request);
	row = bpf_map_lookup_elem(&ct_half, &request);
	if (!row || !ct_leads(row, &p->flow) || (row->state == CT_ANSWERED && !(p->tcp_flags & TCP_SYN)))
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

/* Whose the reply's flow is. */
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

/* A request of a flow that is in `ct_half`. False: it is that no more. A reply that was pushed out is claimed
 * again, before anybody else has it. */
static __always_inline bool half_request(void *ctx, const struct packet *p, struct action *a)
{
	int owner = half_owner(p, &a->to);

	if (owner == HALF_ANOTHER || (owner == HALF_NOBODY && !first_claim(ctx, p, &a->to))) {
		ct_half_delete(&p->flow);
		return false;
	}
	a->verdict = VERDICT_REWRITE;
	if (p->tcp_flags & TCP_RST)
		half_reset(p, &a->to);
	else if (half_proves(p, &a->to))
		half_promote(p, a);
	return true;
}

/* Asks again for the way of a flow: one of datagrams that nobody answers is never established, and yet goes on. */
static __noinline int half_refresh(void *ctx, const struct packet *p, struct action *a)
{
	if (!ways_refresh(ctx, p, &a->to))
		return 0;
	return bpf_map_update_elem(&ct_half, &p->flow, &a->to, BPF_EXIST);
}

/* Notes in a row of `ct_half` that it is used, unless it has no time, and asks for its way if that is due. As in
 * `ct`, a new way that could not be written leaves the row as old as it was. */
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

/* Decides by a row of `ct_half`. False: there is none that counts. */
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
	if (ct_is_astray(&a->to)) {
		action_drop(a, REASON_SPOOFED);
		return true;
	}
	if (a->to.flags & CT_INSIDE || route_is_elsewhere(p, &a->to))
		return true;
	if (a->to.flags & CT_DIRECT)
		return direct_decide(ctx, p, row, a);
	if (ranges_enforce(p, a))
		return true;
	half_touch(ctx, p, row, a);
	if (route_is_elsewhere(p, &a->to)) /* since now; what is forgotten here, the other program would not find */
		return true;
	if (!(a->to.flags & CT_REPLY))
		return half_request(ctx, p, a);
	a->verdict = VERDICT_REWRITE;
	half_answered(p, &a->to);
	return true;
}
