/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains flows: the table of established ones, the rows that say how a packet is
 * rewritten, one per direction, and what is decided about a packet by its row. */
#pragma once

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "config.h"
#include "count.h"
#include "csum.h"
#include "flow_hash.h"
#include "maps.h"
#include "reason.h"
#include "types.h"

/* The table of established flows. It is one map, or two while a larger one replaces it. During that
 * time other programs, compiled from the same source, are attached, and the agent announces its
 * progress in a word that all of them share. It goes on to the next stage only when every program
 * of every hook has seen the word.
 *
 * 	TABLE_OLD	the old map has everything. Programs that know only one map may still run
 * 	TABLE_BOTH	new rows go into the new map, and the agent carries the others over
 * 	TABLE_NEW	the new map has everything, and programs that know only it may run already
 *
 * While the word changes, some programs act by the old value and some by the new. So a program that
 * inserts a row looks into the other map afterward: of two programs at least one sees the other. If
 * there is only one map, `cfg` says so and the verifier removes the rest. */

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

static __always_inline __u32 flow_table_stage(void)
{
	__u32 zero = 0;
	__u32 *stage = bpf_map_lookup_elem(&ct_stage, &zero);

	return stage ? *(volatile __u32 *)stage : TABLE_OLD;
}

static __always_inline struct ct_entry *flow_table_lookup(const struct flow *flow)
{
	struct ct_entry *row = NULL;
	__u32 stage;

	if (!cfg.growing)
		return bpf_map_lookup_elem(&ct, flow);
	stage = flow_table_stage();
	if (stage != TABLE_OLD)
		row = bpf_map_lookup_elem(&ct, flow);
	if (!row && stage != TABLE_NEW)
		row = bpf_map_lookup_elem(&ct_old, flow);
	return row;
}

/* -EEXIST: the flow has a row. Errors are compared as int, because before Linux 6.4 maps set only
 * the lower half of the register. */
