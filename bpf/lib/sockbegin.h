/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how the ends of a connection are noted as they are established. */
#pragma once

#include <bpf/bpf_endian.h>

#include "addr.h"
#include "sockkernel.h"
#include "sockpair.h"

enum {
	FAMILY_V4 = 2, /* AF_INET */
};

/* Every field is read, whatever becomes of it: the verifier refuses one of which is decided first where it is. */
static __always_inline struct addr ops_local(const volatile struct bpf_sock_ops *ctx)
{
	struct addr v4 = addr_from_v4(ctx->local_ip4);
	struct addr v6 = {
		.word = { ctx->local_ip6[0], ctx->local_ip6[1], ctx->local_ip6[2], ctx->local_ip6[3] },
	};

	return ctx->family == FAMILY_V4 ? v4 : v6;
}

static __always_inline struct addr ops_remote(const volatile struct bpf_sock_ops *ctx)
{
	struct addr v4 = addr_from_v4(ctx->remote_ip4);
	struct addr v6 = {
		.word = { ctx->remote_ip6[0], ctx->remote_ip6[1], ctx->remote_ip6[2], ctx->remote_ip6[3] },
	};

	return ctx->family == FAMILY_V4 ? v4 : v6;
}

/* What signs its segments, or has several ways, is no plain connection. */
static __always_inline bool is_plain(struct tcp_sock *tp)
{
	if (bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp)
		return false;
	if (bpf_core_field_exists(tp->md5sig_info) && tp->md5sig_info)
		return false;
	return !(bpf_core_field_exists(tp->ao_info) && tp->ao_info);
}

/* Notes what the socket is an end of, and has the kernel tell of its end. */
static __always_inline bool end_note(struct bpf_sock_ops *ctx, struct bpf_sock *sk, struct end *end)
{
	if (!bpf_sk_storage_get(&ends, sk, end, BPF_SK_STORAGE_GET_F_CREATE))
		return false;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	return true;
}

static __always_inline void client_established(struct bpf_sock_ops *ctx, struct bpf_sock *sk, struct tcp_sock *tp,
					       __u64 rules, __u64 netns)
{
	struct end end = { .side = SIDE_CLIENT, .cookie = bpf_get_socket_cookie(ctx) };
	struct pair pair = {
		.state = PAIR_DIALLED,
		.cookie = { end.cookie },
		.sk = { (__u64)tp },
		.netns = { netns },
		.rules = rules,
		.needed = cfg.turns,
	};

	end.key.client = ops_local(ctx);
	end.key.netns = addr_is_loopback(&end.key.client) ? netns : 0;
	end.key.port = ctx->local_port;
	end.key.begin[SIDE_CLIENT] = ctx->snd_nxt;
	end.key.begin[SIDE_SERVER] = ctx->rcv_nxt;
	if (bpf_map_update_elem(&pairs, &end.key, &pair, BPF_NOEXIST))
		count(TALLY_FULL, 0);
	else if (!end_note(ctx, sk, &end))
		bpf_map_delete_elem(&pairs, &end.key);
}

/* The client is always first: what establishes this end is that one's answer. */
static __always_inline void server_established(struct bpf_sock_ops *ctx, struct bpf_sock *sk, struct tcp_sock *tp,
					       __u64 rules, __u64 netns)
{
	struct short_key at = { .netns = netns, .port = ctx->local_port };
	struct end end = { .side = SIDE_SERVER, .cookie = bpf_get_socket_cookie(ctx) };
	struct short_rules *here = bpf_map_lookup_elem(&short_rules, &at);
	struct pair *pair;

	if (here)
		rules |= here->to;
	if (!rules)
		return;
	end.key.client = ops_remote(ctx);
	end.key.netns = addr_is_loopback(&end.key.client) ? netns : 0;
	end.key.port = bpf_ntohl(ctx->remote_port);
	end.key.begin[SIDE_CLIENT] = ctx->rcv_nxt;
	end.key.begin[SIDE_SERVER] = ctx->snd_nxt;
	pair = bpf_map_lookup_elem(&pairs, &end.key);
	if (!pair || pair->state != PAIR_DIALLED)
		return;
	pair->rules &= rules;
	if (!pair->rules)
		return; /* the client sees when it reads that nobody has joined */
	end.peer = pair->cookie[SIDE_CLIENT];
	end.peer_sk = pair->sk[SIDE_CLIENT];
	if (!end_note(ctx, sk, &end))
		return;
	pair->cookie[SIDE_SERVER] = end.cookie;
	pair->sk[SIDE_SERVER] = (__u64)tp;
	pair->netns[SIDE_SERVER] = netns;
	pair->server = ops_local(ctx);
	pair->port = ctx->local_port;
	__sync_val_compare_and_swap(&pair->state, PAIR_DIALLED, PAIR_WATCHED);
	count(TALLY_WATCHED, 0);
}

static __always_inline void end_closed(struct bpf_sock *sk)
{
	struct end *end = bpf_sk_storage_get(&ends, sk, NULL, 0);

	if (end)
		bpf_map_delete_elem(&pairs, &end->key);
}

static __always_inline void established(struct bpf_sock_ops *ctx, struct bpf_sock *sk, bool dialled)
{
	struct short_key key = { .netns = bpf_get_netns_cookie(ctx) };
	struct short_rules *rules = bpf_map_lookup_elem(&short_rules, &key);
	__u64 from = rules ? rules->from : 0, to = rules ? rules->to : 0;
	struct tcp_sock *tp;

	if (dialled && !from)
		return;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || !is_plain(tp))
		return;
	if (dialled)
		client_established(ctx, sk, tp, from, key.netns);
	else
		server_established(ctx, sk, tp, to, key.netns);
}
