/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains when the kernel is asked again for the way that a row has: with the first packet of a tick, if
 * the agent has seen a change since the row's way was last asked for. When that was needs no field of its own: it
 * is `seen`, since a packet that makes a row younger asks first. */
#pragma once

#include "ct.h"
#include "route.h"

/* So many ticks a handshake may take, with all that is sent again. */
#define WAYS_HANDSHAKE 128

/* What an agent says that follows changes up to the tick in which a row is used; NULL if there is none. The agent
 * writes `changed` before it vouches, so who loads that next never has a vow without the change before it. */
static __always_inline const struct ways *ways_told(const struct ct_entry *row)
{
	__u32 zero = 0;
	struct ways *told = bpf_map_lookup_elem(&ways, &zero);

	return told && (__s32)(*(volatile __u32 *)&told->until - *(const volatile __u32 *)&row->seen) >= 0 ? told
													   : NULL;
}

/* Whether what was found good in the tick `before` may have changed since. It is read no earlier than here, since
 * until then there is nowhere to keep it. */
static __always_inline bool ways_are_old(const __u32 *before, const __u32 *changed)
{
	return (__s32)(*before - *(const volatile __u32 *)changed) <= 0;
}

/* Whether the way of a row that is used now, and was in the tick `before`, has to be asked for. While no agent
 * follows changes, always; and as long as a part of it is missing. */
static __always_inline bool ways_are_due(const struct ct_entry *row, const __u32 *before)
{
	const struct ways *told;

	if (row->flags & CT_STACK)
		return false;
	told = ways_told(row);
	return !told || !route_is_complete(row) || ways_are_old(before, &told->changed);
}

/* Asks for the way of a row. True: it has another, and a new seal. */
static __always_inline bool ways_refresh(void *ctx, const struct packet *p, struct ct_entry *row)
{
	__u64 before[2], after[2];

	__builtin_memcpy(before, &row->ifindex, sizeof(before)); /* both MACs follow it */
	route_find(ctx, p, row);
	__builtin_memcpy(after, &row->ifindex, sizeof(after));
	if (before[0] == after[0] && before[1] == after[1])
		return false;
	row->seal = ct_seal(&p->flow, row);
	return true;
}

/* What a request that shook hands has in `seen` from now on. In `ct_half` it says nowhere when its way was asked
 * for: if that may have been before the last change, the row looks as if it was, and the next packet asks. */
static __always_inline __u32 ways_opened(__u32 now)
{
	__u32 zero = 0, changed;
	struct ways *told = bpf_map_lookup_elem(&ways, &zero);

	if (!told)
		return now;
	changed = *(volatile __u32 *)&told->changed;
	return now - changed < WAYS_HANDSHAKE ? changed : now;
}
