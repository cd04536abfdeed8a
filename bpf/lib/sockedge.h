/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how readers are recognized that would miss data.
 *
 * Edge-triggered epoll tells a reader of arriving data once. With TCP, a reader that then gets less
 * than it asked for knows that nothing is left, and may wait. In the map, a read may return what
 * bypassed TCP and leave what came by TCP behind it, of which nothing tells the reader any more. So
 * such a reader has to show that it looks again until nothing is left. */
#pragma once

#include <bpf/bpf_core_read.h>

#include "sockcall.h"
#include "sockkernel.h"
#include "sockleave.h"
#include "sockpair.h"

enum {
	EDGE_AGAINS = 4,  /* how often at least a reader has looked again that gets data past TCP */
	EDGE_RESTS = 16,  /* how often at least a reader has rested that is excluded */
	EDGE_HARDLY = 32, /* a reader rests if it does so more than so many times as often as not */
	EDGE_READS = 250, /* after so many reads without having shown it, a reader may be let go of */
	EDGE_WINDOW = 64, /* what a reader did longer ago counts less and less */
	EDGE_WAITERS = 8, /* that are looked at; if there are more, one may be edge-triggered */
	EPOLL_EDGE = 1U << 31,
	NOSPACE = 1 << 2, /* of struct socket's flags */
};

#define EDGE_NOT_NEXT ((struct epitem *)-1) /* EP_UNACTIVE_PTR */

struct wait_queue_entry {
	struct list_head entry;
} __attribute__((preserve_access_index));

struct epoll_filefd {
	struct file *file;
} __attribute__((preserve_access_index));

struct epoll_event {
	__u32 events;
} __attribute__((preserve_access_index));

struct epitem {
	struct list_head rdllink; /* in the list of what the process is to be told */
	struct epitem *next;	  /* likewise, of what comes while it is being told */
	struct epoll_filefd ffd;
	struct epoll_event event;
} __attribute__((preserve_access_index));

/* Under another name on newer kernels. */
struct epitem___renamed {
	struct epitem *ovflist_next;
} __attribute__((preserve_access_index));

struct eppoll_entry {
	struct epitem *base;
	struct wait_queue_entry wait;
} __attribute__((preserve_access_index));

/* Reports whether an item of epoll is about to tell a process something. */
static __always_inline bool item_tells(struct epitem *item)
{
	struct epitem___renamed *renamed = (void *)item;
	void *link = (void *)item + bpf_core_field_offset(item->rdllink);

	if (BPF_CORE_READ(item, rdllink.next) != link)
		return true;
	if (bpf_core_field_exists(renamed->ovflist_next))
		return BPF_CORE_READ(renamed, ovflist_next) != EDGE_NOT_NEXT;
	return !bpf_core_field_exists(item->next) || BPF_CORE_READ(item, next) != EDGE_NOT_NEXT;
}

/* Reports whether a process waits for a socket by edge-triggered epoll, or, with telling, is about to
 * be told something. Anything else that waits has no pointer to an item of epoll for this very file
 * where epoll's entries have it. */
static __always_inline bool edge_waits(const struct sock *sk, bool telling)
{
	struct file *file = BPF_CORE_READ(sk, sk_socket, file);
	struct socket_wq *queue = BPF_CORE_READ(sk, sk_wq);
	void *first = (void *)queue + bpf_core_field_offset(queue->wait.head), *at;

	if (!file || !queue)
		return false;
	at = BPF_CORE_READ(queue, wait.head.next);
	for (int i = 0; i < EDGE_WAITERS; i++) {
		struct eppoll_entry *waiter = at - bpf_core_field_offset(struct eppoll_entry, wait.entry);
		struct epitem *item = BPF_CORE_READ(waiter, base);

		if (!at || at == first)
			return false;
		if (item && BPF_CORE_READ(item, ffd.file) == file &&
		    BPF_CORE_READ(item, event.events) & EPOLL_EDGE && (!telling || item_tells(item)))
			return true;
		at = BPF_CORE_READ((struct list_head *)at, next);
	}
	return true;
}

static __always_inline bool is_edge(const struct sock *sk)
{
	return !cfg.looks && edge_waits(sk, false);
}

/* Returns how many bytes that are not sent yet make a process wait that sends more. By default so many
 * never are. */
static __always_inline __u32 unsent_most(const struct tcp_sock *tp)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;

	return tp->notsent_lowat ? tp->notsent_lowat
				 : BPF_CORE_READ(sk, __sk_common.skc_net.net, ipv4.sysctl_tcp_notsent_lowat);
}

