/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the memory of a connected socket: what it dialed and which backend it got. The
 * record is freed with its socket and cannot be evicted by another socket's. */
#pragma once

#include <linux/in.h>

#include "count.h"
#include "maps.h"

/* The id of the root cgroup, in which kernel threads run. */
#define CGROUP_TOP 1

/* Returns the row of `conn_origins` that a socket may use. Cookies are consecutive, so sockets of
 * about the same age do not collide. */
static __always_inline struct conn_origin *sock_origin_row(__u64 cookie)
{
	__u32 index = cookie & (CONN_ORIGINS - 1);

	return bpf_map_lookup_elem(&conn_origins, &index);
}

static __always_inline void sock_origin_release(__u64 cookie)
{
	struct conn_origin *row = sock_origin_row(cookie);

	if (row && row->cookie == cookie)
		*(volatile __u64 *)&row->cookie = 0;
}

/* Stores the record of a TCP socket in its row, unless another socket occupies that. A socket that
 * the kernel itself opened, as for NFS, gets no row: no program runs when it is closed, so the row
 * would never be freed. */
static __always_inline bool sock_origin_take(struct bpf_sock_addr *ctx, const struct sock_origin *peer)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct conn_origin *row = sock_origin_row(cookie);

	if (!row)
		return false;
	if (row->cookie != cookie) {
		if (row->cookie || bpf_get_current_cgroup_id() == CGROUP_TOP)
			return false;
		if (__sync_val_compare_and_swap(&row->cookie, 0, cookie))
			return false;
	}
	row->peer = *peer;
	return true;
}

static __always_inline void sock_origin_forget(struct bpf_sock_addr *ctx)
{
	if (ctx->protocol == IPPROTO_TCP)
		sock_origin_release(bpf_get_socket_cookie(ctx));
	if (ctx->sk)
		bpf_sk_storage_delete(&sock_origins, ctx->sk);
}

static __always_inline void sock_origin_remember(struct bpf_sock_addr *ctx, const struct svc_key *to,
						 const struct backend *backend)
{
	struct sock_origin peer = {
		.vip = to->addr,
		.vip_port = to->port,
		.backend = backend->addr,
		.backend_port = backend->port,
	};
	struct sock_origin *stored;

	if (!ctx->sk || (ctx->protocol == IPPROTO_TCP && sock_origin_take(ctx, &peer)))
		return;
	stored = bpf_sk_storage_get(&sock_origins, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (stored)
		*stored = peer;
	else
		count(HOOK_SOCK, REASON_NO_MEMORY, 0);
}

static __always_inline struct sock_origin *sock_origin_find(struct bpf_sock_addr *ctx)
{
	struct conn_origin *row;
	__u64 cookie;

	if (!ctx->sk)
		return NULL;
	if (ctx->protocol == IPPROTO_TCP) {
		cookie = bpf_get_socket_cookie(ctx);
		row = sock_origin_row(cookie);
		if (row && row->cookie == cookie)
			return &row->peer;
	}
	return bpf_sk_storage_get(&sock_origins, ctx->sk, NULL, 0);
}
