/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what all programs of socket acceleration need to know about a connection, and may
 * do with it. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>

#include "sockmap_kernel.h"
#include "sockmap_types.h"

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

static __always_inline void sockmap_tally(__u32 what, __u64 bytes)
{
	struct tally *tally = bpf_map_lookup_elem(&sockmap_tallies, &what);

	if (!tally)
		return;
	tally->count++;
	tally->bytes += bytes;
}

static __always_inline __u32 sockmap_read_control(enum control what)
{
	__u32 row = what, *value = bpf_map_lookup_elem(&sockmap_control, &row);

	return value ? *(volatile __u32 *)value : 0;
}

static __always_inline bool sockmap_is_on(void)
{
	return sockmap_read_control(CONTROL_ON) && !sockmap_read_control(CONTROL_HELD);
}

static __always_inline void sockmap_wake(__u32 event)
{
	bpf_ringbuf_output(&sockmap_wakes, &event, sizeof(event), 0);
}

/* Leaves a connection to TCP for good. */
static __always_inline void sockmap_exclude(struct pair *pair, enum exclusion why)
{
	__u32 was = pair->state;

	if (was == PAIR_EXCLUDED)
		return;
	pair->exclusion = why;
	pair->state = PAIR_EXCLUDED;
	sockmap_tally(TALLY_EXCLUDED + why, 0);
	if (pair->inside)
		sockmap_wake(WAKE_LEAVE);
}

/* Makes a connection without sockets in the map prove again that it is a conversation. */
static __always_inline void sockmap_watch_again(struct pair *pair, enum pair_state was)
{
	if (pair->inside)
		return;
	pair->asked = 0;
	pair->turns = 0;
	pair->run[SIDE_CLIENT] = pair->run[SIDE_SERVER] = 0;
	__sync_val_compare_and_swap(&pair->state, was, PAIR_WATCHED);
}

/* Returns the row of a socket's connection, if it has not become another's. */
static __always_inline struct pair *sockmap_pair_of(struct end *end)
{
	struct pair *pair = bpf_map_lookup_elem(&pairs, &end->pair);

	if (!pair || pair->cookie[end->side & 1] != end->cookie)
		return NULL;
	return pair;
}

/* Returns the rules that apply to an end of a connection. */
static __always_inline __u64 sockmap_rules_of(__u64 netns, enum side side, __u32 port)
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
static __always_inline bool sockmap_is_allowed(struct end *end, struct pair *pair)
{
	__u32 side = end->side & 1;

	return sockmap_rules_of(pair->netns[side], side, pair->port[side]) & pair->rules;
}

/* How a process reads and sends, according to its current system call. */

/* The current system call and some of its arguments. */
struct call {
	__u64 number;
	__u64 arg2;
	__u64 arg3;
	__u64 arg4;
};

static __always_inline struct call sockmap_call_now(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	void *regs = (void *)bpf_task_pt_regs(task);
	struct pt_regs___x86 *x86 = regs;
	struct pt_regs___arm *arm = regs;

	if (bpf_core_field_exists(x86->orig_ax))
		return (struct call) { x86->orig_ax, x86->si, x86->dx, x86->r10 };
	if (bpf_core_field_exists(arm->syscallno))
		return (struct call) { arm->syscallno, arm->regs[1], arm->regs[2], arm->regs[3] };
	return (struct call) {};
}

/* As a process passes them to its calls. */
struct iovec {
	__u64 base;
	__u64 len;
};

struct msghdr {
	__u64 name;
	__u64 namelen;
	__u64 iov;
	__u64 iovlen;
};

enum {
	PIECES_MOST = 32, /* of the memory to read into that are counted */
};

/* Returns how many bytes the pieces of memory have that a process reads into, or fewer. */
static __always_inline __u64 sockmap_room_in(__u64 iov, __u64 count)
{
	struct iovec piece;
	__u64 room = 0;

	for (__u32 i = 0; i < PIECES_MOST && i < count; i++) {
		if (bpf_probe_read_user(&piece, sizeof(piece), (struct iovec *)iov + i))
			break;
		room += piece.len;
	}
	return room;
}

/* Returns how many bytes the current call asks for at most, or fewer; zero if that is not known. */
static __always_inline __u64 sockmap_asked_now(void)
{
	struct call call = sockmap_call_now();
	struct msghdr header;

	if (call.number == cfg.reads[0] || call.number == cfg.recv)
		return call.arg3;
	if (call.number == cfg.reads[1])
		return sockmap_room_in(call.arg2, call.arg3);
	if (call.number == cfg.recvmsg && !bpf_probe_read_user(&header, sizeof(header), (void *)call.arg2))
		return sockmap_room_in(header.iov, header.iovlen);
	return 0;
}