/* Reports whether who sends so many bytes more may have to wait for room, and to be told of it. */
static __always_inline bool may_wait(const struct tcp_sock *tp, __u32 bytes)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	__u64 queued = sk->sk_wmem_queued, unsent = tp->write_seq - tp->snd_nxt;

	return queued + bytes > (__u64)sk->sk_sndbuf / 2 || 2 * (unsent + bytes) >= unsent_most(tp) ||
	       BPF_CORE_READ(sk, sk_socket, flags) & NOSPACE;
}

/* Reports whether the next send will use TCP unseen by the programs: the kernel keeps what they decided
 * of a send for which there was not enough room. */
static __always_inline bool sends_unseen(const struct sock *sk)
{
	struct sk_psock *psock = psock_of(sk);
	__u32 decided = SK_DROP;

	if (psock)
		bpf_core_read(&decided, bpf_core_field_size(psock->eval), &psock->eval);
	return decided == SK_PASS;
}

/* Reports whether a process may soon be told anything of a socket. If it then looks, that is no proof
 * that it would have looked anyway. */
static __always_inline bool may_be_told(struct sock *sk)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);

	return !tp || may_wait(tp, 0) || sends_unseen(sk) || edge_waits(sk, true);
}

static __always_inline void edge_begin(struct end *end, bool edge)
{
	end->edge = edge;
	end->owes = end->unproven = end->rests = end->agains = 0;
}

/* Lets an end get data past TCP while its reads show that it looks again, and excludes it if they
 * show that it rests. A reader that always looks again finds more at times, since that has come
 * meanwhile: for a busy proxy in Go, a third of the times. One that rests hardly ever looks again
 * and finds nothing. Whoever is in between for long is too busy to find nothing, as with a stream,
 * and leaves like one. One whose reads all return as much as it asks for shows neither, and gets
 * nothing past TCP: it may rest after the first read that returns less. */
static __always_inline void edge_judge(struct end *end, struct pair *pair)
{
	__u32 bit = 1 << (end->side & 1);

	if (end->rests + end->agains > EDGE_WINDOW) {
		end->rests /= 2;
		end->agains /= 2;
	}
	if (end->agains >= EDGE_AGAINS && end->rests <= end->agains * 2) {
		end->unproven = 0;
		if (!(pair->ready & bit))
			__sync_fetch_and_or(&pair->ready, pair->inside & bit);
		return;
	}
	if (pair->ready & bit)
		__sync_fetch_and_and(&pair->ready, ~bit);
	if (end->unproven < EDGE_READS || end->rests < EDGE_RESTS || end->rests <= end->agains * 2)
		return;
	/* On the way out it is too late to tell. */
	if (pair->state != PAIR_SHORT)
		return;
	if (end->rests > end->agains * EDGE_HARDLY)
		exclude(pair, EXCLUSION_EDGE);
	else
		leave_streaming(pair);
}

/* Notes a read of a socket in the map that returned data, less than was asked for or not, or that
 * found none. */
static __always_inline void edge_read(struct end *end, struct pair *pair, bool found, bool partial)
{
	if (found) {
		if (end->owes)
			end->rests++;
		if (end->unproven < EDGE_READS)
			end->unproven++;
		end->owes = partial;
	} else if (end->owes) {
		end->agains++;
		end->owes = false;
	}
	edge_judge(end, pair);
}

/* Returns what is known of a socket if it matters how this read of it ended. Who has looked by
 * MSG_PEEK knows that nothing is left, but might not have read. */
static __always_inline struct end *edge_end(struct sock *sk, __s32 got, __u32 flags)
{
	struct end *end = bpf_sk_storage_get(&ends, sk, NULL, 0);

	if (!end || !end->edge || (got <= 0 && got != -EAGAIN))
		return NULL;
	if (!(flags & FLAG_PEEK))
		return end;
	if (got == -EAGAIN)
		end->owes = false;
	return NULL;
}

/* Notes how a read of a socket in the map ended, whichever way data came. */
static __always_inline void edge_seen(struct sock *sk, struct end *end, __s32 got, __u64 asked)
{
	struct pair *pair = pair_of(end);

	if (pair && pair->inside & (1 << (end->side & 1)))
		edge_read(end, pair, got > 0, got > 0 && (__u32)got < asked && !may_be_told(sk));
}

/* Notes that a socket sends by TCP. */
static __always_inline void edge_sends(struct end *end, const struct tcp_sock *tp, __u32 bytes)
{
	if (end->owes && (!tp || may_wait(tp, bytes)))
		end->owes = false;
}
