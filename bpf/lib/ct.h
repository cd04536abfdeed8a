/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains connection tracking: rows that say how a packet is rewritten, one per
 * direction of a flow. */
#pragma once

#include <linux/errno.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "csum.h"
#include "maps.h"
#include "packet.h"
#include "packetcfg.h"
#include "table.h"
#include "lru_stats.h"

/* A row that was recycled between lookup and copy is looked up again. More attempts than this would
 * mean a storm. */
#define CT_TRIES 3

/* How far beyond the backend's first sequence number a client's ACK still proves that the client
 * has seen it. */
#define CT_PROOF_WINDOW 65536

static __always_inline __u32 ct_now(void)
{
	return bpf_jiffies64() >> cfg.tick_shift;
}

/* Mixes a word into a hash of which the upper bits are used. */
static __always_inline __u64 ct_mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

/* Factors for a sum of products, one for each word. They are odd and random, but chosen so that any
 * change of one byte of a word changes the upper 16 bits of the sum (TestSealOfEveryByte). No
 * product waits for another, so all of them take little longer than one; a hash that chains its
 * words takes as long as all of them in sequence. */
static const __u64 ct_factor[] = {
	0xe1454c40c439f34bULL, 0x26b563b1e794ee15ULL, 0xac8be7d742840d2bULL, 0xe7ca430e92ac3d43ULL,
	0x1333bc1cfe6c2b03ULL, 0x20050ed31a6e72b9ULL, 0x94a67f00f335c357ULL, 0x332726d0356a4153ULL,
	0xa0187b4d51209e8fULL, 0xae6ac4a9e89c5bc7ULL, 0x542861cd55e7d67fULL, 0x17bcc74d6d683cf9ULL,
	0x8491cabea0afe357ULL,
};

/* The sum over the four words of two addresses. Neighboring addresses differ in their last bytes,
 * and the upper bits of a product depend on everything below them, so the swap moves these bytes to
 * the lower end. */
static __always_inline __u64 ct_sum_addrs(const __u64 *word, const __u64 *factor)
{
	__u64 sum = 0;

	for (int i = 0; i < 4; i++)
		sum += __builtin_bswap64(word[i]) * factor[i];
	return sum;
}

static __always_inline __u64 ct_sum(const struct flow *flow)
{
	const __u64 *word = (const __u64 *)flow;

	return ct_sum_addrs(word, ct_factor) + word[4] * ct_factor[4];
}

/* A hash of which the upper half is to be used: the low bits of a sum of products are only as good
 * as the low bits of its words. */
static __always_inline __u64 ct_hash(const struct flow *flow)
{
	__u64 sum = ct_sum(flow);

	return ct_mix(sum ^ sum >> 32, 0);
}

/* Part of the layout of rows: a row that was sealed in any other way belongs to no flow. */
static __always_inline __u16 ct_checksum(const struct flow *flow, const struct ct_entry *row)
{
	const __u64 *word = (const __u64 *)row;
	__u64 sum = ct_sum(flow) + ct_sum_addrs(word, ct_factor + 5) + row->flags * ct_factor[12];

	for (int i = 4; i < 7; i++)
		sum += word[i] * ct_factor[5 + i];
	return sum >> 48;
}

/* Copies a row, loading each word once, and computes its checksum on the way. False: the row is not
 * that of the flow with this sum, or was recycled meanwhile. */
