/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains session affinity: a client keeps its backend as long as the service has that
 * backend and the timeout has not passed since the client's last new connection. */
#pragma once

#include "lb.h"
#include "lru_stats.h"

#define NSEC_PER_SEC 1000000000ULL

/* What the map says about a client. */
enum affinity_state {
	AFFINITY_NONE,	 /* nothing, or a backend that the service no longer has */
	AFFINITY_LAPSED, /* the timeout has passed: the next choice should be free to differ */
	AFFINITY_HOLDS,
};

/* The next choice overwrites the entry of an expired or lost backend, so entries need no
 * collection. The value is written in place although its element may have become another client's.
 * A wrong time or row only makes that client keep or lose its backend early, since the row is
 * checked before it is used. */
static __always_inline enum affinity_state
affinity_find(const struct affinity_key *key, const struct service *service, __u32 scope, struct choice *choice)
{
	struct affinity *known = bpf_map_lookup_elem(&affinity, key);
	__u64 now = bpf_ktime_get_coarse_ns();
	__u32 row;

	if (!known || known->epoch != service->affinity_epoch)
		return AFFINITY_NONE;
	/* signed: another CPU may have stored a later time since this one read the clock */
	if ((__s64)(now - known->last) > (__s64)(service->affinity_seconds * NSEC_PER_SEC))
		return AFFINITY_LAPSED;
	row = known->row;
	choice->row = row;
	choice->backend = bpf_map_lookup_elem(&backends, &row);
	if (!choice->backend || !lb_owns(choice->backend, key->service, scope))
		return AFFINITY_NONE;
	known->last = now;
	return AFFINITY_HOLDS;
}

static __always_inline void affinity_remember(const struct affinity_key *key, const struct service *service,
					      const struct choice *choice)
{
	struct affinity value = {
		.last = bpf_ktime_get_coarse_ns(),
		.row = choice->row,
		.epoch = service->affinity_epoch,
	};

	if (!bpf_map_update_elem(&affinity, key, &value, BPF_NOEXIST))
		lru_stats_made_atomic(LRU_AFFINITY);
	else
		bpf_map_update_elem(&affinity, key, &value, BPF_ANY);
}
