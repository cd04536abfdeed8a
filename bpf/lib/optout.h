/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the question whether a process wants its sockets left alone: a pod that sees to its own
 * connections has to see the address that was dialled. It is asked only about what dials a service. */
#pragma once

#include "maps.h"

/* A pod's cgroup lies at most so deep: that of a node which is itself a container is four levels further down than
 * the usual three. */
#define OPTOUT_LEVELS 12

static __always_inline bool optout_has(enum optout_kind kind, __u64 id)
{
	struct optout_key key = { .id = id, .kind = kind };

	return bpf_map_lookup_elem(&optout, &key);
}

/* Containers sit in cgroups below that of their pod. Which level that is depends on the pod's class of service and
 * on what the node's tree hangs below, so every level is looked at; the kernel ends them with 0. */
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
