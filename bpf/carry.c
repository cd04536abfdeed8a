// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the program by which the agent carries established flows over into a larger
 * map while packet programs write both. It is attached to nothing. The agent lists the rows to
 * carry. */

#include <linux/bpf.h>
#include <linux/errno.h>
#include <bpf/bpf_helpers.h>

#include "lib/flow.h"
#include "lib/maps.h"
#include "lib/types.h"

/* The number of rows carried in one run. */
#define CARRIED_MOST 4096

/* The agent's own map, which it has mmapped. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, CARRIED_MOST);
	__type(key, __u32);
	__type(value, struct carried);
} carried SEC(".maps");

/* How many rows of `carried` are filled. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} carry_count SEC(".maps");

/* Applies to the new row what happened to the old one while it was being carried. `row` is the
 * copy. If the new row no longer equals it, packets have changed it, and it is the more recent
 * one. */
static __always_inline void carry_follow(const struct flow *flow, struct ct_entry *row)
{
	struct ct_entry *was = bpf_map_lookup_elem(&ct_old, flow);
	struct ct_entry *is = bpf_map_lookup_elem(&ct, flow);
	bool torn = false;

	if (!is || is->checksum != row->checksum || is->seen != row->seen || is->state != row->state ||
	    is->seq_hi != row->seq_hi)
		return;
	if (!was) {
		bpf_map_delete_elem(&ct, flow);
	} else if (was->checksum != row->checksum) {
		if (flow_find(&ct_old, flow, row, &torn))
			bpf_map_update_elem(&ct, flow, row, BPF_EXIST);
	} else {
		is->seen = was->seen;
		is->state = was->state;
		is->seq_hi = was->seq_hi;
	}
}

static __always_inline enum carry_outcome carry(const struct flow *flow)
{
	struct ct_entry row;
	bool torn = false;
	int err;

	if (!flow_find(&ct_old, flow, &row, &torn))
		return torn ? CARRY_TORN : CARRY_GONE;
	err = bpf_map_update_elem(&ct, flow, &row, BPF_NOEXIST);
	if (err == -EEXIST)
		return CARRY_THERE;
	if (err)
		return CARRY_FAILED;
	carry_follow(flow, &row);
	return CARRY_DONE;
}

static long carry_next(__u32 index, void *ctx __attribute__((unused)))
{
	struct carried *c = bpf_map_lookup_elem(&carried, &index);

	if (c)
		c->outcome = carry(&c->flow);
	return 0;
}

SEC("syscall")
int carry_flows(void)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&carry_count, &zero);

	if (count)
		bpf_loop(*count, carry_next, NULL, 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
