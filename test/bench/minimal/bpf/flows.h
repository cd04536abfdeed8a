/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains a table of flows: an established packet costs one lookup, and the first packet
 * of a flow one insert. */
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

/* Whether the first packet of a flow also makes the row for the answers. */
const volatile bool both_rows = false;

/* Whether packets are wrapped, with the source address that a side gives, and not translated. */
const volatile bool wraps = false;

/* Whether IPv4 flows have keys as long as those of IPv6, in the same table. */
const volatile bool wide_keys = false;

/* Whether the first packet of a flow looks up what it needs to know, whatever makes its rows: that
 * neither row is that of an established flow, which are in another table, and that it is addressed
 * to a frontend. Keys are wide in this case. */
const volatile bool looks = false;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1); /* set at load */
	__type(key, struct flow6);
	__type(value, struct rewrite);
} established SEC(".maps");

struct frontend {
	__be32 addr[4];
	__be16 port;
	__u16 proto;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct frontend);
	__type(value, __u64);
} frontends SEC(".maps");

/* Writes an IPv4 address into a wide key, mapped as usual. */
static __always_inline void flow_widen(__be32 *wide, __be32 ip)
{
	wide[2] = bpf_htonl(0xffff);
	wide[3] = ip;
}

/* Makes the row of a flow: a side's rewrite, except that the client keeps its address. */
static __always_inline bool flow_make(const struct packet *p, const volatile struct side *sides,
				      struct rewrite *row)
{
	const struct side *side = p->ip4 ? side_of(sides, V4) : side_of(sides, V6);

	if (!matches(p, side))
		return false;
	*row = side->to;
	if (wraps)
		return true;
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

/* Makes the row for answers to a packet that leaves as a row says. Only its cost matters, not its
 * contents: the answers' own program makes its row anew. */
static __always_inline void flow_answer(const struct packet *p, const struct rewrite *there)
{
	struct flow4 key4 = {};
	struct flow6 key6 = {};

	if (p->ip4 && wide_keys) {
		flow_widen(key6.saddr, there->daddr[0]);
		flow_widen(key6.daddr, there->saddr[0]);
	} else if (p->ip4) {
		key4.saddr = there->daddr[0];
		key4.daddr = there->saddr[0];
		key4.sport = there->dport;
		key4.dport = p->l4->source;
		key4.proto = p->proto;
		bpf_map_update_elem(&flows4, &key4, there, BPF_ANY);
		return;
	} else {
		__builtin_memcpy(key6.saddr, there->daddr, 16);
		__builtin_memcpy(key6.daddr, there->saddr, 16);
	}
	key6.sport = there->dport;
	key6.dport = p->l4->source;
	key6.proto = p->proto;
	if (bpf_map_update_elem(&flows6, &key6, there, BPF_ANY) || !looks)
		return;
	if (bpf_map_lookup_elem(&established, &key6))
		bpf_map_delete_elem(&flows6, &key6);
}

static __always_inline bool flow_has_frontend(const struct flow6 *key)
{
	struct frontend frontend = { .port = key->dport, .proto = key->proto };

	__builtin_memcpy(frontend.addr, key->daddr, 16);
	return bpf_map_lookup_elem(&frontends, &frontend);
}

/* Makes the row of a flow, after that of the answers if the flow gets both, and returns the
 * request's row. */
static __always_inline const struct rewrite *flow_enter(const struct packet *p, const volatile struct side *sides,
							void *map, const void *key, struct rewrite *fresh)
{
	if (!flow_make(p, sides, fresh))
		return NULL;
	if (both_rows)
		flow_answer(p, fresh);
	bpf_map_update_elem(map, key, fresh, BPF_ANY);
	return fresh;
}

/* Returns the row of a packet's flow, or NULL if the packet is not for us. Fresh holds a row that
 * was just made. */
static __always_inline const struct rewrite *flow_find(const struct packet *p, const volatile struct side *sides,
						       struct rewrite *fresh)
{
	struct flow4 key4 = {};
	struct flow6 key6 = {};
	struct rewrite *row;

	if (p->ip4 && !wide_keys) {
		key4.saddr = p->ip4->saddr;
		key4.daddr = p->ip4->daddr;
		key4.sport = p->l4->source;
		key4.dport = p->l4->dest;
		key4.proto = p->proto;
		row = bpf_map_lookup_elem(&flows4, &key4);
		return row ? row : flow_enter(p, sides, &flows4, &key4, fresh);
	}
	if (p->ip4) {
		flow_widen(key6.saddr, p->ip4->saddr);
		flow_widen(key6.daddr, p->ip4->daddr);
	} else {
		__builtin_memcpy(key6.saddr, &p->ip6->saddr, 16);
		__builtin_memcpy(key6.daddr, &p->ip6->daddr, 16);
	}
	key6.sport = p->l4->source;
	key6.dport = p->l4->dest;
	key6.proto = p->proto;
	if (looks) {
		row = bpf_map_lookup_elem(&established, &key6);
		if (row)
			return row;
	}
	row = bpf_map_lookup_elem(&flows6, &key6);
	if (looks && !row && !flow_has_frontend(&key6))
		return NULL;
	return row ? row : flow_enter(p, sides, &flows6, &key6, fresh);
}
