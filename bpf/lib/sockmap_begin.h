/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how two sockets are recognized as the two ends of one connection, by programs
 * that run for each of them after it has read a few messages. */
#pragma once

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "sockmap_pair.h"
#include "sockmap_kernel.h"
#include "sockmap_types.h"
#include "types.h"

/* How two sockets are recognized as the two ends of one connection, by programs that run for each of
 * them after it has read a few messages. Nothing runs when a connection begins, and most
 * connections end before anything has been noted. */

enum {
	FAMILY_V4 = 2, /* AF_INET */
	/* while a socket is unknown, one in about this many reads is looked at; */
	SEGMENTS = 4,
	ODDS = 8, /* in addition one in this many of the other reads; */
	/* and one in this many while the other end has not been found, or no rule admits both */
	READS_ALONE = 16,
};

/* Reports whether a connection is plain TCP: neither signed segments (MD5, AO) nor multipath.
 * Reads of multipath connections do not get here on the kernels known so far, since theirs is
 * another protocol's socket, without this tracepoint. The check is for a kernel where they do. */
static __always_inline bool sockmap_is_ordinary_tcp(struct tcp_sock *tp)
{
	if (bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp)
		return false;
	if (bpf_core_field_exists(tp->md5sig_info) && tp->md5sig_info)
		return false;
	return !(bpf_core_field_exists(tp->ao_info) && tp->ao_info);
}

static __always_inline struct addr sockmap_sock_local(struct sock *sk)
{
	struct addr addr = addr_from_v4(sk->__sk_common.skc_rcv_saddr);

	if (sk->__sk_common.skc_family != FAMILY_V4 && bpf_core_field_exists(sk->__sk_common.skc_v6_rcv_saddr))
		bpf_core_read(&addr, sizeof(addr), &sk->__sk_common.skc_v6_rcv_saddr);
	return addr;
}

static __always_inline struct addr sockmap_sock_remote(struct sock *sk)
{
	struct addr addr = addr_from_v4(sk->__sk_common.skc_daddr);

	if (sk->__sk_common.skc_family != FAMILY_V4 && bpf_core_field_exists(sk->__sk_common.skc_v6_daddr))
		bpf_core_read(&addr, sizeof(addr), &sk->__sk_common.skc_v6_daddr);
	return addr;
}

/* The sequence number of the first byte that the other end has sent. */
static __always_inline __u32 sockmap_begin_theirs(struct tcp_sock *tp)
{
	return tp->rcv_nxt - (__u32)tp->bytes_received;
}

/* Returns which end a socket is, and the sequence number of the first byte it has sent; SIDES if
 * that is uncertain. The client's SYN is counted among the acknowledged bytes but not among those
 * sent. If a counter is off, the result is a number that no other socket has. */
static __always_inline enum side sockmap_begin_ours(struct tcp_sock *tp, __u32 *begin)
{
	__u32 acked = tp->snd_una - (__u32)tp->bytes_acked;

	*begin = tp->snd_nxt - (__u32)(tp->bytes_sent - tp->bytes_retrans);
	if (*begin == acked)
		return SIDE_SERVER;
	return *begin == acked + 1 ? SIDE_CLIENT : SIDES;
}

/* Reports whether a socket still has the same connection: it can be disconnected and connected
 * again. */
static __always_inline bool sockmap_is_end_of(struct tcp_sock *tp, struct end *end)
{
	return tp && sockmap_begin_theirs(tp) == end->key.begin[!(end->side & 1)];
}

/* Reports whether a read of an unknown socket is looked at. The counters are of segments, and a
 * connection that receives several at a time may always skip the multiples, hence the random
 * choice. */
static __always_inline bool sockmap_is_looked_at(struct tcp_sock *tp)
{
	if (tp->data_segs_in < SEGMENTS || tp->data_segs_out < SEGMENTS - 1)
		return false;
	return tp->data_segs_in % SEGMENTS == 0 || bpf_get_prandom_u32() % ODDS == 0;
}

/* Reports whether any rule admits a socket, whichever end it is. */
static __always_inline bool sockmap_is_in_question(struct sock *sk)
{
	__u64 netns = sk->__sk_common.skc_net.net->net_cookie;

	return sockmap_rules_of(netns, SIDE_CLIENT, 0) |
	       sockmap_rules_of(netns, SIDE_SERVER, sk->__sk_common.skc_num);
}

/* Fills in what a socket itself knows, and returns the rules that admit it; none if it is not to
 * take part. */
static __always_inline __u64 sockmap_end_see(struct sock *sk, struct tcp_sock *tp, struct end *end,
					     struct half *half)
{
	__u32 ours, side = sockmap_begin_ours(tp, &ours);
	__u64 rules;

