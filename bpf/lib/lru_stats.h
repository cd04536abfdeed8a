/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the counts of rows that enter and leave LRU maps. The kernel does not report
 * evictions, so evicted rows are those that were created, not deleted, and are no longer there.
 * Every program that creates a row or deletes one counts it here. */
#pragma once

#include <linux/errno.h>
#include <bpf/bpf_helpers.h>

#include "maps.h"

static __always_inline struct lru_stats *lru_stats_of(__u32 map)
{
	return bpf_map_lookup_elem(&lru_stats, &map);
}

/* For packet programs, of which only one at a time runs on a CPU. */
static __always_inline void lru_stats_made(enum lru map)
{
	struct lru_stats *t = lru_stats_of(map);

	if (t)
		t->made++;
}

/* Likewise. */
static __always_inline void lru_stats_deleted(enum lru map, __u64 rows)
{
	struct lru_stats *t = lru_stats_of(map);

	if (t)
		t->deleted += rows;
}

/* For other programs, which a packet may interrupt: the packet's additions must not be lost. */
static __always_inline void lru_stats_made_atomic(enum lru map)
{
	struct lru_stats *t = lru_stats_of(map);

	if (t)
		__sync_fetch_and_add(&t->made, 1);
}

static __always_inline void lru_stats_deleted_atomic(enum lru map, __u64 rows)
{
	struct lru_stats *t = lru_stats_of(map);

	if (t)
		__sync_fetch_and_add(&t->deleted, rows);
}
