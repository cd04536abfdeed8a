/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the counts: of outcomes, and of rows in LRU maps. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "reason.h"
#include "types.h"

/* How many rows such a map was ever given, and how many were deleted from it again. */
struct lru_stats {
	__u64 made;
	__u64 deleted;
};

/* Rows created and deleted, by enum lru. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LRUS);
	__type(key, __u32);
	__type(value, struct lru_stats);
} lru_stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTER_HOOKS *COUNTER_REASONS);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

/* The counts of rows that enter and leave LRU maps. The kernel does not report evictions, so evicted
 * rows are those that were created, not deleted, and are no longer there. Every program that
 * creates a row or deletes one counts it here. */

static __always_inline struct lru_stats *count_lru_of(__u32 map)
{
	return bpf_map_lookup_elem(&lru_stats, &map);
}

/* For packet programs, of which only one at a time runs on a CPU. */
static __always_inline void count_lru_made(enum lru map)
{
	struct lru_stats *t = count_lru_of(map);

	if (t)
		t->made++;
}

/* Likewise. */
static __always_inline void count_lru_deleted(enum lru map, __u64 rows)
{
	struct lru_stats *t = count_lru_of(map);

	if (t)
		t->deleted += rows;
}

/* For other programs, which a packet may interrupt: the packet's additions must not be lost. */
static __always_inline void count_lru_made_atomic(enum lru map)
{
	struct lru_stats *t = count_lru_of(map);

	if (t)
		__sync_fetch_and_add(&t->made, 1);
}

static __always_inline void count_lru_deleted_atomic(enum lru map, __u64 rows)
{
	struct lru_stats *t = count_lru_of(map);

	if (t)
		__sync_fetch_and_add(&t->deleted, rows);
}

static __always_inline void count(enum hook hook, enum reason reason, __u64 bytes)
{
	__u32 index = hook * COUNTER_REASONS + reason;
	struct counter *counter = bpf_map_lookup_elem(&counters, &index);

	if (!counter)
		return;
	counter->packets++;
	counter->bytes += bytes;
}
