/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the layouts and all maps of what is known about connections between sockets of
 * this node. They are independent of the other maps: sockets stay in a map while their data waits
 * there, so these maps are never copied or grown. */
#pragma once

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "types.h"

/* Which rules admit connections of a network namespace to bypass TCP. Each rule is a bit; a
 * connection is admitted if both of its ends have one in common. */
struct short_key {
	__u64 netns; /* its cookie */
	__u32 port;  /* the server's port; zero: any */
	__u32 pad;
};

struct short_rules {
	__u64 from;	 /* as the client; unused if the key has a port */
	__u64 to;	 /* as the server */
	struct name pod; /* for people: lists must be readable without an agent */
};

enum side {
	SIDE_CLIENT,
	SIDE_SERVER,
	SIDES,
};

/*
 * A connection, by what both of its ends see alike, whatever translates addresses between them: the
 * client's address and port, and the sequence numbers at which both ends began. A client at a
 * loopback address can only talk within its namespace, so that is in the key too; otherwise it is
 * zero.
 */
struct pair_key {
	struct addr client;
	__u64 netns;
	__u32 begin[SIDES];
	__u32 port;
	__u32 pad;
};

enum pair_state {
	PAIR_WATCHED,	  /* uses TCP until the ends evidently converse */
	PAIR_CHOSEN,	  /* they do; the agent is to put both into `socks` */
	PAIR_ACCELERATED, /* both are in `socks` */
	PAIR_LEAVING,	  /* to be taken out again: one end sends without an answer */
	PAIR_EXCLUDED,	  /* likewise, for good, or never to be put in */
};

/* Why a connection uses TCP for good. */
enum exclusion {
	EXCLUSION_NONE,
	EXCLUSION_SPLICE, /* it is read by splice, sendfile or zero-copy receive */
	EXCLUSION_WAY,	  /* or by a system call with unknown effects */
	/* or with flags that have another meaning past TCP: MSG_WAITALL, MSG_OOB, MSG_TRUNC */
	EXCLUSION_FLAGS,
	EXCLUSION_BLOCKING, /* by blocking calls: a signal would end them */
	EXCLUSION_LOWAT,    /* SO_RCVLOWAT */
	EXCLUSION_ULP,	    /* kTLS or the like */
	EXCLUSION_ZEROCOPY, /* SO_ZEROCOPY: its sender waits for completions */
	EXCLUSION_URGENT,   /* it sends urgent data */
	/* the kernel did not take it into the map, for example because another program has it */
	EXCLUSION_REFUSED,
	EXCLUSION_STREAM, /* it has been in and out of the map too often, for too little */
	EXCLUSION_RULES,  /* the rule that admitted it is gone; watched again once another admits it */
	/* its reader is a program that may splice, or ask how much there is to read, later */
	EXCLUSION_PROGRAM,
	EXCLUSION_EDGE, /* its reader would miss data, by edge-triggered epoll */
	/* its reader wants to know when data came, or sets where peeking begins */
	EXCLUSION_CONTROL,
	EXCLUSIONS,
};

/* One end of a connection, noted for the other to find. The other may be on another node. */
struct half {
	__u64 cookie; /* of the socket */
	__u64 sk;     /* its address in the kernel */
	__u64 netns;
	struct addr addr; /* the socket's own */
	__u32 port;
	__u32 side;
};

/* Programs of both ends write this, each holding its own socket's lock but not the other's. */
struct pair {
	__u64 cookie[SIDES]; /* of the sockets */
	__u64 sk[SIDES];     /* their addresses in the kernel, only to read their progress */
	__u64 netns[SIDES];
	struct addr addr[SIDES]; /* each end's own address */
	__u32 port[SIDES];
	__u32 state;	 /* enum pair_state */
	__u32 exclusion; /* enum exclusion */
	__u32 last;	 /* the side that has read last, plus one */
	/* how often the reader has changed; in the map, how many messages have bypassed TCP since */
	__u32 turns;
	__u32 needed; /* how many turns prove a conversation */
	__u32 asked;  /* a bit for each side that is on its way into the map, */
	__u32 inside; /* that is in it, */
	/* that has read since: a reader that waits from before would never be woken */
	__u32 ready;
	__u32 spliced;	  /* a bit for each side that has tried to read by splice */
	__u32 run[SIDES]; /* messages since the other side sent one */
	/* bytes redirected, with overhead, since the other end's queue was last seen empty */
	__u32 waiting[SIDES];
	__u16 streamed; /* how often it left the map for being a stream, soon after it had come */
	__u16 refused;	/* how often the kernel refused it */
	__u64 redirected[SIDES];
	__u64 passed[SIDES]; /* bytes that used TCP while the sockets were in the map */
	__u64 rules;	     /* that both ends have in common */
	__u32 shown[SIDES];  /* when each side last sent by TCP while in the map, in 2^20 ns */
};

