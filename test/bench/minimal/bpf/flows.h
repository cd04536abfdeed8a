/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains a table of flows: an established packet costs one lookup, and the first of a flow one insert.
 */
#pragma once

#include "nat.h"

struct flow4 {
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u32 proto;
};

struct flow6 {
	__be32 saddr[4];
	__be32 daddr[4];
	__be16 sport;
	__be16 dport;
	__u32 proto;
};

_Static_assert(sizeof(struct flow4) == 16, "no gaps in a key");
_Static_assert(sizeof(struct flow6) == 40, "no gaps in a key");
_Static_assert(sizeof(struct rewrite) == 60, "a row fits into a cache line");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1); /* set at load */
	__type(key, struct flow4);
	__type(value, struct rewrite);
} flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1); /* set at load */
	__type(key, struct flow6);
	__type(value, struct rewrite);
} flows6 SEC(".maps");

/* Makes the row of a flow: what a side says, but the client keeps its address. */
static __always_inline bool flow_make(const struct packet *p, const volatile struct side *sides,
				      struct rewrite *row)
{
	const struct side *side = p->ip4 ? side_of(sides, V4) : side_of(sides, V6);

	if (!matches(p, side))
		return false;
	*row = side->to;
	if (p->ip4 && side->reply)
		row->daddr[0] = p->ip4->daddr;
	else if (p->ip4)
		row->saddr[0] = p->ip4->saddr;
	else if (side->reply)
		__builtin_memcpy(row->daddr, &p->ip6->daddr, 16);
	else
		__builtin_memcpy(row->saddr, &p->ip6->saddr, 16);
	return true;
}

/* Returns the row of a packet's flow, or NULL if the packet is none of ours. Fresh holds a row that was made. */
static __always_inline const struct rewrite *flow_find(const struct packet *p, const volatile struct side *sides,
						       struct rewrite *fresh)
{
	struct flow4 key4 = {};
	struct flow6 key6 = {};
	struct rewrite *row;

	if (p->ip4) {
		key4.saddr = p->ip4->saddr;
		key4.daddr = p->ip4->daddr;
		key4.sport = p->l4->source;
		key4.dport = p->l4->dest;
		key4.proto = p->proto;
		row = bpf_map_lookup_elem(&flows4, &key4);
	} else {
		__builtin_memcpy(key6.saddr, &p->ip6->saddr, 16);
		__builtin_memcpy(key6.daddr, &p->ip6->daddr, 16);
		key6.sport = p->l4->source;
		key6.dport = p->l4->dest;
		key6.proto = p->proto;
		row = bpf_map_lookup_elem(&flows6, &key6);
	}
	if (row)
		return row;
	if (!flow_make(p, sides, fresh))
		return NULL;
	if (p->ip4)
		bpf_map_update_elem(&flows4, &key4, fresh, BPF_ANY);
	else
		bpf_map_update_elem(&flows6, &key6, fresh, BPF_ANY);
	return fresh;
}
