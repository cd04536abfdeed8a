/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what all sockmap programs need to know about a connection, and may do with
 * it. */
#pragma once

#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "sockmaprows.h"

/* The settings that the agent fixes at load time. System call numbers depend on the
 * architecture. */
struct settings {
	__u64 reads[2];	 /* read calls without flags */
	__u64 writes[2]; /* send calls without flags */
	__u64 recv;	 /* calls with flags: */
	__u64 recvmsg;
	__u64 send;
	__u64 sendmsg;
	__u64 splices[3]; /* read calls that do not work past TCP */
	__u64 blocking;	  /* sockets with blocking reads may take part too */
	__u64 turns;	  /* how many turns prove a conversation */
	__u64 budget;	  /* bytes that may wait past TCP, per direction */
	__u64 run;	  /* messages in a row from one side that still count as conversation */
	__u64 stream;	  /* after this many both sockets leave the map */
	__u64 looks;	  /* readers by edge-triggered epoll need not show that they look again */
	__u64 show;	  /* how long a side may send nothing by TCP, in 2^20 ns */
};

const volatile struct settings cfg;

static __always_inline void count(__u32 what, __u64 bytes)
{
	struct tally *tally = bpf_map_lookup_elem(&sockmap_tallies, &what);

	if (!tally)
		return;
	tally->count++;
	tally->bytes += bytes;
}

static __always_inline __u32 control(enum control what)
{
	__u32 row = what, *value = bpf_map_lookup_elem(&sockmap_control, &row);

	return value ? *(volatile __u32 *)value : 0;
}

static __always_inline bool is_on(void)
{
	return control(CONTROL_ON) && !control(CONTROL_HELD);
}

static __always_inline void tell(__u32 event)
{
	bpf_ringbuf_output(&sockmap_wakes, &event, sizeof(event), 0);
}

/* Leaves a connection to TCP for good. */
static __always_inline void exclude(struct pair *pair, enum exclusion why)
{
	__u32 was = pair->state;

	if (was == PAIR_EXCLUDED)
		return;
	pair->exclusion = why;
	pair->state = PAIR_EXCLUDED;
	count(TALLY_EXCLUDED + why, 0);
	if (pair->inside)
		tell(WAKE_LEAVE);
}

/* Makes a connection without sockets in the map prove again that it is a conversation. */
static __always_inline void watch_again(struct pair *pair, enum pair_state was)
{
	if (pair->inside)
		return;
	pair->asked = 0;
	pair->turns = 0;
	pair->run[SIDE_CLIENT] = pair->run[SIDE_SERVER] = 0;
	__sync_val_compare_and_swap(&pair->state, was, PAIR_WATCHED);
}

/* Returns the row of a socket's connection, if it has not become another's. */
static __always_inline struct pair *pair_of(struct end *end)
{
	struct pair *pair = bpf_map_lookup_elem(&pairs, &end->pair);

	if (!pair || pair->cookie[end->side & 1] != end->cookie)
		return NULL;
	return pair;
}

/* Returns the rules that apply to an end of a connection. */
static __always_inline __u64 rules_of(__u64 netns, enum side side, __u32 port)
{
	struct short_key key = { .netns = netns };
	struct short_rules *any = bpf_map_lookup_elem(&short_rules, &key), *at;

	if (side == SIDE_CLIENT)
		return any ? any->from : 0;
	key.port = port;
	at = bpf_map_lookup_elem(&short_rules, &key);
	return (any ? any->to : 0) | (at ? at->to : 0);
}

/* Reports whether a rule still admits this end of a connection, together with the other end as it
 * was when it was found. */
static __always_inline bool is_let(struct end *end, struct pair *pair)
{
	__u32 side = end->side & 1;

	return rules_of(pair->netns[side], side, pair->port[side]) & pair->rules;
}
