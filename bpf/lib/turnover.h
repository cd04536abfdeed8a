/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how rows come into maps that push out what they have no room for, and how they go: the kernel
 * tells nobody what it pushed out, so what was made and not deleted and is not there is what it was. Whoever makes
 * a row that was not there, or deletes one that was, counts it here. */
#pragma once

#include <linux/errno.h>
#include <bpf/bpf_helpers.h>

#include "maps.h"

static __always_inline struct turnover *turnover_of(__u32 map)
{
	return bpf_map_lookup_elem(&turnover, &map);
}

/* For programs of packets, of which only one at a time runs on a CPU. */
static __always_inline void turnover_made(enum lru map)
{
	struct turnover *t = turnover_of(map);

	if (t)
		t->made++;
}

/* Likewise. */
static __always_inline void turnover_deleted(enum lru map, __u64 rows)
{
	struct turnover *t = turnover_of(map);

	if (t)
		t->deleted += rows;
}

/* For the others, which a packet may interrupt: what it adds meanwhile must not be lost. */
static __always_inline void turnover_made_late(enum lru map)
{
	struct turnover *t = turnover_of(map);

	if (t)
		__sync_fetch_and_add(&t->made, 1);
}

static __always_inline void turnover_deleted_late(enum lru map, __u64 rows)
{
	struct turnover *t = turnover_of(map);

	if (t)
		__sync_fetch_and_add(&t->deleted, rows);
}