enum {
	FLAG_OOB = 1,
	FLAG_PEEK = 2,
	FLAG_DONTROUTE = 4,
	FLAG_DONTWAIT = 0x40,
	FLAG_NOSIGNAL = 0x4000,
	FLAG_MORE = 0x8000,
	FLAG_CMSG_CLOEXEC = 0x40000000,
	FLAGS_READ = FLAG_PEEK | FLAG_DONTWAIT | FLAG_NOSIGNAL | FLAG_CMSG_CLOEXEC,
	FLAGS_SEND = FLAG_DONTROUTE | FLAG_DONTWAIT | FLAG_NOSIGNAL | FLAG_MORE,
	NONBLOCK = 04000, /* O_NONBLOCK */
};

/* Reports whether the process is known to splice, or is on the list of programs that may, whatever
 * it does now. The process name is that of its main thread. */
static __always_inline bool sockmap_reads_otherwise(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 process = bpf_get_current_pid_tgid() >> 32;
	struct program_name name = {};

	if (bpf_map_lookup_elem(&splicers, &process))
		return true;
	BPF_CORE_READ_STR_INTO(&name.text, task, group_leader, comm);
	return bpf_map_lookup_elem(&sockmap_except, &name);
}

static __always_inline void sockmap_note_splicer(void)
{
	__u32 process = bpf_get_current_pid_tgid() >> 32, one = 1;

	if (!bpf_map_lookup_elem(&splicers, &process))
		bpf_map_update_elem(&splicers, &process, &one, BPF_ANY);
}

/* When a socket may leave the map without losing data. */

enum {
	STREAMS_MOST = 4, /* how often a connection may become a stream soon and come back */
	STREAM_PAYS = 4,  /* messages past TCP that make up for each message of a stream in the map */
};

/* Makes a connection leave the map whose one side keeps sending. Unless it has gained enough before,
 * it takes longer to prove that it has become a conversation again. */
static __always_inline void sockmap_leave_streaming(struct pair *pair)
{
	if (__sync_val_compare_and_swap(&pair->state, PAIR_ACCELERATED, PAIR_LEAVING) != PAIR_ACCELERATED)
		return;
	if (pair->turns < STREAM_PAYS * cfg.stream) {
		pair->needed *= 4;
		pair->streamed++;
	}
	sockmap_wake(WAKE_LEAVE);
}

/* Reports whether a connection's sockets should leave the map. */
static __always_inline bool sockmap_is_leaving(struct pair *pair, bool on)
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
static __always_inline bool sockmap_psock_is_idle(struct sk_psock *psock)
{
	int refs = 0;

	return !bpf_core_read(&refs, sizeof(refs), &psock->refcnt.refs.counter) && refs == 1;
}

/* Reports whether no data waits at a socket and no process is about to send it any. A sender that
 * begins now sees that it must not; one that began earlier is in progress until its message is
 * queued, so the queue is checked last. */
static __always_inline bool sockmap_is_quiet(struct sock *sk, struct end *end, struct pair *pair)
{
	__u32 other = !(end->side & 1);

	if (pair && __sync_fetch_and_or(&pair->inside, 0) & (1 << other) &&
	    !sockmap_psock_is_idle(sockmap_psock_of((struct sock *)pair->sk[other])))
		return false;
	if (pair)
		/* a barrier: nothing below is read before what is above */
		__sync_fetch_and_or(&pair->inside, 0);
	return sockmap_psock_is_idle(sockmap_psock_of(sk)) && sockmap_psock_is_empty(sockmap_psock_of(sk));
}

/* Notes that a socket has left. Once both have, their connection is watched again. */
static __always_inline void sockmap_leave(struct end *end, struct pair *pair)
{
	__u32 bit = 1 << (end->side & 1);

	sockmap_tally(TALLY_LEFT, 0);
	end->left = 0;
	if (!pair)
		return;
	__sync_fetch_and_and(&pair->ready, ~bit);
	if ((__sync_fetch_and_and(&pair->inside, ~bit) & ~bit) || pair->state != PAIR_LEAVING)
		return;
	if (pair->streamed > STREAMS_MOST)
		sockmap_exclude(pair, EXCLUSION_STREAM);
	else
		sockmap_watch_again(pair, PAIR_LEAVING);
}