	half->netns = sk->__sk_common.skc_net.net->net_cookie;
	half->port = sk->__sk_common.skc_num;
	rules = sockmap_rules_of(half->netns, side, half->port);
	if (!rules || side == SIDES || !sockmap_is_ordinary_tcp(tp))
		return 0;
	half->addr = sockmap_sock_local(sk);
	half->sk = (__u64)tp;
	half->cookie = end->cookie = end->pair = bpf_get_socket_cookie(sk);
	half->side = end->side = side;
	if (side == SIDE_CLIENT) {
		end->key.client = half->addr;
		end->key.port = half->port;
		end->key.begin[SIDE_CLIENT] = ours;
		end->key.begin[SIDE_SERVER] = sockmap_begin_theirs(tp);
	} else {
		end->key.client = sockmap_sock_remote(sk);
		end->key.port = bpf_ntohs(sk->__sk_common.skc_dport);
		end->key.begin[SIDE_SERVER] = ours;
		end->key.begin[SIDE_CLIENT] = sockmap_begin_theirs(tp);
	}
	end->key.netns = addr_is_loopback(&end->key.client) ? half->netns : 0;
	return rules;
}

static __always_inline void sockmap_pair_fill(struct pair *pair, enum side side, const struct half *half)
{
	pair->cookie[side] = half->cookie;
	pair->sk[side] = half->sk;
	pair->netns[side] = half->netns;
	pair->addr[side] = half->addr;
	pair->port[side] = half->port;
}

/* Creates the connection's row from both ends. */
static __always_inline int sockmap_pair_join(struct sock *sk, struct end *end, const struct half *half, __u64 rules,
					     const struct half *found)
{
	struct pair pair = { .state = PAIR_WATCHED, .needed = cfg.turns };

	pair.rules = rules & sockmap_rules_of(found->netns, found->side, found->port);
	if (found->side == half->side || !pair.rules)
		return 0;
	if (half->side == SIDE_CLIENT) {
		sockmap_pair_fill(&pair, SIDE_CLIENT, half);
		sockmap_pair_fill(&pair, SIDE_SERVER, found);
	} else {
		sockmap_pair_fill(&pair, SIDE_CLIENT, found);
		sockmap_pair_fill(&pair, SIDE_SERVER, half);
	}
	end->pair = end->peer = found->cookie;
	end->peer_sk = found->sk;
	/* The row may have been evicted, and reused for another socket while it was read. */
	if (bpf_map_lookup_elem(&halves, &end->key) != found ||
	    !bpf_sk_storage_get(&ends, sk, end, BPF_SK_STORAGE_GET_F_CREATE))
		return 0;
	if (bpf_map_update_elem(&pairs, &end->pair, &pair, BPF_NOEXIST)) {
		sockmap_tally(TALLY_FULL, 0);
		bpf_sk_storage_delete(&ends, sk);
		return 0;
	}
	bpf_map_delete_elem(&halves, &end->key);
	sockmap_tally(TALLY_WATCHED, 0);
	return 1;
}

/* Notes one end, for the other to find. */
static __always_inline bool sockmap_half_leave(struct sock *sk, struct end *end, struct half *half)
{
	int err = bpf_map_update_elem(&halves, &end->key, half, BPF_NOEXIST);

	if (err) {
		/* with EEXIST the other end has just been noted, and is found next time */
		if (err != -EEXIST)
			sockmap_tally(TALLY_FULL, 0);
		return false;
	}
	if (bpf_sk_storage_get(&ends, sk, end, BPF_SK_STORAGE_GET_F_CREATE))
		return true;
	bpf_map_delete_elem(&halves, &end->key);
	return false;
}

/* Notes a socket that may converse, or joins it with its other end if that has been noted already.
 * Both ends call this. If they do so at the same time, one finds that the other was first. */
static __noinline int sockmap_end_note(struct sock *sk, struct tcp_sock *tp)
{
	struct half half = {}, *found;
	struct end end = {};
	__u64 rules = sockmap_end_see(sk, tp, &end, &half);

	if (!rules)
		return 0;
	found = bpf_map_lookup_elem(&halves, &end.key);
	return found ? sockmap_pair_join(sk, &end, &half, rules, found) : sockmap_half_leave(sk, &end, &half);
}

/* Returns what a socket has noted for its other end, if that is still there. */
static __always_inline struct half *sockmap_half_of(struct end *end)
{
	struct half *half = bpf_map_lookup_elem(&halves, &end->key);

	return half && half->cookie == end->cookie ? half : NULL;
}

/* Forgets a socket and its connection. */
static __always_inline void sockmap_end_forget(struct end *end)
{
	if (sockmap_pair_of(end))
		bpf_map_delete_elem(&pairs, &end->pair);
	if (sockmap_half_of(end))
		bpf_map_delete_elem(&halves, &end->key);
}

