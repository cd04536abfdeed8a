/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the check whether a process opted out: a pod that handles its own connections
 * has to see the address that it dialed. It is made only for what dials a service. */
#pragma once

#include "maps.h"

/* The deepest level of a pod's cgroup: if the node is itself a container, its pods are four levels
 * deeper than the usual three. */
#define OPTOUT_LEVELS 12

static __always_inline bool optout_has(enum optout_kind kind, __u64 id)
{
	struct optout_key key = { .id = id, .kind = kind };

	return bpf_map_lookup_elem(&optout, &key);
}

/* Containers are in cgroups below their pod's. The pod's level depends on its QoS class and on
 * where the node's own tree is mounted, so every level is checked; the helper returns 0 beyond the
 * last. */
static __always_inline bool optout_by_cgroup(void)
{
	for (int level = 1; level <= OPTOUT_LEVELS; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);

		if (!id)
			return false;
		if (optout_has(OPTOUT_CGROUP, id))
			return true;
	}
	return false;
}

static __always_inline bool optout_applies(__u64 netns)
{
	__u32 zero = 0;
	__u32 *kinds = bpf_map_lookup_elem(&optout_kinds, &zero);

	if (!kinds || !*kinds)
		return false;
	if (*kinds & OPTOUT_NETNS && optout_has(OPTOUT_NETNS, netns))
		return true;
	return *kinds & OPTOUT_CGROUP && optout_by_cgroup();
}
