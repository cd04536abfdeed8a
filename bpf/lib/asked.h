/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the memory of ways that the kernel was asked for lately. The question is what a new flow costs
 * most, and few backends and clients have most of the flows, so the answer to one is good for the next: between the
 * same addresses, from the same device, and for as long as the agent vouches that nothing has changed since.
 * Without an agent everybody asks.
 *
 * Each CPU has its own rows, so nobody waits for another. What may come between are programs that interrupt others
 * on the same CPU. So a row is odd in `turn` while it is written, and whoever read it looks whether `turn` is still
 * the same. */
#pragma once

#include "ct.h"

static __always_inline struct asked_way *asked_row(const struct ct_entry *to)
{
	__u32 index = ct_sum_addrs((const __u64 *)to, ct_factor) >> 32 & (ASKED_WAYS - 1);

	return bpf_map_lookup_elem(&asked_ways, &index);
}

/* The tick in which the kernel may be taken at its word of before: it was asked after the last change, and somebody
 * follows them. As in ways.h, `changed` is loaded last. */
static __always_inline bool asked_holds(__u32 seen)
{
	__u32 zero = 0, until;
	struct ways *told = bpf_map_lookup_elem(&ways, &zero);

	if (!told)
		return false;
	until = *(volatile __u32 *)&told->until;
	return (__s32)(until - ct_now()) >= 0 && (__s32)(seen - *(volatile __u32 *)&told->changed) > 0;
}

/* Whether a row is of the way between the addresses of another. Both have them in front, in whole words. */
static __always_inline bool asked_is(const struct asked_way *row, const struct ct_entry *to)
{
	const __u64 *a = (const __u64 *)row, *b = (const __u64 *)to;

	return a[3] == b[3] && a[1] == b[1] && a[2] == b[2] && a[0] == b[0];
}

/* Copies the way out that was found before. False: there is none that holds. */
static __always_inline bool asked_find(struct asked_way *row, __u32 in, struct ct_entry *out)
{
	__u32 turn = *(volatile __u32 *)&row->turn;

	if (turn & 1 || row->in != in || !asked_is(row, out) || !asked_holds(row->seen))
		return false;
	out->ifindex = row->ifindex;
	__builtin_memcpy(out->dmac, row->dmac, sizeof(out->dmac));
	__builtin_memcpy(out->smac, row->smac, sizeof(out->smac));
	return *(volatile __u32 *)&row->turn == turn;
}

/* Keeps a way that was asked for in the tick `seen`. Of two that write one the other yields. */
static __always_inline void asked_keep(struct asked_way *row, __u32 in, const struct ct_entry *way, __u32 seen)
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
