/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how two sockets are recognized as the two ends of one connection, by programs
 * that run for each of them after it has read a few messages. Nothing runs when a connection
 * begins, and most connections end before anything has been noted. */
#pragma once

#include <linux/errno.h>
#include <bpf/bpf_endian.h>

#include "addr.h"
#include "sockkernel.h"
#include "sockpair.h"

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
static __always_inline bool is_plain(struct tcp_sock *tp)
{
	if (bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp)
		return false;
	if (bpf_core_field_exists(tp->md5sig_info) && tp->md5sig_info)
		return false;
	return !(bpf_core_field_exists(tp->ao_info) && tp->ao_info);
}

static __always_inline struct addr sock_local(struct sock *sk)
{
	struct addr addr = addr_from_v4(sk->__sk_common.skc_rcv_saddr);

	if (sk->__sk_common.skc_family != FAMILY_V4 && bpf_core_field_exists(sk->__sk_common.skc_v6_rcv_saddr))
		bpf_core_read(&addr, sizeof(addr), &sk->__sk_common.skc_v6_rcv_saddr);
	return addr;
}

static __always_inline struct addr sock_remote(struct sock *sk)
{
	struct addr addr = addr_from_v4(sk->__sk_common.skc_daddr);

	if (sk->__sk_common.skc_family != FAMILY_V4 && bpf_core_field_exists(sk->__sk_common.skc_v6_daddr))
		bpf_core_read(&addr, sizeof(addr), &sk->__sk_common.skc_v6_daddr);
	return addr;
}

/* The sequence number of the first byte that the other end has sent. */
static __always_inline __u32 begin_theirs(struct tcp_sock *tp)
{
	return tp->rcv_nxt - (__u32)tp->bytes_received;
}

/* Returns which end a socket is, and the sequence number of the first byte it has sent; SIDES if
 * that is uncertain. The client's SYN is counted among the acknowledged bytes but not among those
 * sent. If a counter is off, the result is a number that no other socket has. */
static __always_inline enum side begin_ours(struct tcp_sock *tp, __u32 *begin)
{
	__u32 acked = tp->snd_una - (__u32)tp->bytes_acked;

	*begin = tp->snd_nxt - (__u32)(tp->bytes_sent - tp->bytes_retrans);
	if (*begin == acked)
		return SIDE_SERVER;
	return *begin == acked + 1 ? SIDE_CLIENT : SIDES;
}

/* Reports whether a socket still has the same connection: it can be disconnected and connected
 * again. */
static __always_inline bool is_end_of(struct tcp_sock *tp, struct end *end)
{
	return tp && begin_theirs(tp) == end->key.begin[!(end->side & 1)];
}

/* Reports whether a read of an unknown socket is looked at. The counters are of segments, and a
 * connection that receives several at a time may always skip the multiples, hence the random
 * choice. */
static __always_inline bool is_looked_at(struct tcp_sock *tp)
{
	if (tp->data_segs_in < SEGMENTS || tp->data_segs_out < SEGMENTS - 1)
		return false;
	return tp->data_segs_in % SEGMENTS == 0 || bpf_get_prandom_u32() % ODDS == 0;
}

/* Reports whether any rule admits a socket, whichever end it is. */
static __always_inline bool is_in_question(struct sock *sk)
{
	__u64 netns = sk->__sk_common.skc_net.net->net_cookie;

	return rules_of(netns, SIDE_CLIENT, 0) | rules_of(netns, SIDE_SERVER, sk->__sk_common.skc_num);
}

/* Fills in what a socket itself knows, and returns the rules that admit it; none if it is not to
 * take part. */
static __always_inline __u64 end_see(struct sock *sk, struct tcp_sock *tp, struct end *end, struct half *half)
{
	__u32 ours, side = begin_ours(tp, &ours);
	__u64 rules;

	half->netns = sk->__sk_common.skc_net.net->net_cookie;
	half->port = sk->__sk_common.skc_num;
	rules = rules_of(half->netns, side, half->port);
	if (!rules || side == SIDES || !is_plain(tp))
		return 0;
	half->addr = sock_local(sk);
	half->sk = (__u64)tp;
	half->cookie = end->cookie = end->pair = bpf_get_socket_cookie(sk);
	half->side = end->side = side;
	if (side == SIDE_CLIENT) {
		end->key.client = half->addr;
		end->key.port = half->port;
		end->key.begin[SIDE_CLIENT] = ours;
		end->key.begin[SIDE_SERVER] = begin_theirs(tp);
	} else {
		end->key.client = sock_remote(sk);
		end->key.port = bpf_ntohs(sk->__sk_common.skc_dport);
		end->key.begin[SIDE_SERVER] = ours;
		end->key.begin[SIDE_CLIENT] = begin_theirs(tp);
	}
	end->key.netns = addr_is_loopback(&end->key.client) ? half->netns : 0;
	return rules;
}

