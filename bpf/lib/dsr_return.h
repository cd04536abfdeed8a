/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what a backend's node does with flows whose replies it cannot translate.
 * Replies get the frontend's address where they leave by a device with our tc programs. Replies to
 * a client on this node, or behind any other device, do not pass there. Packets of such a flow are
 * given back, one by one, to the node that forwarded them: in the same encapsulation, from this node
 * to that one, with port zero, which no backend has. So are packets for a backend that this node
 * does not know to be the service's. See dsr_fallback.h for what that node does. */
#pragma once

#include "new_flow.h"

/* Reports whether a packet is for no backend that is known here, or replies to a flow's first packet
 * would not leave by a device of ours, by a FIB lookup for such a reply. If the client is on this
 * node the lookup yields no device. A packet that came with an IP option cannot be given back,
 * because it does not tell which node sent it. */
static __noinline int dsr_return_is_due(void *ctx, const struct packet *p, const struct action *a)
{
	struct dsr_hint *hint = dsr_ingress_hint();
	struct ct_entry way = { .saddr = a->to.daddr, .daddr = p->flow.saddr };

	if (!hint || hint->direct == DSR_OFF)
		return false;
	if (!hint->is_known)
		return true;
	route_find(ctx, p, &way);
	return !way.ifindex || !bpf_map_lookup_elem(&nat_devices, &way.ifindex);
}

/* Gives a packet back, by tc_encap. This node keeps no state of the flow and has no alternative: a
 * packet that does not fit is dropped. */
static __noinline int dsr_return_send(void *ctx, const struct packet *p, struct action *a)
{
	struct dsr_hint *hint = dsr_ingress_hint();

	if (!hint)
		return action_drop(a, REASON_BAD_TABLE);
	a->reason = REASON_GIVEN_BACK;
	a->is_first = false;
	a->to = (struct ct_entry) {
		.daddr = hint->from,
		.flags = hint->direct << DSR_SHIFT,
	};
	if (!new_flow_masquerade(p->is_v4 ? SNAT_NODE4 : SNAT_NODE6, &a->to))
		return action_drop(a, REASON_NO_ADDRESS);
	route_find(ctx, p, &a->to);
	return 0;
}
