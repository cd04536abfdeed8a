/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains flows to backends on other nodes that reply to their clients themselves:
 * direct server return. The node that forwards such a flow never sees a reply, so there is one row
 * and no proof that the client exists: the row stays in `ct_pending`. If it is evicted, the next
 * packet chooses again, from the same tables and by the same hash; so does another node that the
 * network routes the flow to. Every packet says what the client dialed, so the backend's node need
 * not have seen an earlier one. See dsr_encap.h for the encapsulation and dsr_ingress.h for the backend's
 * node. Nearly all packets take the fast path, see fastpath.h. */
#pragma once

#include "new_flow.h"
#include "route_epoch.h"

/* Looks the route of a flow up again. */
static __noinline int dsr_refresh(void *ctx, const struct packet *p, struct action *a)
{
	if (!route_epoch_refresh(ctx, p, &a->to))
		return 0;
	return bpf_map_update_elem(&ct_pending, &p->flow, &a->to, BPF_EXIST);
}

/* Drops a packet whose client is no longer in the source ranges, and ends its flow; true if it did.
 * A packet that may begin a flow is judged each time. */
static __always_inline bool dsr_cut_off(const struct packet *p, struct action *a, __u32 now)
{
	__u32 seen = a->to.seen;

	if (p->is_forwarded || packet_is_syn(p) || a->to.state < CT_OPEN)
		return ranges_enforce(p, a);
	a->to.seen = now;
	return seen != now && ranges_enforce_again(p, a, &seen);
}

/* The state of the client after a packet. One that seems forged changes nothing, see seq.h. This node
 * has no acknowledgments to compare: if the network has led the flow past it for a while, the end is
 * not recognized, and the row lives as long as that of an idle connection. */
static __always_inline __u8 dsr_state(const struct packet *p, struct ct_entry *row, struct ct_entry *to)
{
	return packet_is_syn(p) || seq_fits(p, row, to) ? dsr_client_state(p, to->state) : to->state;
}

/* Decides by the row of such a flow. False: the flow has ended, or another node forwarded this
 * packet: that node has chosen itself, and a packet is not forwarded twice. */
static __noinline int dsr_decide(void *ctx, const struct packet *p, struct ct_entry *row, struct action *a)
{
	__u32 seen = a->to.seen, now = ct_now();
	__u8 state;

	if (dsr_cut_off(p, a, now))
		return true;
	if (p->is_forwarded || (packet_is_syn(p) && a->to.state > CT_OPEN)) {
		ct_pending_delete(&p->flow);
		return false;
	}
	a->verdict = VERDICT_REWRITE;
	a->is_first = a->to.state == CT_ANSWERED && packet_begins_flow(p);
	state = dsr_state(p, row, &a->to);
	if (state != a->to.state) {
		a->to.state = state;
		row->state = state;
	}
	if (seen == now || (packet_is_syn(p) && state != CT_NEW))
		return true;
	a->to.seen = now;
	row->seen = now;
	if (route_epoch_is_due(&a->to, &seen) && dsr_refresh(ctx, p, a))
		row->seen = seen;
	return true;
}
