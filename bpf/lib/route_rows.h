/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the layouts of the maps of routes, like types.h for other maps. */
#pragma once

#include "types.h"

/* What the agent says about changes of routes, rules, links, addresses and neighbors, in the ticks
 * of `seen`. It stores each word whole. */
struct route_epoch {
	/* the last change it has seen; may be ahead of the clock while the kernel is still making
	 * the change */
	__u32 changed;
	__u32 until; /* it has seen every change up to this tick; beyond it nobody vouches */
};

/* What the agent says about changes of who may use load balancer addresses. A map of its own,
 * because it was added later. */
struct range_epoch {
	/* like that of route_epoch; far ahead of the clock while a change is in progress */
	__u32 changed;
	__u32 pad;
};

/* How many routes each CPU caches; a power of two. */
#define FIB_CACHE_ROWS 256

/* The result of a FIB lookup for packets from one address to another. */
struct fib_cache_row {
	struct addr from;
	struct addr to;
	__u32 in;   /* the device that the packets come in by */
	__u32 seen; /* when it was looked up, in ticks of `cfg` */
	__u32 turn; /* odd while the row is being written */
	__u32 ifindex;
	__u8 dmac[6];
	__u8 smac[6];
	__u32 pad;
} __attribute__((aligned(8)));

_Static_assert(sizeof(struct route_epoch) == 8 && sizeof(struct range_epoch) == 8,
	       "a value has no hidden padding, and can be mapped");
_Static_assert(sizeof(struct fib_cache_row) == 64, "a row fits into a cache line");
