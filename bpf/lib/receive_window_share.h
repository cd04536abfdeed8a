/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how much senders to a rate-limited pod may have in flight. Senders that
 * support ECN learn of congestion by a mark on their packets (edt.h); others would send more and
 * more until packets are lost. So, while much waits, the pod advertises less room to them than it
 * has (receive_window.h): together as much as the rate lets through in a RECEIVE_WINDOW_ALL-th of a second, shared
 * equally. */
#pragma once

#include <bpf/bpf_helpers.h>

#include "podrows.h"

#define RECEIVE_WINDOW_SECOND 1000000000ULL
#define RECEIVE_WINDOW_ALL 5 /* parts of a second */
/* length of a round; a sender that sends nothing for two rounds no longer counts */
#define RECEIVE_WINDOW_TURN (RECEIVE_WINDOW_SECOND / 4)
/* if no packet came for this long, everything starts over */
#define RECEIVE_WINDOW_PAUSE (2 * RECEIVE_WINDOW_SECOND)
#define RECEIVE_WINDOW_LONG (RECEIVE_WINDOW_SECOND / 7) /* senders are limited if packets have to wait longer */
/* and released gradually if less, as otherwise the rate would not be reached */
#define RECEIVE_WINDOW_SHORT (RECEIVE_WINDOW_SECOND / 20)
/* bytes: an acknowledgment, whose sender cannot be limited */
#define RECEIVE_WINDOW_SMALL 120

/* How much of an equal part each sender may have, in sixteenths. Distant senders need more than one
 * part, and if much traffic comes from senders that cannot be limited (UDP), less is left for the
 * others. */
enum {
	RECEIVE_WINDOW_LEAST = 4,
	RECEIVE_WINDOW_PART = 16,
	RECEIVE_WINDOW_FREE = 1024, /* unlimited */
};

/* The number of set bits. */
static __always_inline __u64 receive_window_count(__u64 bits)
{
	bits -= bits >> 1 & 0x5555555555555555ULL;
	bits = (bits & 0x3333333333333333ULL) + (bits >> 2 & 0x3333333333333333ULL);
	return ((bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fULL) * 0x0101010101010101ULL >> 56;
}

/* Begins the next round if this one is over, and returns the part. Another CPU may have begun a
 * round that is still in the future by our clock, or the very first one, whose part is not set
 * yet. */
static __always_inline __u64 receive_window_turn(struct receive_window *w, __u64 now, __u64 wait)
{
	__u64 began = *(volatile __u64 *)&w->began, part = w->part;
	__s64 since = now - began;
	bool idle = since > (__s64)(2 * RECEIVE_WINDOW_TURN);

	if (part < RECEIVE_WINDOW_LEAST)
		part = RECEIVE_WINDOW_FREE;
	if (since <= (__s64)RECEIVE_WINDOW_TURN || __sync_val_compare_and_swap(&w->began, began, now) != began)
		return part;
	w->flows_before = idle ? 0 : w->flows;
	w->flows = 0;
	if (since > (__s64)RECEIVE_WINDOW_PAUSE || part >= RECEIVE_WINDOW_FREE)
		return RECEIVE_WINDOW_FREE;
	if (wait < RECEIVE_WINDOW_SHORT)
		return part + part / 4;
	return wait > 2 * RECEIVE_WINDOW_LONG && part > RECEIVE_WINDOW_LEAST ? part - part / 4 : part;
}

/* Reports whether a packet is for a group, such as the node's own reports of its IPv6 groups. No
 * sender of those reads the pod's window. */
static __always_inline bool receive_window_is_group(struct __sk_buff *skb)
{
	__u8 first;

	return !bpf_skb_load_bytes(skb, 0, &first, sizeof(first)) && first & 1;
}

/* Notes that a packet for a pod has to wait for `wait` ns. CPUs that do this at the same time may
 * overwrite each other's notes; the next packet repeats them. */
static __always_inline void receive_window_note(struct __sk_buff *skb, struct receive_window *w, __u64 rate,
						__u64 now, __u64 wait)
{
	__u64 bit = 1ULL << (bpf_get_hash_recalc(skb) & 63), part = receive_window_turn(w, now, wait), bytes, flows;

	if (wait > RECEIVE_WINDOW_LONG && part > RECEIVE_WINDOW_PART)
		part = RECEIVE_WINDOW_PART;
	w->part = part;
	if (skb->len > RECEIVE_WINDOW_SMALL && !(w->flows & bit) && !receive_window_is_group(skb))
		w->flows |= bit;
	flows = receive_window_count(w->flows | w->flows_before);
	bytes = rate / RECEIVE_WINDOW_ALL * part / RECEIVE_WINDOW_PART / (flows ? flows : 1);
	*(volatile __u64 *)&w->bytes = part >= RECEIVE_WINDOW_FREE ? 0 : bytes + 1;
}
