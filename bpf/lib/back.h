/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what a backend's node does with flows that it cannot have answered from here. An answer gets
 * its source where it leaves by a device with the programs of tc. One to a client on this node, or behind a device
 * that is another's, does not. Such a flow is given back, packet by packet, to the node that forwarded it, with the
 * same around it, from the backend to that node, and no port: a backend has one. See fallback.h for that node. */
#pragma once

#include "first.h"

/* Whether the first packet of a flow is one that the backend cannot answer. The kernel is asked for the way of what
 * the backend sends. A client of this node is none that anything is forwarded to, and has no device. Nobody knows
 * to whom to give back what came with an option. */
static __noinline int back_is_due(void *ctx, const struct packet *p, const struct action *a)
{
	struct hint *hint = hosted_hint();
	struct ct_entry way = { .saddr = a->to.daddr, .daddr = p->flow.saddr };

	if (!hint || hint->direct == DIRECT_OFF)
		return false;
	route_find(ctx, p, &way);
	return !way.ifindex || !bpf_map_lookup_elem(&served, &way.ifindex);
}

/* Sends a packet back, by tc_wrap. This node keeps nothing of its flow, and gives it no other way: what does not
 * fit goes nowhere. */
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
