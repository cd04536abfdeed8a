/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains flows to backends on other nodes that answer their clients themselves: direct server return.
 *
 * Who forwards such a flow never sees an answer, so there is one row, and no proof that the client is there: the
 * row stays in `ct_half`. If it is pushed out, the next packet chooses again, from the same tables and by the same
 * hash; and so does another node that the network gives the flow to. Every packet says what the client dialled, so
 * the backend's node need not have seen the one before. See wrap.h for how, and unwrap.h for that node. Nearly all
 * of them take the short way, see plain.h. */
#pragma once

#include "first.h"
#include "ways.h"

/* Asks again for the way of a flow. */
static __noinline int direct_refresh(void *ctx, const struct packet *p, struct action *a)
{
	if (!ways_refresh(ctx, p, &a->to))
		return 0;
	return bpf_map_update_elem(&ct_half, &p->flow, &a->to, BPF_EXIST);
}

/* Whether a packet ends its flow, whose client may not have it any more: what may begin one is judged each time. */
static __always_inline bool direct_cuts(const struct packet *p, struct action *a, __u32 now)
{
	__u32 seen = a->to.seen;

	if (p->is_unwrapped || first_is_syn(p) || a->to.state < CT_OPEN)
		return ranges_enforce(p, a);
	a->to.seen = now;
	return seen != now && ranges_enforce_again(p, a, &seen);
}

/* Decides by the row of such a flow. False: it is over, or what came is from another node, which has chosen for
 * itself, and is not forwarded twice. */
static __noinline int direct_decide(void *ctx, const struct packet *p, struct ct_entry *row, struct action *a)
{
	__u32 seen = a->to.seen, now = ct_now();
	__u8 state = first_direct_state(p, a->to.state);

	if (direct_cuts(p, a, now))
		return true;
	if (p->is_unwrapped || (first_is_syn(p) && a->to.state > CT_OPEN)) {
		ct_half_delete(&p->flow);
		return false;
	}
	a->verdict = VERDICT_REWRITE;
	a->is_first = a->to.state == CT_ANSWERED && first_is_begun(p);
	if (state != a->to.state) {
		a->to.state = state;
		row->state = state;
	}
	if (seen == now || (first_is_syn(p) && state != CT_NEW))
		return true;
	a->to.seen = now;
	row->seen = now;
	if (ways_are_due(&a->to, &seen) && direct_refresh(ctx, p, a))
		row->seen = seen;
	return true;
}
