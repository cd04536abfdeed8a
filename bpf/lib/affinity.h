/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains session affinity: a client keeps its backend as long as the service has it and the timeout has
 * not passed since the client's last new connection. */
#pragma once

#include "lb.h"

#define NSEC_PER_SEC 1000000000ULL

/* The entry of an expired or lost backend is overwritten by the next choice, so nobody has to collect it. The value
 * is written in place although its element may be another client's by now: a wrong time or row only makes that
 * client keep or lose its backend early, since a row is looked at before it is used. */
static __always_inline bool affinity_find(const struct affinity_key *key, const struct service *service,
					  __u32 scope, struct choice *choice)
{
	struct affinity *known = bpf_map_lookup_elem(&affinity, key);
	__u64 now = bpf_ktime_get_coarse_ns();

	if (!known || now - known->last > service->affinity_seconds * NSEC_PER_SEC)
		return false;
	choice->row = known->row;
	choice->backend = bpf_map_lookup_elem(&backends, &choice->row);
	if (!choice->backend || !lb_owns(choice->backend, key->service, scope))
		return false;
	known->last = now;
	return true;
}

static __always_inline void affinity_remember(const struct affinity_key *key, const struct choice *choice)
{
	struct affinity value = { .last = bpf_ktime_get_coarse_ns(), .row = choice->row };

	bpf_map_update_elem(&affinity, key, &value, BPF_ANY);
}
