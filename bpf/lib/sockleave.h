/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains when a socket may leave the map without losing data. */
#pragma once

#include "sockkernel.h"
#include "sockpair.h"

enum {
	STREAMS_MOST = 4, /* how often a connection may become a stream soon and come back */
	STREAM_PAYS = 4,  /* messages past TCP that make up for each message of a stream in the map */
};

/* Makes a connection leave the map whose one side keeps sending. Unless it has gained enough before,
 * it takes longer to prove that it has become a conversation again. */
static __always_inline void leave_streaming(struct pair *pair)
{
	if (__sync_val_compare_and_swap(&pair->state, PAIR_SHORT, PAIR_LEAVING) != PAIR_SHORT)
		return;
	if (pair->turns < STREAM_PAYS * cfg.stream) {
		pair->needed *= 4;
		pair->streamed++;
	}
	tell(WAKE_LEAVE);
}

/* Reports whether a connection's sockets should leave the map. */
static __always_inline bool is_leaving(struct pair *pair, bool on)
{
	__u32 state;

	if (!pair)
		return true; /* the other end has closed */
	state = pair->state;
	if (!on && state != PAIR_EXCLUDED && state != PAIR_LEAVING)
		__sync_val_compare_and_swap(&pair->state, state, PAIR_LEAVING);
	return !on || state == PAIR_LEAVING || state == PAIR_EXCLUDED;
}

/* Reports whether no system call is using a socket in the map: only the map refers to its psock. */
static __always_inline bool psock_is_idle(struct sk_psock *psock)
{
	int refs = 0;

	return !bpf_core_read(&refs, sizeof(refs), &psock->refcnt.refs.counter) && refs == 1;
}

/* Reports whether no data waits at a socket and no process is about to send it any. A sender that
 * begins now sees that it must not; one that began earlier is in progress until its message is
 * queued, so the queue is checked last. */
static __always_inline bool is_quiet(struct sock *sk, struct end *end, struct pair *pair)
{
	__u32 other = !(end->side & 1);

	if (pair && __sync_fetch_and_or(&pair->inside, 0) & (1 << other) &&
	    !psock_is_idle(psock_of((struct sock *)pair->sk[other])))
		return false;
	if (pair)
		/* a barrier: nothing below is read before what is above */
		__sync_fetch_and_or(&pair->inside, 0);
	return psock_is_idle(psock_of(sk)) && psock_is_empty(psock_of(sk));
}

/* Notes that a socket has left. Once both have, their connection is watched again. */
static __always_inline void leave(struct end *end, struct pair *pair)
{
	__u32 bit = 1 << (end->side & 1);

	count(TALLY_LEFT, 0);
	end->left = 0;
	if (!pair)
		return;
	__sync_fetch_and_and(&pair->ready, ~bit);
	if ((__sync_fetch_and_and(&pair->inside, ~bit) & ~bit) || pair->state != PAIR_LEAVING)
		return;
	if (pair->streamed > STREAMS_MOST)
		exclude(pair, EXCLUSION_STREAM);
	else
		watch_again(pair, PAIR_LEAVING);
}