static __always_inline void pair_fill(struct pair *pair, enum side side, const struct half *half)
{
	pair->cookie[side] = half->cookie;
	pair->sk[side] = half->sk;
	pair->netns[side] = half->netns;
	pair->addr[side] = half->addr;
	pair->port[side] = half->port;
}

/* Creates the connection's row from both ends. */
static __always_inline int pair_join(struct sock *sk, struct end *end, const struct half *half, __u64 rules,
				     const struct half *found)
{
	struct pair pair = { .state = PAIR_WATCHED, .needed = cfg.turns };

	pair.rules = rules & rules_of(found->netns, found->side, found->port);
	if (found->side == half->side || !pair.rules)
		return 0;
	if (half->side == SIDE_CLIENT) {
		pair_fill(&pair, SIDE_CLIENT, half);
		pair_fill(&pair, SIDE_SERVER, found);
	} else {
		pair_fill(&pair, SIDE_CLIENT, found);
		pair_fill(&pair, SIDE_SERVER, half);
	}
	end->pair = end->peer = found->cookie;
	end->peer_sk = found->sk;
	/* The row may have been evicted, and reused for another socket while it was read. */
	if (bpf_map_lookup_elem(&halves, &end->key) != found ||
	    !bpf_sk_storage_get(&ends, sk, end, BPF_SK_STORAGE_GET_F_CREATE))
		return 0;
	if (bpf_map_update_elem(&pairs, &end->pair, &pair, BPF_NOEXIST)) {
		count(TALLY_FULL, 0);
		bpf_sk_storage_delete(&ends, sk);
		return 0;
	}
	bpf_map_delete_elem(&halves, &end->key);
	count(TALLY_WATCHED, 0);
	return 1;
}

/* Notes one end, for the other to find. */
static __always_inline bool half_leave(struct sock *sk, struct end *end, struct half *half)
{
	int err = bpf_map_update_elem(&halves, &end->key, half, BPF_NOEXIST);

	if (err) {
		/* with EEXIST the other end has just been noted, and is found next time */
		if (err != -EEXIST)
			count(TALLY_FULL, 0);
		return false;
	}
	if (bpf_sk_storage_get(&ends, sk, end, BPF_SK_STORAGE_GET_F_CREATE))
		return true;
	bpf_map_delete_elem(&halves, &end->key);
	return false;
}

/* Notes a socket that may converse, or joins it with its other end if that has been noted already.
 * Both ends call this. If they do so at the same time, one finds that the other was first. */
static __noinline int end_note(struct sock *sk, struct tcp_sock *tp)
{
	struct half half = {}, *found;
	struct end end = {};
	__u64 rules = end_see(sk, tp, &end, &half);

	if (!rules)
		return 0;
	found = bpf_map_lookup_elem(&halves, &end.key);
	return found ? pair_join(sk, &end, &half, rules, found) : half_leave(sk, &end, &half);
}

/* Returns what a socket has noted for its other end, if that is still there. */
static __always_inline struct half *half_of(struct end *end)
{
	struct half *half = bpf_map_lookup_elem(&halves, &end->key);

	return half && half->cookie == end->cookie ? half : NULL;
}

/* Forgets a socket and its connection. */
static __always_inline void end_forget(struct end *end)
{
	if (pair_of(end))
		bpf_map_delete_elem(&pairs, &end->pair);
	if (half_of(end))
		bpf_map_delete_elem(&halves, &end->key);
}

/* Reports whether a socket without a known other end should go on waiting for it: it still has that
 * connection, and a rule still admits it. */
static __always_inline bool is_waiting(struct sock *sk, struct end *end)
{
	struct half *half = half_of(end);

	return half && is_end_of(bpf_skc_to_tcp_sock(sk), end) && rules_of(half->netns, half->side, half->port);
}
