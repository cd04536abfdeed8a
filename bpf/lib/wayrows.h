/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the values of the maps of ways, as types.h does those of the others. */
#pragma once

#include "types.h"

/* What the agent says of changes of routes, rules, links, addresses and neighbours, in the ticks of `seen`. It
 * stores each word whole. */
struct ways {
	__u32 changed; /* the last one that it has seen; may be ahead of the clock, while the kernel is still at it
			*/
	__u32 until;   /* it follows all of them up to here. Beyond, nobody does */
};

/* What the agent says of changes of who may use load balancers' addresses, in a map of its own since it came later.
 */
struct guard {
	__u32 changed; /* as of ways; and far ahead of the clock while a change is under way */
	__u32 pad;
};

/* So many ways are remembered by each CPU; a power of two. */
#define ASKED_WAYS 256

/* What the kernel said of the way of packets from one address to another. */
struct asked_way {
	struct addr from;
	struct addr to;
	__u32 in;   /* the device that they come in by */
	__u32 seen; /* when it was asked, in ticks of `cfg` */
	__u32 turn; /* odd while the row is written */
	__u32 ifindex;
	__u8 dmac[6];
	__u8 smac[6];
	__u32 pad;
} __attribute__((aligned(8)));

_Static_assert(sizeof(struct ways) == 8 && sizeof(struct guard) == 8,
	       "a value has no hidden padding, and can be mapped");
_Static_assert(sizeof(struct asked_way) == 64, "a row fits into a cache line");
