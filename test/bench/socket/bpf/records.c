// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the socket programs with other places for the record of what a connected socket dialed, to
 * measure the cost of each place. Everything else is the product's own source. */

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "../../../../bpf/lib/sock_origin.h"

enum record {
	RECORD_NONE,
	RECORD_STORAGE,
	RECORD_LRU,
	RECORD_HASH,
	RECORD_HASH_LAZY, /* allocates an entry when it is added */
	RECORD_PRODUCT,	  /* as in the product */
};

const volatile __u32 record;

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, __u64);
	__type(value, struct sock_origin);
} peers_lru SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, __u64);
	__type(value, struct sock_origin);
} peers_hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768);
	__type(key, __u64);
	__type(value, struct sock_origin);
} peers_lazy SEC(".maps");

/* The product's first design: everything in socket storage. */
static __always_inline void record_store(struct bpf_sock_addr *ctx, const struct sock_origin *peer)
{
	struct sock_origin *stored;

	if (!ctx->sk)
		return;
	stored = bpf_sk_storage_get(&sock_origins, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (stored)
		*stored = *peer;
}

static __always_inline void record_remember(struct bpf_sock_addr *ctx, const struct svc_key *to,
					    const struct backend *backend)
{
	struct sock_origin peer = {
		.vip = to->addr,
		.vip_port = to->port,
		.backend = backend->addr,
		.backend_port = backend->port,
	};
	__u64 cookie;

	if (record == RECORD_PRODUCT)
		sock_origin_remember(ctx, to, backend);
	if (record == RECORD_STORAGE)
		record_store(ctx, &peer);
	if (record < RECORD_LRU || record == RECORD_PRODUCT)
		return;
	cookie = bpf_get_socket_cookie(ctx);
	if (record == RECORD_LRU)
		bpf_map_update_elem(&peers_lru, &cookie, &peer, BPF_ANY);
	if (record == RECORD_HASH)
		bpf_map_update_elem(&peers_hash, &cookie, &peer, BPF_ANY);
	if (record == RECORD_HASH_LAZY)
		bpf_map_update_elem(&peers_lazy, &cookie, &peer, BPF_ANY);
}

/* At the end of a socket of any protocol. */
static __always_inline void record_release(__u64 cookie)
{
	if (record == RECORD_PRODUCT)
		sock_origin_release(cookie);
	if (record == RECORD_HASH && bpf_map_lookup_elem(&peers_hash, &cookie))
		bpf_map_delete_elem(&peers_hash, &cookie);
	if (record == RECORD_HASH_LAZY && bpf_map_lookup_elem(&peers_lazy, &cookie))
		bpf_map_delete_elem(&peers_lazy, &cookie);
}

static __always_inline void record_forget(struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);

	if (record == RECORD_PRODUCT)
		sock_origin_forget(ctx);
	else
		record_release(cookie);
	if (record == RECORD_STORAGE && ctx->sk)
		bpf_sk_storage_delete(&sock_origins, ctx->sk);
	if (record == RECORD_LRU && bpf_map_lookup_elem(&peers_lru, &cookie))
		bpf_map_delete_elem(&peers_lru, &cookie);
}

static __always_inline struct sock_origin *record_find(struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);

	switch (record) {
	case RECORD_PRODUCT:
		return sock_origin_find(ctx);
	case RECORD_STORAGE:
		return ctx->sk ? bpf_sk_storage_get(&sock_origins, ctx->sk, NULL, 0) : NULL;
	case RECORD_LRU:
		return bpf_map_lookup_elem(&peers_lru, &cookie);
	case RECORD_HASH:
		return bpf_map_lookup_elem(&peers_hash, &cookie);
	case RECORD_HASH_LAZY:
		return bpf_map_lookup_elem(&peers_lazy, &cookie);
	}
	return NULL;
}

/* The product's source calls these functions by its own names. Records other than the product's cover every
 * protocol, so they are measured with UDP too. */
#define sock_origin_remember record_remember
#define sock_origin_forget record_forget
#define sock_origin_find record_find
#define sock_origin_release record_release
#include "../../../../bpf/sock.c"

/* The product's program checks the protocol first. */
SEC("cgroup/sock_release")
int sock_release_any(struct bpf_sock *ctx)
{
	record_release(bpf_get_socket_cookie(ctx));
	return PROCEED;
}
