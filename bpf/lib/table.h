/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the table of established flows. It is one map, or two while a larger one
 * replaces it. During that time other programs, compiled from the same source, are attached, and
 * the agent announces its progress in a word that all of them share. It goes on to the next stage
 * only when every program of every hook has seen the word.
 *
 * 	TABLE_OLD	the old map has everything. Programs that know only one map may still run
 * 	TABLE_BOTH	new rows go into the new map, and the agent carries the others over
 * 	TABLE_NEW	the new map has everything, and programs that know only it may run already
 *
 * While the word changes, some programs act by the old value and some by the new. So a program that
 * inserts a row looks into the other map afterward: of two programs at least one sees the other.
 * If there is only one map, `cfg` says so and the verifier removes the rest. */
#pragma once

#include <linux/errno.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "maps.h"
#include "packetcfg.h"

/* The map that `ct` replaces; otherwise it is always empty. */
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

/* -EEXIST: the flow has a row. Errors are compared as int, because before Linux 6.4 maps set only
 * the lower half of the register. */
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

/* Writes the row of a flow, whether it exists or not. */
static __always_inline long table_write(const struct flow *flow, const struct ct_entry *row)
{
	if (cfg.growing && table_stage() == TABLE_OLD)
		return bpf_map_update_elem(&ct_old, flow, row, BPF_ANY);
	return bpf_map_update_elem(&ct, flow, row, BPF_ANY);
}

/* Writes the row of a flow if it exists. */
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

/* Deletes from the old map first: the program that carries a row over checks there again
 * afterward. */
static __always_inline void table_delete(const struct flow *flow)
{
	__u32 stage = cfg.growing ? table_stage() : TABLE_NEW;

	if (stage != TABLE_NEW)
		bpf_map_delete_elem(&ct_old, flow);
	if (stage != TABLE_OLD)
		bpf_map_delete_elem(&ct, flow);
}
