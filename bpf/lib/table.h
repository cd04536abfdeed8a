/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the table of established flows. It is one map, and two while a larger one takes the place of
 * the first: then other programs of the same source are at work, of which the agent says in a word that all of them
 * share how far it is. It goes on only when every program of every hook has seen the word before.
 *
 *	TABLE_OLD	the old map has everything. Programs that know of one map alone may be at work beside
 *	TABLE_BOTH	what is new goes into the new map, and the agent carries the rest over
 *	TABLE_NEW	the new map has everything, and programs that know of it alone may be at work beside
 *
 * While the word changes, some act by the old one and some by the new. So whoever inserts looks into the other map
 * afterwards: of two at least one sees the other. Where there is one map, `cfg` says so and the verifier takes the
 * rest out. */
#pragma once

#include <linux/errno.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "maps.h"
#include "packetcfg.h"

/* The map that is replaced by `ct`; no other ever has a row. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct flow);
	__type(value, struct ct_entry);
} ct_old SEC(".maps");

/* An enum table_stage. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} ct_stage SEC(".maps");

static __always_inline __u32 table_stage(void)
{
	__u32 zero = 0;
	__u32 *stage = bpf_map_lookup_elem(&ct_stage, &zero);

	return stage ? *(volatile __u32 *)stage : TABLE_OLD;
}

static __always_inline struct ct_entry *table_lookup(const struct flow *flow)
{
	struct ct_entry *row = NULL;
	__u32 stage;

	if (!cfg.growing)
		return bpf_map_lookup_elem(&ct, flow);
	stage = table_stage();
	if (stage != TABLE_OLD)
		row = bpf_map_lookup_elem(&ct, flow);
	if (!row && stage != TABLE_NEW)
		row = bpf_map_lookup_elem(&ct_old, flow);
	return row;
}

/* -EEXIST: there is a row of the flow. What is compared is an int, since before Linux 6.4 a map sets no more of the
 * register. */
static __always_inline int table_insert(const struct flow *flow, const struct ct_entry *row)
{
	__u32 stage;
	int err;

	if (!cfg.growing)
		return bpf_map_update_elem(&ct, flow, row, BPF_NOEXIST);
	stage = table_stage();
	if (stage == TABLE_OLD) {
		err = bpf_map_update_elem(&ct_old, flow, row, BPF_NOEXIST);
		if (err || !bpf_map_lookup_elem(&ct, flow))
			return err;
		bpf_map_delete_elem(&ct_old, flow);
		return -EEXIST;
	}
	err = bpf_map_update_elem(&ct, flow, row, BPF_NOEXIST);
	if (err || stage == TABLE_NEW || !bpf_map_lookup_elem(&ct_old, flow))
		return err;
	bpf_map_delete_elem(&ct, flow);
	return -EEXIST;
}

/* Writes the row of a flow, whether there is one or not. */
static __always_inline long table_write(const struct flow *flow, const struct ct_entry *row)
{
	if (cfg.growing && table_stage() == TABLE_OLD)
		return bpf_map_update_elem(&ct_old, flow, row, BPF_ANY);
	return bpf_map_update_elem(&ct, flow, row, BPF_ANY);
}

/* Writes the row of a flow if there is one. */
static __always_inline long table_replace(const struct flow *flow, const struct ct_entry *row)
{
	__u32 stage;

	if (!cfg.growing)
		return bpf_map_update_elem(&ct, flow, row, BPF_EXIST);
	stage = table_stage();
	if (stage != TABLE_OLD && !bpf_map_update_elem(&ct, flow, row, BPF_EXIST))
		return 0;
	return stage == TABLE_NEW ? -ENOENT : bpf_map_update_elem(&ct_old, flow, row, BPF_EXIST);
}

/* From the old map first: whoever carries the row over looks there again afterwards. */
static __always_inline void table_delete(const struct flow *flow)
{
	__u32 stage = cfg.growing ? table_stage() : TABLE_NEW;

	if (stage != TABLE_NEW)
		bpf_map_delete_elem(&ct_old, flow);
	if (stage != TABLE_OLD)
		bpf_map_delete_elem(&ct, flow);
}
