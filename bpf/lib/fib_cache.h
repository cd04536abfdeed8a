/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the cache of recent FIB lookups. The lookup is the largest cost of a new flow,
 * and a few backends and clients have most of the flows, so one result serves the next flow as
 * well: between the same addresses, from the same device, and while the agent vouches that nothing
 * has changed since. Without an agent every flow makes its own lookup.
 *
 * Each CPU has its own rows, so no CPU waits for another. But a program may interrupt another one
 * on the same CPU. So `turn` is odd while a row is written, and a reader checks afterward that
 * `turn` has not changed. */
#pragma once

#include "ct.h"

static __always_inline struct fib_cache_row *fib_cache_at(const struct ct_entry *to)
{
	__u32 index = ct_sum_addrs((const __u64 *)to, ct_factor) >> 32 & (FIB_CACHE_ROWS - 1);

	return bpf_map_lookup_elem(&fib_cache, &index);
}

/* Reports whether a result from the tick `seen` is still valid: it is younger than the last change,
 * and an agent follows changes now. As in route_epoch.h, `changed` is loaded last. */
static __always_inline bool fib_cache_holds(__u32 seen)
{
	__u32 zero = 0, until;
	struct route_epoch *told = bpf_map_lookup_elem(&route_epoch, &zero);

	if (!told)
		return false;
	until = *(volatile __u32 *)&told->until;
	return (__s32)(until - ct_now()) >= 0 && (__s32)(seen - *(volatile __u32 *)&told->changed) > 0;
}

/* Reports whether a row is for the addresses of `to`. Both begin with the two addresses, in whole
 * words. */
static __always_inline bool fib_cache_is(const struct fib_cache_row *row, const struct ct_entry *to)
{
	const __u64 *a = (const __u64 *)row, *b = (const __u64 *)to;

	return a[3] == b[3] && a[1] == b[1] && a[2] == b[2] && a[0] == b[0];
}

/* Copies a cached route into `out`. False: there is no valid one. */
static __always_inline bool fib_cache_find(struct fib_cache_row *row, __u32 in, struct ct_entry *out)
{
	__u32 turn = *(volatile __u32 *)&row->turn;

	if (turn & 1 || row->in != in || !fib_cache_is(row, out) || !fib_cache_holds(row->seen))
		return false;
	out->ifindex = row->ifindex;
	__builtin_memcpy(out->dmac, row->dmac, sizeof(out->dmac));
	__builtin_memcpy(out->smac, row->smac, sizeof(out->smac));
	return *(volatile __u32 *)&row->turn == turn;
}

/* Caches a route that was looked up in the tick `seen`. If two programs write the same row, one
 * gives up. */
static __always_inline void fib_cache_keep(struct fib_cache_row *row, __u32 in, const struct ct_entry *way,
					   __u32 seen)
{
	__u32 turn = *(volatile __u32 *)&row->turn;

	if (turn & 1 || __sync_val_compare_and_swap(&row->turn, turn, turn + 1) != turn)
		return;
	row->from = way->saddr;
	row->to = way->daddr;
	row->in = in;
	row->seen = seen;
	row->ifindex = way->ifindex;
	__builtin_memcpy(row->dmac, way->dmac, sizeof(row->dmac));
	__builtin_memcpy(row->smac, way->smac, sizeof(row->smac));
	asm volatile("" ::: "memory");
	*(volatile __u32 *)&row->turn = turn + 2;
}
