/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains later fragments that overtake the first one. They go on to the stack, because
 * their flow is not yet known, and a copy is kept. If the first fragment then turns out to be ours,
 * the copies come in once more by the device they came by, and find the ports.
 *
 * A tc program cannot create a packet, but it can clone one and then overwrite the original: the
 * first fragment is sent to where it came in, then takes the bytes of a waiting one, is sent again,
 * and so on. */
#pragma once

#include "fragments.h"

/* No checksum covers the link header. */
#define EARLY_LINK sizeof(struct ethhdr)

static __always_inline struct early_tally *early_fragments_count(void)
{
	__u32 row = 0;

	return bpf_map_lookup_elem(&early_tally, &row);
}

/* Notes that the first fragment of a datagram is not ours: later ones need not be kept. */
__noinline int early_fragments_ignore(const struct packet *p)
{
	struct early_mark *mark;
	struct datagram key;
	__u64 hash;

	if (!p)
		return 0;
	key = fragment_key(p);
	hash = ct_hash((const struct flow *)&key);
	mark = fragment_mark(hash);
	if (mark)
		*(volatile __u64 *)&mark->stranger = (hash >> 32 << 32) | ct_now();
	return 0;
}

static __always_inline bool early_fragments_is_stranger(const struct early_mark *mark, __u64 hash)
{
	__u64 stranger = *(volatile const __u64 *)&mark->stranger;

	return stranger >> 32 == hash >> 32 && ct_now() - (__u32)stranger <= FRAGMENT_TICKS;
}

static __always_inline bool early_fragments_take(struct late *row)
{
	return !__sync_val_compare_and_swap(&row->busy, 0, 1);
}

static __always_inline void early_fragments_release(struct late *row)
{
	__sync_lock_test_and_set(&row->busy, 0);
}

/* Reports whether a frame of this length can be kept. The asm keeps the length in one register;
 * otherwise the verifier forgets the check. */
static __always_inline bool early_fragments_fits(__u32 *len)
{
	__u64 n = *len;

	asm volatile("" : "+r"(n));
	if (n <= EARLY_LINK || n > EARLY_BYTES)
		return false;
	asm volatile("" : "+r"(n));
	*len = n;
	return true;
}

/* Copies a fragment into the next row, over the oldest one. */
static __always_inline bool early_fragments_copy(struct __sk_buff *skb, const struct datagram *key,
						 struct early_tally *tally)
{
	__u32 turn = __sync_fetch_and_add(&tally->kept, 1) % EARLY_FRAMES, len = skb->len;
	struct early_frame *frame = bpf_map_lookup_elem(&early_frames, &turn);
	struct late *row = bpf_map_lookup_elem(&late, &turn);

	if (!row || !frame || !early_fragments_fits(&len) || !early_fragments_take(row))
		return false;
	if (row->len && ct_now() - row->seen <= FRAGMENT_TICKS)
		__sync_fetch_and_add(&tally->lost, 1);
	row->datagram = *key;
	row->ifindex = skb->ifindex;
	row->seen = ct_now();
	row->len = bpf_skb_load_bytes(skb, 0, frame->bytes, len) ? 0 : len;
	early_fragments_release(row);
	return true;
}

/* Keeps a copy of a later fragment of which nothing is known. True: the first may have arrived
 * meanwhile. */
__noinline int early_fragments_keep(struct __sk_buff *skb, const struct packet *p)
{
	struct early_tally *tally = early_fragments_count();
	struct early_mark *mark;
	struct datagram key;
	__u64 hash;

	if (!p || !tally)
		return false;
	key = fragment_key(p);
	hash = ct_hash((const struct flow *)&key);
	mark = fragment_mark(hash);
	if (!mark || early_fragments_is_stranger(mark, hash))
		return false;
	if (!early_fragments_copy(skb, &key, tally)) {
		__sync_fetch_and_add(&tally->refused, 1);
		return false;
	}
	__sync_lock_test_and_set(&mark->kept, ct_now() + 1);
	return true;
}

/* Turns a packet into the one that waits in a row, and frees the row. */
static __always_inline bool early_fragments_become(struct __sk_buff *skb, struct late *row, __u32 turn)
{
	struct early_frame *frame = bpf_map_lookup_elem(&early_frames, &turn);
	__u32 len = row->len;

	row->len = 0;
	if (!frame || !early_fragments_fits(&len))
		return false;
	/* Growing it first discards a checksum over the whole packet that the device computed. */
	return !bpf_skb_change_tail(skb, skb->len + 1, 0) && !bpf_skb_change_tail(skb, len, 0) &&
	       !bpf_skb_store_bytes(skb, 0, frame->bytes, len, BPF_F_INVALIDATE_HASH);
}

/* The state of sending fragments again. */
struct early_return {
	__u32 from; /* where the current packet came in */
	__u32 count;
};

/* If a row has a fragment of the datagram, sends the current packet to where it came in and turns
 * it into that fragment. False: that failed, and the packet is now neither of them. Not static, so
 * that the verifier walks it only once. */
__noinline int early_fragments_send(struct __sk_buff *skb, const struct packet *p, __u32 turn,
				    struct early_return *r)
{
	struct late *row = bpf_map_lookup_elem(&late, &turn);
	struct datagram key;
	bool whole = true;

	if (!p || !r || !row || !row->len)
		return true;
	key = fragment_key(p);
	if (__builtin_memcmp(&row->datagram, &key, sizeof(key)) || !early_fragments_take(row))
		return true;
	if (row->len && !__builtin_memcmp(&row->datagram, &key, sizeof(key)) &&
	    ct_now() - row->seen <= FRAGMENT_TICKS) {
		bpf_clone_redirect(skb, r->from, BPF_F_INGRESS);
		r->from = row->ifindex;
		r->count++;
		whole = early_fragments_become(skb, row, turn);
	}
	early_fragments_release(row);
	return whole;
}

/* Sends the fragments that wait for a first fragment, which has stored its ports. The others, and
 * the first itself, are then on their way to where they came in, and the packet is the last of
 * them. Returns zero if none waits, otherwise the verdict for the packet. */
static __noinline int early_fragments_serve(struct __sk_buff *skb, const struct packet *p)
{
	struct early_return r = { .from = skb->ifindex };
	struct early_tally *tally = early_fragments_count();

	if (!tally || !fragment_is_awaited(p))
		return 0;
	for (__u32 turn = 0; turn < EARLY_FRAMES; turn++) {
		if (early_fragments_send(skb, p, turn, &r))
			continue;
		__sync_fetch_and_add(&tally->lost, 1);
		return TC_ACT_SHOT;
	}
	if (!r.count)
		return 0;
	__sync_fetch_and_add(&tally->returned, r.count);
	return bpf_redirect(r.from, BPF_F_INGRESS);
}