/* Reports whether a socket without a known other end should go on waiting for it: it still has that
 * connection, and a rule still admits it. */
static __always_inline bool sockmap_is_waiting(struct sock *sk, struct end *end)
{
	struct half *half = sockmap_half_of(end);

	return half && sockmap_is_end_of(bpf_skc_to_tcp_sock(sk), end) &&
	       sockmap_rules_of(half->netns, half->side, half->port);
}

/* How readers are recognized that would miss data.
 *
 * Edge-triggered epoll tells a reader of arriving data once. With TCP, a reader that then gets less
 * than it asked for knows that nothing is left, and may wait. In the map, a read may return what
 * bypassed TCP and leave what came by TCP behind it, of which nothing tells the reader any more. So
 * such a reader has to show that it looks again until nothing is left. */

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
static __always_inline bool sockmap_item_tells(struct epitem *item)
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
static __always_inline bool sockmap_edge_waits(const struct sock *sk, bool telling)
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
		    BPF_CORE_READ(item, event.events) & EPOLL_EDGE && (!telling || sockmap_item_tells(item)))
			return true;
		at = BPF_CORE_READ((struct list_head *)at, next);
	}
	return true;
}

static __always_inline bool sockmap_is_edge(const struct sock *sk)
{
	return !cfg.looks && sockmap_edge_waits(sk, false);
}

/* Returns how many bytes that are not sent yet make a process wait that sends more. By default so many
 * never are. */
static __always_inline __u32 sockmap_unsent_most(const struct tcp_sock *tp)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;

	return tp->notsent_lowat ? tp->notsent_lowat
				 : BPF_CORE_READ(sk, __sk_common.skc_net.net, ipv4.sysctl_tcp_notsent_lowat);
}

/* Reports whether who sends so many bytes more may have to wait for room, and to be told of it. */
static __always_inline bool sockmap_may_wait(const struct tcp_sock *tp, __u32 bytes)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	__u64 queued = sk->sk_wmem_queued, unsent = tp->write_seq - tp->snd_nxt;

	return queued + bytes > (__u64)sk->sk_sndbuf / 2 || 2 * (unsent + bytes) >= sockmap_unsent_most(tp) ||
	       BPF_CORE_READ(sk, sk_socket, flags) & NOSPACE;
}

/* Reports whether the next send will use TCP unseen by the programs: the kernel keeps what they decided
 * of a send for which there was not enough room. */
static __always_inline bool sockmap_sends_unseen(const struct sock *sk)
{
	struct sk_psock *psock = sockmap_psock_of(sk);
	__u32 decided = SK_DROP;

	if (psock)
		bpf_core_read(&decided, bpf_core_field_size(psock->eval), &psock->eval);
	return decided == SK_PASS;
}

/* Reports whether a process may soon be told anything of a socket. If it then looks, that is no proof
 * that it would have looked anyway. */
static __always_inline bool sockmap_may_be_told(struct sock *sk)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);

	return !tp || sockmap_may_wait(tp, 0) || sockmap_sends_unseen(sk) || sockmap_edge_waits(sk, true);
}

static __always_inline void sockmap_edge_begin(struct end *end, bool edge)
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
static __always_inline void sockmap_edge_judge(struct end *end, struct pair *pair)
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
	if (pair->state != PAIR_ACCELERATED)
		return;
	if (end->rests > end->agains * EDGE_HARDLY)
		sockmap_exclude(pair, EXCLUSION_EDGE);
	else
		sockmap_leave_streaming(pair);
}

/* Notes a read of a socket in the map that returned data, less than was asked for or not, or that
 * found none. */
static __always_inline void sockmap_edge_read(struct end *end, struct pair *pair, bool found, bool partial)
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
	sockmap_edge_judge(end, pair);
}

/* Returns what is known of a socket if it matters how this read of it ended. Who has looked by
 * MSG_PEEK knows that nothing is left, but might not have read. */
static __always_inline struct end *sockmap_edge_end(struct sock *sk, __s32 got, __u32 flags)
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
static __always_inline void sockmap_edge_seen(struct sock *sk, struct end *end, __s32 got, __u64 asked)
{
	struct pair *pair = sockmap_pair_of(end);

	if (pair && pair->inside & (1 << (end->side & 1)))
		sockmap_edge_read(end, pair, got > 0, got > 0 && (__u32)got < asked && !sockmap_may_be_told(sk));
}

/* Notes that a socket sends by TCP. */
static __always_inline void sockmap_edge_sends(struct end *end, const struct tcp_sock *tp, __u32 bytes)
{
	if (end->owes && (!tp || sockmap_may_wait(tp, bytes)))
		end->owes = false;
}
