/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what a backend's node does with flows whose replies it cannot translate.
 * Replies get the frontend's address where they leave by a device with our tc programs. Replies to
 * a client on this node, or behind any other device, do not pass there. Packets of such a flow are
 * given back, one by one, to the node that forwarded them: in the same encapsulation, from the
 * backend to that node, with port zero, which no backend has. See fallback.h for what that node
 * does. */
#pragma once

#include "first.h"

/* Reports whether replies to a flow's first packet would not leave by a device of ours, by a FIB
 * lookup for such a reply. If the client is on this node the lookup yields no device. A packet that
 * came with an IP option cannot be given back, because it does not tell which node sent it. */
static __noinline int back_is_due(void *ctx, const struct packet *p, const struct action *a)
{
	struct hint *hint = hosted_hint();
	struct ct_entry way = { .saddr = a->to.daddr, .daddr = p->flow.saddr };

	if (!hint || hint->direct == DIRECT_OFF)
		return false;
	route_find(ctx, p, &way);
	return !way.ifindex || !bpf_map_lookup_elem(&served, &way.ifindex);
}

/* Gives a packet back, by tc_wrap. This node keeps no state of the flow and has no alternative: a
 * packet that does not fit is dropped. */
static __noinline int back_give(void *ctx, const struct packet *p, struct action *a)
{
	struct hint *hint = hosted_hint();

	if (!hint)
		return action_drop(a, REASON_BAD_TABLE);
	a->reason = REASON_GIVEN_BACK;
	a->is_first = false;
	a->to = (struct ct_entry) {
		.saddr = hint->backend,
		.daddr = hint->from,
		.flags = hint->direct << DIRECT_SHIFT,
	};
	route_find(ctx, p, &a->to);
	return 0;
}