/* What a socket knows about its connection. Stored at the socket and freed with it. */
struct end {
	struct pair_key key;
	/* key of the connection's row: the cookie of the end that was noted first */
	__u64 pair;
	__u64 cookie; /* of this socket */
	__u64 peer;   /* the other end's cookie; zero until it is known */
	__u64 peer_sk;
	__u32 side;
	/* the agent's sweep that first found that this socket should leave; zero: none */
	__u32 left;
	__u32 reads;   /* counted while the other end is unknown, or no rule admits the connection */
	__u8 edge : 1; /* it is read by edge-triggered epoll; if so, since it is in the map: */
	__u8 owes : 1; /* its last read returned less than was asked for, */
	__u8 rests;    /* how often nothing was read after such a read until more had come, */
	__u8 agains;   /* how often the reader looked again, and found nothing, */
	__u8 unproven; /* and reads since it was last known to do that mostly */
};

/* Switches that take effect while programs run; each has one writer. Unless CONTROL_ON is set and
 * CONTROL_HELD is not, all messages use TCP, and sockets leave the map once they have read what
 * waits for them. */
enum control {
	CONTROL_ON,   /* by the agent */
	CONTROL_LOOK, /* likewise: the number of its current sweep */
	CONTROL_HELD, /* by an operator, regardless of the agent */
	/* by the agent: all reads of sockets in the map are seen, which not every kernel can do */
	CONTROL_SEEN,
	CONTROLS,
};

/* Why a message of a socket in the map uses TCP. */
enum passing {
	PASSING_NONE,	/* it does not: it was redirected */
	PASSING_OFF,	/* all messages do */
	PASSING_ALONE,	/* the other end is not in the map, or no longer */
	PASSING_STATE,	/* the connection is being admitted, leaving, or excluded */
	PASSING_UNREAD, /* earlier data that used TCP has not been read yet */
	PASSING_BUDGET, /* as much as the budget allows is waiting */
	PASSING_RUN,	/* one side sends and the other only reads */
	PASSING_CALL,	/* the system call is not one of those known to be harmless */
	PASSING_PEER,	/* a setting of the other end forbids it */
	/* dropped: its reader splices, and would read this before what waits past TCP */
	PASSING_LOST,
	/* it shows the connection to whoever remembers connections by their packets */
	PASSING_SHOWN,
	PASSINGS,
};

enum tally_row {
	TALLY_WATCHED = 16,  /* connections with both ends on this node */
	TALLY_ADMITTED,	     /* sockets that were put into the map, */
	TALLY_LEFT,	     /* and taken out again before they closed */
	TALLY_FULL,	     /* times that there was no room for a connection */
	TALLY_EXCLUDED = 32, /* by reason: first row of enum exclusion */
	TALLY_ROWS = 64,
};

struct tally {
	__u64 count;
	__u64 bytes;
};

/* Why the agent is woken. */
enum wake {
	WAKE_ADMIT = 1,
	WAKE_LEAVE = 2,
};

/* The name of a program, as in task->comm. */
struct program_name {
	char text[16];
};

/* Programs that may read in ways that are noticed too late. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct program_name);
	__type(value, __u32);
} sockmap_except SEC(".maps");

/* Processes that were seen to splice: they may do it with any of their sockets. */
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

/* Ends whose other end is on another node remain here, so an LRU map makes room for new ones. */
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

/* The sockets that the agent should put into the map. A storage map of their own, because an
 * iterator visits all sockets with storage of one kind. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} candidates SEC(".maps");

/* By cookie, which is never reused. */
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
_Static_assert(sizeof(struct pair) == 192, "a value has no hidden padding");
_Static_assert(sizeof(struct end) == 88, "a value has no hidden padding");