static __always_inline bool ct_copy(const struct ct_entry *row, __u64 sum, struct ct_entry *out)
{
	const volatile __u64 *from = (const volatile __u64 *)row;

	((__u64 *)out)[8] = from[8]; /* not in the loop, which would then need the stack */
	for (int i = 0; i < 8; i++) {
		__u64 word = from[i];

		__builtin_memcpy((__u64 *)out + i, &word, sizeof(word));
		if (i < 7)
			sum += (i < 4 ? __builtin_bswap64(word) : word) * ct_factor[5 + i];
	}
	sum += out->flags * ct_factor[12];
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
__noinline int ct_find_growing(const struct flow *flow, struct ct_entry *out)
{
	struct flow key; /* as in ct_known */

	if (!flow || !out || !cfg.growing)
		return CT_UNKNOWN;
	key = *flow;
	for (int i = 0; i < CT_TRIES; i++) {
		struct ct_entry *row = table_lookup(&key);

		if (!row)
			return CT_UNKNOWN;
		if (ct_copy(row, ct_sum(&key), out))
			return CT_KNOWN;
	}
	return CT_TORN;
}

/* Writes the unsealed fields of an established flow's row while there are two maps. */
__noinline int ct_touch_growing(const struct flow *flow, const struct ct_entry *to)
{
	struct ct_entry *row;
	struct flow key;

	if (!flow || !to || !cfg.growing)
		return 0;
	key = *flow;
	row = table_lookup(&key);
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
static __always_inline struct ct_entry *ct_find(void *map, const struct flow *flow, struct ct_entry *out,
						bool *torn)
{
	if (map == &ct && cfg.growing) {
		int known = ct_find_growing(flow, out);

		*torn = known == CT_TORN;
		return known == CT_KNOWN ? out : NULL;
	}
	for (int i = 0; i < CT_TRIES; i++) {
		struct ct_entry *row = bpf_map_lookup_elem(map, flow);

		*torn = false;
		if (!row)
			return NULL;
		if (ct_copy(row, ct_sum(flow), out))
			return row;
		*torn = true;
	}
	return NULL;
}

/* Writes the ports and the protocol as one word, which is how maps and seals read them: a load that
 * spans several smaller stores stalls until they have reached the cache. */
static __always_inline void ct_set_ports(struct flow *flow, __be16 sport, __be16 dport, __u8 proto)
{
	__u64 word = sport | (__u32)dport << 16 | (__u64)proto << 32;

	__builtin_memcpy((__u64 *)flow + 4, &word, sizeof(word));
}

/* The flow of the other direction: what replies to packets that leave as the row says. */
static __always_inline struct flow ct_back(const struct flow *flow, const struct ct_entry *row)
{
	struct flow back;

	back.saddr = row->daddr;
	back.daddr = row->saddr;
	ct_set_ports(&back, row->dport, row->sport, flow->proto);
	return back;
}

/* Computes the differences and the checksum of a row whose other fields are set. */
static __always_inline void ct_finish(const struct flow *flow, struct ct_entry *row)
{
	row->addr_diff =
		csum_fold(csum_addr_diff(&flow->saddr, &row->saddr) + csum_addr_diff(&flow->daddr, &row->daddr));
	row->port_diff =
		csum_fold((__u64)csum_port_diff(flow->sport, row->sport) + csum_port_diff(flow->dport, row->dport));
	row->checksum = ct_checksum(flow, row);
}

/* Where a packet is, other than coming in from outside. */
enum ct_side {
	CT_LEAVING,  /* leaving the node by a device to the outside */
	CT_FROM_POD, /* coming from a pod's device */
	CT_TO_POD,
};

/* Reports whether packets of a row are translated at this place. */
static __always_inline bool ct_is_at(const struct ct_entry *row, enum ct_side side)
{
	__u8 flags = row->flags & (CT_REPLY | CT_POD | CT_POD_FLOW | CT_NODE);

	if (side == CT_FROM_POD)
		return (flags & (CT_REPLY | CT_POD_FLOW)) == CT_POD_FLOW || flags == (CT_REPLY | CT_POD | CT_NODE);
	if (side == CT_TO_POD)
		return (flags & (CT_REPLY | CT_POD_FLOW)) == (CT_REPLY | CT_POD_FLOW);
	return !(flags & CT_POD_FLOW) && (!(flags & CT_REPLY) == !!(flags & CT_POD) || flags == CT_NODE);
}

/* Reports whether a packet that came in by a device has a row for packets that leave or that a pod
 * sends: then an outside host pretends to be one of our pods, or this node. */
static __always_inline bool ct_is_astray(const struct ct_entry *row)
{
	return !(row->flags & CT_REPLY) && row->flags & (CT_POD | CT_POD_FLOW | CT_NODE);
}

/* Reports whether packets of a row are translated where they come in by a device. */
static __always_inline bool ct_comes_in(const struct ct_entry *row)
{
	return !(row->flags & CT_POD_FLOW) && !ct_is_astray(row);
}

/* Reports whether a row translates to the reverse of a flow: then each row undoes what the other
 * does. */
static __always_inline bool ct_leads(const struct ct_entry *row, const struct flow *flow)
{
	return addr_equal(&row->daddr, &flow->saddr) && addr_equal(&row->saddr, &flow->daddr) &&
	       row->dport == flow->sport && row->sport == flow->dport;
}

/* A request's row in `ct_pending` is valid only while the reply's row is there too. */
static __noinline int ct_is_whole(const struct flow *flow, const struct ct_entry *row)
{
	struct flow back = ct_back(flow, row);
	struct ct_entry *reply = bpf_map_lookup_elem(&ct_pending, &back);

	return row->flags & (CT_REPLY | CT_DSR) || (reply && ct_leads(reply, flow));
}

/* Copies the row of a flow, for packets that neither begin nor extend one. Not static, so that the
 * verifier walks it only once. */
__noinline int ct_known(const struct flow *flow, struct ct_entry *out)
{
	/* Linux 6.1 does not accept a key in the stack frame of a caller that it does not know */
	struct flow key;
	bool torn = false;

	if (!flow || !out)
		return CT_UNKNOWN;
	key = *flow;
	if (ct_find(&ct, &key, out, &torn))
		return CT_KNOWN;
	if (!torn && ct_find(&ct_pending, &key, out, &torn))
		return ct_is_whole(&key, out) ? CT_KNOWN : CT_UNKNOWN;
	return torn ? CT_TORN : CT_UNKNOWN;
}

static __always_inline bool ct_same_rewrite(const struct ct_entry *a, const struct ct_entry *b)
{
	return addr_equal(&a->saddr, &b->saddr) && addr_equal(&a->daddr, &b->daddr) && a->sport == b->sport &&
	       a->dport == b->dport;
}

static __always_inline void ct_pending_delete(const struct flow *flow)
{
	if (!bpf_map_delete_elem(&ct_pending, flow))
		lru_stats_deleted(LRU_CT_PENDING, 1);
}

/* Claims a flow for a row: no other flow may have it, in either map. The order matters: a flow that
 * is being established is inserted into `ct` before it leaves `ct_pending`, so this cannot miss it in
 * both. */
static __always_inline bool ct_claim(const struct flow *flow, const struct ct_entry *row)
{
	if (bpf_map_update_elem(&ct_pending, flow, row, BPF_NOEXIST)) {
		struct ct_entry *known = bpf_map_lookup_elem(&ct_pending, flow);

		return known && ct_same_rewrite(known, row);
	}
	lru_stats_made(LRU_CT_PENDING);
	if (!table_lookup(flow))
		return true;
	ct_pending_delete(flow);
	return false;
}
