/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains when the route in a row is looked up again: with the first packet of a tick,
 * if the agent has seen a change since the last lookup. The time of that lookup needs no field of
 * its own: it is `seen`, because a packet that updates `seen` first looks the route up if that is
 * due. */
#pragma once

#include "ct.h"
#include "route.h"

/* How many ticks a handshake may take, including retransmissions. */
#define ROUTE_EPOCH_HANDSHAKE 128

/* Returns what the agent says if it follows changes up to the tick in which the row is used, or
 * NULL. The agent writes `changed` before it vouches. So a program that loads `changed` after
 * `until` never sees the promise without the change before it. */
static __always_inline const struct route_epoch *route_epoch_valid(const struct ct_entry *row)
{
	__u32 zero = 0;
	struct route_epoch *told = bpf_map_lookup_elem(&route_epoch, &zero);

	return told && (__s32)(*(volatile __u32 *)&told->until - *(const volatile __u32 *)&row->seen) >= 0 ? told
													   : NULL;
}

/* Reports whether what was valid in the tick `before` may have changed since. `before` is a
 * pointer, so that the value is loaded only here: there is no register or stack to keep it in until
 * then. */
static __always_inline bool route_epoch_is_old(const __u32 *before, const __u32 *changed)
{
	return (__s32)(*before - *(const volatile __u32 *)changed) <= 0;
}

/* Reports whether the route of a row that is used now, and was last used in the tick `before`, has
 * to be looked up: always while no agent follows changes, and as long as the route is
 * incomplete. */
static __always_inline bool route_epoch_is_due(const struct ct_entry *row, const __u32 *before)
{
	const struct route_epoch *told;

	if (row->flags & CT_STACK)
		return false;
	told = route_epoch_valid(row);
	return !told || !route_is_complete(row) || route_epoch_is_old(before, &told->changed);
}

/* Looks the route of a row up. True: it has changed, and so has the checksum. */
static __always_inline bool route_epoch_refresh(void *ctx, const struct packet *p, struct ct_entry *row)
{
	__u64 before[2], after[2];

	__builtin_memcpy(before, &row->ifindex, sizeof(before)); /* both MACs follow it */
	route_find(ctx, p, row);
	__builtin_memcpy(after, &row->ifindex, sizeof(after));
	if (before[0] == after[0] && before[1] == after[1])
		return false;
	row->checksum = ct_checksum(&p->flow, row);
	return true;
}

/* Returns the initial `seen` of a request's row in `ct` after a handshake. In `ct_pending` the row did
 * not say when its route was looked up. If that may have been before the last change, the row is
 * made to look as old, so that the next packet looks its route up. */
static __always_inline __u32 route_epoch_opened(__u32 now)
{
	__u32 zero = 0, changed;
	struct route_epoch *told = bpf_map_lookup_elem(&route_epoch, &zero);

	if (!told)
		return now;
	changed = *(volatile __u32 *)&told->changed;
	return now - changed < ROUTE_EPOCH_HANDSHAKE ? changed : now;
}
