/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the layout of what is known of connections between sockets of this node, and every map of it.
 * They are a set of their own: sockets stay in a map while their data waits there, so nothing of this is ever
 * copied or grown. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "types.h"

/* Which rules may take the connections of a network namespace past TCP. Each rule has a bit: one that both ends of
 * a connection have lets it. */
struct short_key {
	__u64 netns; /* its cookie */
	__u32 port;  /* that the one who accepts has; zero: any */
	__u32 pad;
};

struct short_rules {
	__u64 from;	 /* as the end that dials; of no meaning with a port */
	__u64 to;	 /* as the end that accepts */
	struct name pod; /* for people: lists must read well when no agent is there to ask */
};

enum side {
	SIDE_CLIENT,
	SIDE_SERVER,
	SIDES,
};

/*
 * A connection, by what both of its ends see alike, whatever translates its addresses on the way: where the client
 * is, and the numbers that either end's kernel drew for it to begin with. Who is at a loopback address can only
 * speak within its namespace, so that is in the key too; elsewhere it is zero.
 */
struct pair_key {
	struct addr client;
	__u64 netns;
	__u32 begin[SIDES];
	__u32 port;
	__u32 pad;
};

enum pair_state {
	PAIR_WATCHED,  /* by TCP, until it is plain that they converse */
	PAIR_CHOSEN,   /* they do, and the agent is to put both into `socks` */
	PAIR_SHORT,    /* it has */
	PAIR_LEAVING,  /* it is to take them out: one of them sends on and on */
	PAIR_EXCLUDED, /* likewise, for good, or they are not to come in at all */
};

/* Why a connection goes by TCP for good. */
enum exclusion {
	EXCLUSION_NONE,
	EXCLUSION_SPLICE,   /* it is read by splice, sendfile or without copies */
	EXCLUSION_WAY,	    /* or by a call of which it is not known what it does */
	EXCLUSION_FLAGS,    /* or by flags that mean something else past TCP: MSG_WAITALL, MSG_OOB, MSG_TRUNC */
	EXCLUSION_BLOCKING, /* by calls that wait: a signal would end them */
	EXCLUSION_LOWAT,    /* SO_RCVLOWAT */
	EXCLUSION_ULP,	    /* kTLS or the like */
	EXCLUSION_ZEROCOPY, /* SO_ZEROCOPY: its sender waits to be told what has been sent */
	EXCLUSION_URGENT,   /* it sends urgent data */
	EXCLUSION_REFUSED,  /* the kernel has not taken it into the map: another program has it, for example */
	EXCLUSION_STREAM,   /* it has been in and out too often */
	EXCLUSION_RULES,    /* the rule that let it is no more */
	EXCLUSION_PROGRAM,  /* it is read by a program that may splice, or ask how much there is, later */
	EXCLUSIONS,
};

/* One end of a connection, noted for the other to find, which may be on another node. */
struct half {
	__u64 cookie; /* of the socket */
	__u64 sk;     /* where the kernel has it */
	__u64 netns;
	struct addr addr; /* its own */
	__u32 port;
	__u32 side;
};

/* Programs of both ends write it, each holding its own socket's lock and not the other's. */
struct pair {
	__u64 cookie[SIDES]; /* of the sockets */
	__u64 sk[SIDES];     /* where the kernel has them, to read what they have done and nothing else */
	__u64 netns[SIDES];
	struct addr addr[SIDES]; /* as each knows itself */
	__u32 port[SIDES];
	__u32 state;	      /* enum pair_state */
	__u32 exclusion;      /* enum exclusion */
	__u32 last;	      /* the side that has read last, plus one */
	__u32 turns;	      /* how often that was another than the one before */
	__u32 needed;	      /* how many turns show that they converse */
	__u32 asked;	      /* a bit for each side that is on its way into the map, */
	__u32 inside;	      /* is in it, */
	__u32 ready;	      /* and has read since, so that no reader of before waits where nobody would wake it */
	__u32 spliced;	      /* a bit for each side that has tried to read by splice */
	__u32 run[SIDES];     /* messages since the other side spoke */
	__u32 waiting[SIDES]; /* what went past TCP, with what it takes, since the other was last seen to have read
				 all */
	__u16 streamed;	      /* how often it has left the map for that */
	__u16 refused;	      /* how often the kernel has not taken it */
	__u64 redirected[SIDES];
	__u64 passed[SIDES]; /* bytes that went by TCP while they were in the map */
	__u64 rules;	     /* that both have */
};

