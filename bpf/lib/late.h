/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what becomes of later fragments that overtake the first. They go on to the stack, since nobody
 * knows yet whose they are, and a copy waits. If the first then turns out to be ours, the copies come in once more,
 * by the device that they came by, and find its ports.
 *
 * No packet can be made here, but one can be sent and then be made another: the first is sent to where it came in,
 * then takes the bytes of one that waits, is sent again, and so on. */
#pragma once

#include "fragments.h"

/* The header of the link is in no sum. */
#define LATE_LINK sizeof(struct ethhdr)

static __always_inline struct late_tally *late_count(void)
{
	__u32 row = 0;

	return bpf_map_lookup_elem(&late_tally, &row);
}

/* Notes that the first fragment of a datagram is not ours: what follows need not wait for anything. */
__noinline int late_ignore(const struct packet *p)
{
	struct late_mark *mark;
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

static __always_inline bool late_is_stranger(const struct late_mark *mark, __u64 hash)
{
	__u64 stranger = *(volatile const __u64 *)&mark->stranger;

	return stranger >> 32 == hash >> 32 && ct_now() - (__u32)stranger <= FRAGMENT_TICKS;
}

static __always_inline bool late_take(struct late *row)
{
	return !__sync_val_compare_and_swap(&row->busy, 0, 1);
}

static __always_inline void late_release(struct late *row)
{
	__sync_lock_test_and_set(&row->busy, 0);
}

/* Whether so many bytes can be kept. They stay in one register, or the verifier forgets what is asked here. */
static __always_inline bool late_fits(__u32 *len)
{
	__u64 n = *len;

	asm volatile("" : "+r"(n));
	if (n <= LATE_LINK || n > LATE_BYTES)
		return false;
	asm volatile("" : "+r"(n));
	*len = n;
	return true;
}

/* Copies a fragment into the next row, over the one that has been there longest. */
static __always_inline bool late_copy(struct __sk_buff *skb, const struct datagram *key, struct late_tally *tally)
{
	__u32 turn = __sync_fetch_and_add(&tally->kept, 1) % LATE_FRAMES, len = skb->len;
	struct late_frame *frame = bpf_map_lookup_elem(&late_frames, &turn);
	struct late *row = bpf_map_lookup_elem(&late, &turn);

	if (!row || !frame || !late_fits(&len) || !late_take(row))
		return false;
	if (row->len && ct_now() - row->seen <= FRAGMENT_TICKS)
		__sync_fetch_and_add(&tally->lost, 1);
	row->datagram = *key;
	row->ifindex = skb->ifindex;
	row->seen = ct_now();
	row->len = bpf_skb_load_bytes(skb, 0, frame->bytes, len) ? 0 : len;
	late_release(row);
	return true;
}

/* Keeps a copy of a later fragment of which nothing is known. True: its first may have come meanwhile. */
__noinline int late_keep(struct __sk_buff *skb, const struct packet *p)
{
	struct late_tally *tally = late_count();
	struct late_mark *mark;
	struct datagram key;
	__u64 hash;

	if (!p || !tally)
		return false;
	key = fragment_key(p);
	hash = ct_hash((const struct flow *)&key);
	mark = fragment_mark(hash);
	if (!mark || late_is_stranger(mark, hash))
		return false;
	if (!late_copy(skb, &key, tally)) {
		__sync_fetch_and_add(&tally->refused, 1);
		return false;
	}
	__sync_lock_test_and_set(&mark->kept, ct_now() + 1);
	return true;
}

/* Makes a packet the one that waits in a row, which is free from then on. */
static __always_inline bool late_become(struct __sk_buff *skb, struct late *row, __u32 turn)
{
	struct late_frame *frame = bpf_map_lookup_elem(&late_frames, &turn);
	__u32 len = row->len;

	row->len = 0;
	if (!frame || !late_fits(&len))
		return false;
	/* It is made longer first: that way a sum over the whole packet that a device made is given up. */
	return !bpf_skb_change_tail(skb, skb->len + 1, 0) && !bpf_skb_change_tail(skb, len, 0) &&
	       !bpf_skb_store_bytes(skb, 0, frame->bytes, len, BPF_F_INVALIDATE_HASH);
}

/* What is on its way back. */
struct late_return {
	__u32 from; /* where the packet came in that is at hand */
	__u32 count;
};

/* Sends the packet at hand to where it came in, and makes it the one that waits in a row, if that is of the
 * datagram. False: it is neither the one nor the other then. Not static, so the verifier walks it once. */
__noinline int late_send(struct __sk_buff *skb, const struct packet *p, __u32 turn, struct late_return *r)
{
	struct late *row = bpf_map_lookup_elem(&late, &turn);
	struct datagram key;
	bool whole = true;

	if (!p || !r || !row || !row->len)
		return true;
	key = fragment_key(p);
	if (__builtin_memcmp(&row->datagram, &key, sizeof(key)) || !late_take(row))
		return true;
	if (row->len && !__builtin_memcmp(&row->datagram, &key, sizeof(key)) &&
	    ct_now() - row->seen <= FRAGMENT_TICKS) {
		bpf_clone_redirect(skb, r->from, BPF_F_INGRESS);
		r->from = row->ifindex;
		r->count++;
		whole = late_become(skb, row, turn);
	}
	late_release(row);
	return whole;
}

/* Gives back what waits for a first fragment that has left its ports. The packet is then the last of them, and the
 * others and itself are on their way to where they came in. Zero: none waits; else what is left to do with it. */
static __noinline int late_serve(struct __sk_buff *skb, const struct packet *p)
{
	struct late_return r = { .from = skb->ifindex };
	struct late_tally *tally = late_count();

	if (!tally || !fragment_is_awaited(p))
		return 0;
	for (__u32 turn = 0; turn < LATE_FRAMES; turn++) {
		if (late_send(skb, p, turn, &r))
			continue;
		__sync_fetch_and_add(&tally->lost, 1);
		return TC_ACT_SHOT;
	}
	if (!r.count)
		return 0;
	__sync_fetch_and_add(&tally->returned, r.count);
	return bpf_redirect(r.from, BPF_F_INGRESS);
}