static __always_inline int flow_table_insert(const struct flow *flow, const struct ct_entry *row)
{
	__u32 stage;
	int err;

	if (!cfg.growing)
		return bpf_map_update_elem(&ct, flow, row, BPF_NOEXIST);
	stage = flow_table_stage();
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
static __always_inline long flow_table_write(const struct flow *flow, const struct ct_entry *row)
{
	if (cfg.growing && flow_table_stage() == TABLE_OLD)
		return bpf_map_update_elem(&ct_old, flow, row, BPF_ANY);
	return bpf_map_update_elem(&ct, flow, row, BPF_ANY);
}

/* Writes the row of a flow if it exists. */
static __always_inline long flow_table_replace(const struct flow *flow, const struct ct_entry *row)
{
	__u32 stage;

	if (!cfg.growing)
		return bpf_map_update_elem(&ct, flow, row, BPF_EXIST);
	stage = flow_table_stage();
	if (stage != TABLE_OLD && !bpf_map_update_elem(&ct, flow, row, BPF_EXIST))
		return 0;
	return stage == TABLE_NEW ? -ENOENT : bpf_map_update_elem(&ct_old, flow, row, BPF_EXIST);
}

/* Deletes from the old map first: the program that carries a row over checks there again. */
static __always_inline void flow_table_delete(const struct flow *flow)
{
	__u32 stage = cfg.growing ? flow_table_stage() : TABLE_NEW;

	if (stage != TABLE_NEW)
		bpf_map_delete_elem(&ct_old, flow);
	if (stage != TABLE_OLD)
		bpf_map_delete_elem(&ct, flow);
}

/* Connection tracking: rows that say how a packet is rewritten, one per direction of a flow. */

/* A row that was recycled between lookup and copy is looked up again. More attempts than this would
 * mean a storm. */
#define CT_TRIES 3

/* How far beyond the backend's first sequence number a client's ACK still proves that the client
 * has seen it. */
#define CT_PROOF_WINDOW 65536

static __always_inline __u32 flow_now(void)
{
	return bpf_jiffies64() >> cfg.tick_shift;
}

/* Part of the layout of rows: a row that was sealed in any other way belongs to no flow. */
static __always_inline __u16 flow_checksum(const struct flow *flow, const struct ct_entry *row)
{
	const __u64 *word = (const __u64 *)row;
	__u64 sum = flow_hash_sum(flow) + flow_hash_sum_addrs(word, flow_hash_factor + 5) +
		    row->kind * flow_hash_factor[12];

	for (int i = 4; i < 7; i++)
		sum += word[i] * flow_hash_factor[5 + i];
	return sum >> 48;
}

/* Copies a row, loading each word once, and computes its checksum on the way. False: the row is not
 * that of the flow with this sum, or was recycled meanwhile. */
static __always_inline bool flow_copy(const struct ct_entry *row, __u64 sum, struct ct_entry *out)
{
	const volatile __u64 *from = (const volatile __u64 *)row;

	((__u64 *)out)[8] = from[8]; /* not in the loop, which would then need the stack */
	for (int i = 0; i < 8; i++) {
		__u64 word = from[i];

		__builtin_memcpy((__u64 *)out + i, &word, sizeof(word));
		if (i < 7)
			sum += (i < 4 ? __builtin_bswap64(word) : word) * flow_hash_factor[5 + i];
	}
	sum += out->kind * flow_hash_factor[12];
	return sum >> 48 == out->checksum;
}

enum ct_known {
	CT_UNKNOWN,
	CT_KNOWN,
	CT_TORN,
};

/* Copies the row of an established flow while there are two maps that may have it. Not static, so
 * that the verifier walks it only once; otherwise it would walk everything that follows for a row
 * of either map. */
__noinline int flow_find_growing(const struct flow *flow, struct ct_entry *out)
{
	struct flow key; /* as in flow_known */

	if (!flow || !out || !cfg.growing)
		return CT_UNKNOWN;
	key = *flow;
	for (int i = 0; i < CT_TRIES; i++) {
		struct ct_entry *row = flow_table_lookup(&key);

		if (!row)
			return CT_UNKNOWN;
		if (flow_copy(row, flow_hash_sum(&key), out))
			return CT_KNOWN;
	}
	return CT_TORN;
}

/* Writes the unsealed fields of an established flow's row while there are two maps. */
__noinline int flow_touch_growing(const struct flow *flow, const struct ct_entry *to)
{
	struct ct_entry *row;
	struct flow key;

	if (!flow || !to || !cfg.growing)
		return 0;
	key = *flow;
	row = flow_table_lookup(&key);
	if (row) {
		row->seen = to->seen;
		row->state = to->state;
		row->seq_hi = to->seq_hi;
		row->syn_hi = to->syn_hi;
	}
	return 0;
}

/* Copies a row and returns a pointer to it; for `ct` while it is being replaced, a pointer to the
 * copy. NULL with `torn` set: it was recycled too often. NULL without: there is no row. */
static __always_inline struct ct_entry *flow_find(void *map, const struct flow *flow, struct ct_entry *out,
						  bool *torn)
{
	if (map == &ct && cfg.growing) {
		int known = flow_find_growing(flow, out);

		*torn = known == CT_TORN;
		return known == CT_KNOWN ? out : NULL;
	}
	for (int i = 0; i < CT_TRIES; i++) {
		struct ct_entry *row = bpf_map_lookup_elem(map, flow);

		*torn = false;
		if (!row)
			return NULL;
		if (flow_copy(row, flow_hash_sum(flow), out))
			return row;
		*torn = true;
	}
	return NULL;
}

/* Writes the ports and the protocol as one word, which is how maps and seals read them: a load that
 * spans several smaller stores stalls until they have reached the cache. */
static __always_inline void flow_set_ports(struct flow *flow, __be16 sport, __be16 dport, __u8 proto)
{
	__u64 word = sport | (__u32)dport << 16 | (__u64)proto << 32;

	__builtin_memcpy((__u64 *)flow + 4, &word, sizeof(word));
}

/* Writes a flow with both ends exchanged. */
static __always_inline void flow_turn(struct flow *out, const struct flow *flow)
{
	out->saddr = flow->daddr;
	out->daddr = flow->saddr;
	flow_set_ports(out, flow->dport, flow->sport, flow->proto);
}

/* The flow of the other direction: what replies to packets that leave as the row says. */
static __always_inline struct flow flow_reverse(const struct flow *flow, const struct ct_entry *row)
{
	struct flow back;

	back.saddr = row->daddr;
	back.daddr = row->saddr;
	flow_set_ports(&back, row->dport, row->sport, flow->proto);
	return back;
}

/* Computes the differences and the checksum of a row whose other fields are set. */
static __always_inline void flow_finish(const struct flow *flow, struct ct_entry *row)
{
	row->addr_diff =
		csum_fold(csum_addr_diff(&flow->saddr, &row->saddr) + csum_addr_diff(&flow->daddr, &row->daddr));
	row->port_diff =
		csum_fold((__u64)csum_port_diff(flow->sport, row->sport) + csum_port_diff(flow->dport, row->dport));
	row->checksum = flow_checksum(flow, row);
}

/* Where packets of a flow are translated, and what else its kind says. */
enum flow_place {
	FLOW_COMES_IN = 1, /* coming in by a device from outside */
	FLOW_LEAVES = 2,   /* leaving the node by a device to the outside */
	FLOW_FROM_POD = 4, /* coming from a pod's device */
	FLOW_TO_POD = 8,
	FLOW_STACK = 16,      /* the stack routes it: its row has no route */
	FLOW_LENDS_PORT = 32, /* the client appears with an address of this node and a port that is lent */
};

/* The table: for requests and for replies of each kind. Replies of a backend on this node may also come
 * in by a device, if the backend is behind one. */
/* clang-format off */
#define FLOW_PLACES(ROW) \
	ROW(FLOW_REMOTE,      FLOW_COMES_IN | FLOW_LENDS_PORT,               FLOW_COMES_IN)                                 | \
	ROW(FLOW_LOCAL,       FLOW_COMES_IN | FLOW_STACK,                    FLOW_LEAVES | FLOW_COMES_IN | FLOW_STACK)      | \
	ROW(FLOW_MASQUERADED, FLOW_LEAVES | FLOW_STACK | FLOW_LENDS_PORT,    FLOW_COMES_IN | FLOW_STACK)                    | \
	ROW(FLOW_POD,         FLOW_FROM_POD | FLOW_STACK,                    FLOW_TO_POD | FLOW_STACK)                      | \
	ROW(FLOW_POD_SELF,    FLOW_FROM_POD | FLOW_STACK | FLOW_LENDS_PORT,  FLOW_TO_POD | FLOW_STACK)                      | \
	ROW(FLOW_HOST,        FLOW_LEAVES | FLOW_LENDS_PORT,                 FLOW_COMES_IN | FLOW_FROM_POD | FLOW_STACK)    | \
	ROW(FLOW_HOST_LOCAL,  FLOW_LEAVES | FLOW_STACK,                      FLOW_LEAVES | FLOW_COMES_IN | FLOW_STACK)      | \
	ROW(FLOW_DSR_IPIP,    FLOW_COMES_IN,                                 0)                                             | \
	ROW(FLOW_DSR_GENEVE,  FLOW_COMES_IN,                                 0)                                             | \
	ROW(FLOW_DSR_OPT,     FLOW_COMES_IN,                                 0)
/* clang-format on */

/* A bit for each kind and direction: of the table and a place the compiler makes one constant. */
#define FLOW_BITS(kind, requests, replies)                                                                         \
	((__u32) !!((requests) & place) << (kind) | (__u32) !!((replies) & place) << ((kind) + FLOW_REPLY))

/* Reports what the table says of packets of a row. The place must be a constant: otherwise the table is
 * read entry by entry. */
static __always_inline bool flow_is(const struct ct_entry *row, enum flow_place place)
{
	return (FLOW_PLACES(FLOW_BITS)) >> (row->kind & (FLOW_KIND | FLOW_REPLY)) & 1;
}

static __always_inline enum flow_kind flow_kind(const struct ct_entry *row)
{
	return row->kind & FLOW_KIND;
}

/* Reports whether a pod of this node began a flow to a service, by packets. */
static __always_inline bool flow_is_of_pod(const struct ct_entry *row)
{
	return flow_kind(row) == FLOW_POD || flow_kind(row) == FLOW_POD_SELF;
}

/* Reports whether this node itself did. */
static __always_inline bool flow_is_of_host(const struct ct_entry *row)
{
	return flow_kind(row) == FLOW_HOST || flow_kind(row) == FLOW_HOST_LOCAL;
}

/* Reports whether a packet that came in by a device has a row for packets that leave or that a pod
 * sends: then an outside host pretends to be one of our pods, or this node. */
static __always_inline bool flow_is_astray(const struct ct_entry *row)
{
	return !(row->kind & FLOW_REPLY) && !flow_is(row, FLOW_COMES_IN);
}

/* Reports whether a row translates to the reverse of a flow: then each row undoes what the other
 * does. */
static __always_inline bool flow_leads(const struct ct_entry *row, const struct flow *flow)
{
	return addr_equal(&row->daddr, &flow->saddr) && addr_equal(&row->saddr, &flow->daddr) &&
	       row->dport == flow->sport && row->sport == flow->dport;
}

/* A request's row in `ct_pending` is valid only while the reply's row is there too. */
static __noinline int flow_is_whole(const struct flow *flow, const struct ct_entry *row)
{
	struct flow back = flow_reverse(flow, row);
	struct ct_entry *reply = bpf_map_lookup_elem(&ct_pending, &back);

	return row->kind & (FLOW_REPLY | FLOW_DSR) || (reply && flow_leads(reply, flow));
}

/* Copies the row of a flow, for packets that neither begin nor extend one. Not static, so that the
 * verifier walks it only once. */
__noinline int flow_known(const struct flow *flow, struct ct_entry *out)
{
	/* Linux 6.1 does not accept a key in the stack frame of a caller that it does not know */
	struct flow key;
	bool torn = false;

	if (!flow || !out)
		return CT_UNKNOWN;
	key = *flow;
	if (flow_find(&ct, &key, out, &torn))
		return CT_KNOWN;
	if (!torn && flow_find(&ct_pending, &key, out, &torn))
		return flow_is_whole(&key, out) ? CT_KNOWN : CT_UNKNOWN;
	return torn ? CT_TORN : CT_UNKNOWN;
}

static __always_inline bool flow_same_rewrite(const struct ct_entry *a, const struct ct_entry *b)
{
	return addr_equal(&a->saddr, &b->saddr) && addr_equal(&a->daddr, &b->daddr) && a->sport == b->sport &&
	       a->dport == b->dport;
}

static __always_inline void flow_pending_delete(const struct flow *flow)
{
	if (!bpf_map_delete_elem(&ct_pending, flow))
		count_lru_deleted(LRU_CT_PENDING, 1);
}

/* Claims a flow for a row: no other flow may have it, in either map. The order matters: a flow that
 * is being established is inserted into `ct` before it leaves `ct_pending`, so this cannot miss it in
 * both. */
static __always_inline bool flow_claim(const struct flow *flow, const struct ct_entry *row)
{
	if (bpf_map_update_elem(&ct_pending, flow, row, BPF_NOEXIST)) {
		struct ct_entry *known = bpf_map_lookup_elem(&ct_pending, flow);

		return known && flow_same_rewrite(known, row);
	}
	count_lru_made(LRU_CT_PENDING);
	if (!flow_table_lookup(flow))
		return true;
	flow_pending_delete(flow);
	return false;
}

enum verdict {
	VERDICT_PASS,
	VERDICT_DROP,
	VERDICT_REWRITE,
};

enum reject {
	REJECT_NONE,
	REJECT_RESET,	    /* TCP RST */
	REJECT_UNREACHABLE, /* ICMP: port unreachable */
	REJECT_EXPIRED,	    /* ICMP: time exceeded */
	REJECT_TOO_BIG,	    /* ICMP: the packet exceeds the MTU of the next link */
};

struct action {
	__u8 verdict;  /* enum verdict */
	__u8 reason;   /* enum reason, for a drop */
	__u8 reject;   /* enum reject, to a dropped packet */
	bool is_first; /* first packet of a flow, which may still be sent another way */
	union {
		__u32 mtu;  /* for REJECT_TOO_BIG */
		__u32 rule; /* for REASON_POLICY and REASON_POLICY_AUDIT */
	};
	struct ct_entry to; /* for a rewrite */
};

static __always_inline int flow_drop(struct action *a, enum reason reason)
{
	a->verdict = VERDICT_DROP;
	a->reason = reason;
	return 0;
}

/* Drops a packet that has no hops left, with the ICMP error that a router sends. */
static __always_inline int flow_expire(struct action *a)
{
	a->reject = REJECT_EXPIRED;
	return flow_drop(a, REASON_TTL);
}

/* Applies the row of a flow to a packet that neither begins nor extends it. */
static __always_inline int flow_apply_known(struct action *a, const struct flow *flow)
{
	int known = flow_known(flow, &a->to);

	if (known == CT_TORN)
		return flow_drop(a, REASON_FLOW_RACE);
	if (known == CT_KNOWN)
		a->verdict = VERDICT_REWRITE;
	return 0;
}

/* Returns what the agent says if it follows changes up to the tick in which the row is used, or
 * NULL. The agent writes `changed` before it vouches. So a program that loads `changed` after
 * `until` never sees the promise without the change before it. */
static __always_inline const struct route_epoch *flow_route_epoch(const struct ct_entry *row)
{
	__u32 zero = 0;
	struct route_epoch *told = bpf_map_lookup_elem(&route_epoch, &zero);

	return told && (__s32)(*(volatile __u32 *)&told->until - *(const volatile __u32 *)&row->seen) >= 0 ? told
													   : NULL;
}

/* Reports whether what was valid in the tick `before` may have changed since. `before` is a
 * pointer, so that the value is loaded only here: there is no register or stack to keep it in until
 * then. */
static __always_inline bool flow_route_is_old(const __u32 *before, const __u32 *changed)
{
	return (__s32)(*before - *(const volatile __u32 *)changed) <= 0;
}

/* Initializes the row of a reply, which undoes the request's row, without its route and port. The
 * caller has to complete it with flow_finish. */
static __always_inline void flow_reply_row(const struct flow *flow, const struct ct_entry *there,
					   struct ct_entry *row)
{
	__builtin_memset(row, 0, sizeof(*row));
	row->saddr = flow->daddr;
	row->daddr = flow->saddr;
	row->sport = flow->dport;
	row->dport = flow->sport;
	row->kind = FLOW_REPLY | there->kind;
	row->seen = flow_now();
}

/* Reports whether packets of a row leave the node rather than come in: replies of a backend on this
 * node to a client by the client's own address. */
static __always_inline bool flow_leaves(const struct ct_entry *row)
{
	return (row->kind & (FLOW_KIND | FLOW_REPLY)) == (FLOW_LOCAL | FLOW_REPLY);
}
