/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what a socket dialed and which backend it got. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "count.h"
#include "maps.h"
#include "reason.h"
#include "types.h"

/* The memory of an unconnected socket: which backend it has for each service, so that it keeps that
 * backend, and so that replies appear to come from the address it sent to. */

/* If services share a backend, their replies cannot be told apart: the flow that was sent to last
 * answers, and the others are marked. If the socket sends to the backend itself, the backend
 * answers as itself. */
static __always_inline void sock_backends_silence(struct sock_backends *flows, const struct addr *backend,
						  __be16 port)
{
	for (int i = 0; i < SOCK_BACKENDS; i++) {
		struct sock_backend *flow = &flows->flow[i];

		if (flow->backend_port == port && addr_equal(&flow->backend, backend))
			flow->answers = 0;
	}
}

/* Returns the index of the flow to a service, or SOCK_BACKENDS. Not static, so that the verifier walks
 * it once and does not walk what follows for every index. */
__noinline __u32 sock_backends_place(const struct sock_backends *flows, const struct addr *vip, __u32 port)
{
	if (!flows || !vip)
		return SOCK_BACKENDS;
	for (int i = 0; i < SOCK_BACKENDS; i++) {
		const struct sock_backend *flow = &flows->flow[i];

		if (flow->vip_port == port && addr_equal(&flow->vip, vip))
			return i;
	}
	return SOCK_BACKENDS;
}

static __always_inline struct sock_backend *sock_backends_find(struct sock_backends *flows, const struct addr *vip,
							       __be16 port)
{
	__u32 place = sock_backends_place(flows, vip, port);

	return place < SOCK_BACKENDS ? &flows->flow[place] : NULL;
}

/* Makes a flow the one that answers for its backend. */
static __always_inline void sock_backends_answer(struct sock_backends *flows, struct sock_backend *flow)
{
	if (flow->answers)
		return;
	sock_backends_silence(flows, &flow->backend, flow->backend_port);
	flow->answers = 1;
}

/* Writes a flow over the one to the same service, or over the oldest. */
static __always_inline void sock_backends_remember(struct sock_backends *flows, const struct sock_backend *flow)
{
	struct sock_backend *at = sock_backends_find(flows, &flow->vip, flow->vip_port);

	if (!at)
		at = &flows->flow[flows->next++ & (SOCK_BACKENDS - 1)];
	*at = *flow;
	sock_backends_answer(flows, at);
}

/* Replaces the source of a datagram with the address that was sent to. */
static __always_inline bool sock_backends_receive(struct sock_backends *flows, struct svc_key *from)
{
	for (int i = 0; i < SOCK_BACKENDS; i++) {
		const struct sock_backend *flow = &flows->flow[i];

		if (flow->backend_port != from->port || !flow->answers || !addr_equal(&flow->backend, &from->addr))
			continue;
		from->addr = flow->vip;
		from->port = flow->vip_port;
		return true;
	}
	return false;
}

/* The memory of a connected socket: what it dialed and which backend it got. The record is freed with
 * its socket and cannot be evicted by another socket's. */

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
