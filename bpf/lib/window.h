/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how much those who send to a pod that is kept to a rate may have on their way to it. Who asks
 * to be told of a jam is told by a mark on its packets (edt.h); others would send more and more until something is
 * lost. So, as long as much waits, they are told that the pod has less room than it has (hold.h): together as much
 * as the rate lets through in WINDOW_ALL, and each an equal part of that. */
#pragma once

#include <bpf/bpf_helpers.h>

#include "podrows.h"

#define WINDOW_SECOND 1000000000ULL
#define WINDOW_ALL 5			  /* parts of a second */
#define WINDOW_TURN (WINDOW_SECOND / 4)	  /* who has sent nothing for two of these is no sender */
#define WINDOW_PAUSE (2 * WINDOW_SECOND)  /* if nobody has for so long, all begin anew */
#define WINDOW_LONG (WINDOW_SECOND / 7)	  /* senders are held if packets have to wait for longer */
#define WINDOW_SHORT (WINDOW_SECOND / 20) /* and let go by and by if for less, or the rate would not be reached */
#define WINDOW_SMALL 120		  /* bytes: an acknowledgement, and no sender that could be held */

/* How much of an equal part each may have, in sixteenths. Those who are far away need more than one, and where much
 * comes that nobody can hold (UDP) less is left for the others. */
enum {
	WINDOW_LEAST = 4,
	WINDOW_PART = 16,
	WINDOW_FREE = 1024, /* all they want */
};

/* The number of bits that are set. */
static __always_inline __u64 window_count(__u64 bits)
{
	bits -= bits >> 1 & 0x5555555555555555ULL;
	bits = (bits & 0x3333333333333333ULL) + (bits >> 2 & 0x3333333333333333ULL);
	return ((bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fULL) * 0x0101010101010101ULL >> 56;
}

/* Begins another turn, if this one is over. Another processor may have begun one that is not yet by our clock, or
 * the first of all, of which no part is known yet. */
static __always_inline __u64 window_turn(struct pod_window *w, __u64 now, __u64 wait)
{
	__u64 began = *(volatile __u64 *)&w->began, part = w->part;
	__s64 since = now - began;
	bool idle = since > (__s64)(2 * WINDOW_TURN);

	if (part < WINDOW_LEAST)
		part = WINDOW_FREE;
	if (since <= (__s64)WINDOW_TURN || __sync_val_compare_and_swap(&w->began, began, now) != began)
		return part;
	w->flows_before = idle ? 0 : w->flows;
	w->flows = 0;
	if (since > (__s64)WINDOW_PAUSE || part >= WINDOW_FREE)
		return WINDOW_FREE;
	if (wait < WINDOW_SHORT)
		return part + part / 4;
	return wait > 2 * WINDOW_LONG && part > WINDOW_LEAST ? part - part / 4 : part;
}

/* Notes that a packet for a pod has to wait for so long. Processors that do so at the same time may undo what the
 * other has noted; the next packet notes it again. */
static __always_inline void window_note(struct __sk_buff *skb, struct pod_window *w, __u64 rate, __u64 now,
					__u64 wait)
{
	__u64 bit = 1ULL << (bpf_get_hash_recalc(skb) & 63), part = window_turn(w, now, wait), bytes, flows;

	if (wait > WINDOW_LONG && part > WINDOW_PART)
		part = WINDOW_PART;
	w->part = part;
	if (skb->len > WINDOW_SMALL && !(w->flows & bit))
		w->flows |= bit;
	flows = window_count(w->flows | w->flows_before);
	bytes = rate / WINDOW_ALL * part / WINDOW_PART / (flows ? flows : 1);
	*(volatile __u64 *)&w->bytes = part >= WINDOW_FREE ? 0 : bytes + 1;
}
