/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the shares that pods have of the flows that nothing evicts, so that one pod cannot
 * take the room of all. */
#pragma once

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "policy_maps.h"
#include "types.h"

/* Returns the share of a pod, which begins with nothing. NULL: there is no room for it. */
static __always_inline struct policy_share *policy_share_of(__u32 owner)
{
	struct policy_share *share = bpf_map_lookup_elem(&policy_shares, &owner);
	struct policy_share none = {};

	if (share)
		return share;
	bpf_map_update_elem(&policy_shares, &owner, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&policy_shares, &owner);
}

static __always_inline __s32 policy_share_rows(const struct policy_share *share)
{
	return *(volatile __s32 *)&share->rows + *(volatile __s32 *)&share->since;
}

/* Inserts the row of a flow into a pod's share. False: it has none left. */
static __always_inline bool policy_share_insert(const struct flow *flow, const struct policy_flow *row)
{
	struct policy_share *own = policy_share_of(row->owner), *all = policy_share_of(POLICY_SHARE_OF_ALL);
	long failed;

	if (!own || !all || policy_share_rows(own) >= POLICY_FLOWS - policy_share_rows(all))
		return false;
	failed = bpf_map_update_elem(&policy_flows, flow, row, BPF_NOEXIST);
	if (failed)
		return failed == -EEXIST; /* the flow's other direction was faster */
	__sync_fetch_and_add(&own->since, 1);
	__sync_fetch_and_add(&all->since, 1);
	return true;
}

/* Deletes the row of a flow, if there is one. Not inlined, to have a stack frame of its own. */
static __noinline int policy_share_delete(const struct flow *flow)
{
	struct policy_flow *row = bpf_map_lookup_elem(&policy_flows, flow);
	__u32 owner = row ? *(volatile __u32 *)&row->owner : 0;
	struct policy_share *share;

	if (!row || bpf_map_delete_elem(&policy_flows, flow))
		return 0;
	share = owner ? bpf_map_lookup_elem(&policy_shares, &owner) : NULL;
	if (share)
		__sync_fetch_and_sub(&share->since, 1);
	owner = POLICY_SHARE_OF_ALL;
	share = bpf_map_lookup_elem(&policy_shares, &owner);
	if (share)
		__sync_fetch_and_sub(&share->since, 1);
	return 0;
}