/* What a socket knows of its connection. It hangs on the socket and goes with it. */
struct end {
	struct pair_key key;
	__u64 pair;   /* the key of the connection's row: the cookie of the end that was noted first */
	__u64 cookie; /* of this socket */
	__u64 peer;   /* the other's cookie; zero until it is known */
	__u64 peer_sk;
	__u32 side;
	__u32 left;  /* the first look of the agent's that found that it is to leave the map; zero: none has */
	__u32 reads; /* while the other end is not known */
	__u32 pad;
};

/* What is decided while programs run, each by one who writes it. Unless CONTROL_ON is set and CONTROL_HELD is not,
 * everything goes by TCP, and sockets leave the map when they have read what waits for them. */
enum control {
	CONTROL_ON,   /* by the agent */
	CONTROL_LOOK, /* likewise: the number of its look at the map */
	CONTROL_HELD, /* by an operator, whoever else wants what */
	CONTROLS,
};

/* Why a message of a socket that is in the map goes by TCP. */
enum passing {
	PASSING_NONE,	/* it does not: it was redirected */
	PASSING_OFF,	/* all do */
	PASSING_ALONE,	/* the other end is not in the map, or not any more */
	PASSING_STATE,	/* its connection is on its way in or out, or excluded */
	PASSING_UNREAD, /* what went by TCP before has not been read yet */
	PASSING_BUDGET, /* as much as may wait waits */
	PASSING_RUN,	/* one side sends and the other only reads */
	PASSING_CALL,	/* the call is none that is known to be harmless */
	PASSING_PEER,	/* what the other end has set is not for this */
	PASSING_LOST, /* it does not go at all: what waits past TCP waits for who splices, who would read this first
		       */
	PASSINGS,
};

enum tally_row {
	TALLY_WATCHED = 16,  /* connections of which both ends are here */
	TALLY_ADMITTED,	     /* sockets that were put into the map, */
	TALLY_LEFT,	     /* and taken out again before their end */
	TALLY_FULL,	     /* connections for which there was no room */
	TALLY_EXCLUDED = 32, /* and by reason, enum exclusion */
	TALLY_ROWS = 64,
};

struct tally {
	__u64 count;
	__u64 bytes;
};

/* What the agent is woken with. */
enum wake {
	WAKE_ADMIT = 1,
	WAKE_LEAVE = 2,
};

/* The name of a program, as the kernel has it. */
struct program_name {
	char text[16];
};

/* Programs that read in ways which are not seen before it is too late. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct program_name);
	__type(value, __u32);
} sockmap_except SEC(".maps");

/* Processes that were seen to read by splice: they may do it with any of their sockets. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} splicers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct short_key);
	__type(value, struct short_rules);
} short_rules SEC(".maps");

/* Those whose other end is on another node stay here, as many as there are, so who has not been seen for long makes
 * room. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct pair_key);
	__type(value, struct half);
} halves SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct pair);
} pairs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct end);
} ends SEC(".maps");

/* The sockets that the agent is to put into the map: it can only list all that have something of a kind. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} candidates SEC(".maps");

/* By their cookies, which no two sockets ever share. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u64);
} socks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CONTROLS);
	__type(key, __u32);
	__type(value, __u32);
} sockmap_control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TALLY_ROWS);
	__type(key, __u32);
	__type(value, struct tally);
} sockmap_tallies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} sockmap_wakes SEC(".maps");

_Static_assert(sizeof(struct pair_key) == 40, "a key has no hidden padding");
_Static_assert(sizeof(struct half) == 48, "a value has no hidden padding");
_Static_assert(sizeof(struct pair) == 184, "a value has no hidden padding");
_Static_assert(sizeof(struct end) == 88, "a value has no hidden padding");
