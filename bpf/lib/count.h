/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the only way to count an outcome. */
#pragma once

#include "maps.h"

static __always_inline void count(enum hook hook, enum reason reason, __u64 bytes)
{
	__u32 index = hook * COUNTER_REASONS + reason;
	struct counter *counter = bpf_map_lookup_elem(&counters, &index);

	if (!counter)
		return;
	counter->packets++;
	counter->bytes += bytes;
}
