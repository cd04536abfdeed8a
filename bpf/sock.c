// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the socket programs: a connection is pointed at its backend before a packet exists. */

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/config.h"
#include "lib/count.h"
#include "lib/lb.h"

enum verdict {
	VERDICT_PASS,
	VERDICT_REWRITE,
	VERDICT_REFUSE,
};

enum {
	REFUSE = 0, /* what a cgroup program returns to make the call fail */
	PROCEED = 1,
};

static __always_inline bool addr_is_v4(const struct addr *addr)
{
	return !addr->word[0] && !addr->word[1] && addr->word[2] == bpf_htonl(0xffff);
}

static __always_inline struct addr addr_from_v4(__be32 ip)
{
	return (struct addr) { .word = { 0, 0, bpf_htonl(0xffff), ip } };
}

static __always_inline bool addr_equal(const struct addr *a, const struct addr *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

/* Mixes every bit of a cookie, which is a counter, into every bit of the hash. */
static __always_inline __u32 mix(__u64 x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

/* A socket that connects has no source address yet; its network namespace is the client that it stands for. */
static __always_inline __u32 sock_hash(struct bpf_sock_addr *ctx, struct service *service)
{
	switch (service->algorithm) {
	case ALGORITHM_ROUND_ROBIN:
		return __sync_fetch_and_add(&service->turn, 1);
	case ALGORITHM_SOURCE_HASH:
		return mix(bpf_get_netns_cookie(ctx));
	default:
		return bpf_get_prandom_u32();
	}
}

static __always_inline void sock_remember(struct bpf_sock_addr *ctx, const struct svc_key *dialled,
					  const struct backend *backend)
{
	struct sock_peer *peer;

	if (!ctx->sk)
		return;
	peer = bpf_sk_storage_get(&sock_peers, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!peer) {
		count(HOOK_SOCK, REASON_NO_MEMORY, 0);
		return;
	}
	peer->vip = dialled->addr;
	peer->vip_port = dialled->port;
	peer->backend = backend->addr;
	peer->backend_port = backend->port;
}

/* A socket that connects anew, to what is no Service, must not go by what it dialled before. */
static __always_inline void sock_forget(struct bpf_sock_addr *ctx)
{
	if (ctx->sk)
		bpf_sk_storage_delete(&sock_peers, ctx->sk);
}

static __always_inline enum verdict sock_decide(struct bpf_sock_addr *ctx, const struct svc_key *key,
						struct backend **backend)
{
	struct svc *svc = bpf_map_lookup_elem(&svcs, key);
	struct service *service;
	enum reason reason;
	__u32 index;

	if (!svc || svc->kind == SVC_EXTERNAL_ONLY) {
		sock_forget(ctx);
		return VERDICT_PASS;
	}
	index = svc->service;
	service = bpf_map_lookup_elem(&services, &index);
	if (!service) {
		count(HOOK_SOCK, REASON_BAD_TABLE, 0);
		return VERDICT_REFUSE;
	}
	reason = lb_select(service, index, lb_inside_scope(service, svc->kind), sock_hash(ctx, service), backend);
	if (reason != REASON_NONE) {
		count(HOOK_SOCK, reason, 0);
		return VERDICT_REFUSE;
	}
	sock_remember(ctx, key, *backend);
	return VERDICT_REWRITE;
}

/* Refusing with the errno that a closed port gives; where the kernel cannot, the packet path has to refuse. */
static __always_inline int sock_refuse(void)
{
	if (!cfg.can_refuse)
		return PROCEED;
	bpf_set_retval(-ECONNREFUSED);
	return REFUSE;
}

/* The record counts only while the socket is connected to the backend that it names. */
static __always_inline struct sock_peer *sock_recall(struct bpf_sock_addr *ctx, const struct addr *addr)
{
	struct sock_peer *peer;

	if (!ctx->sk)
		return NULL;
	peer = bpf_sk_storage_get(&sock_peers, ctx->sk, NULL, 0);
	if (!peer || peer->backend_port != (__be16)ctx->user_port || !addr_equal(&peer->backend, addr))
		return NULL;
	return peer;
}

static __always_inline struct addr ctx_addr6(struct bpf_sock_addr *ctx)
{
	return (struct addr) {
		.word = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] },
	};
}

static __always_inline void ctx_set_addr6(struct bpf_sock_addr *ctx, const struct addr *addr)
{
	ctx->user_ip6[0] = addr->word[0];
	ctx->user_ip6[1] = addr->word[1];
	ctx->user_ip6[2] = addr->word[2];
	ctx->user_ip6[3] = addr->word[3];
}

SEC("cgroup/connect4")
int sock_connect4(struct bpf_sock_addr *ctx)
{
	struct svc_key key = { .addr = addr_from_v4(ctx->user_ip4),
			       .port = ctx->user_port,
			       .proto = ctx->protocol };
	struct backend *backend = NULL;

	if (ctx->protocol != IPPROTO_TCP)
		return PROCEED;
	switch (sock_decide(ctx, &key, &backend)) {
	case VERDICT_REWRITE:
		ctx->user_ip4 = backend->addr.word[3];
		ctx->user_port = backend->port;
		return PROCEED;
	case VERDICT_REFUSE:
		return sock_refuse();
	default:
		return PROCEED;
	}
}

SEC("cgroup/connect6")
int sock_connect6(struct bpf_sock_addr *ctx)
{
	struct svc_key key = { .addr = ctx_addr6(ctx), .port = ctx->user_port, .proto = ctx->protocol };
	struct backend *backend = NULL;

	if (ctx->protocol != IPPROTO_TCP)
		return PROCEED;
	switch (sock_decide(ctx, &key, &backend)) {
	case VERDICT_REWRITE:
		ctx_set_addr6(ctx, &backend->addr);
		ctx->user_port = backend->port;
		return PROCEED;
	case VERDICT_REFUSE:
		return sock_refuse();
	default:
		return PROCEED;
	}
}

SEC("cgroup/getpeername4")
int sock_peername4(struct bpf_sock_addr *ctx)
{
	struct addr addr = addr_from_v4(ctx->user_ip4);
	struct sock_peer *peer = sock_recall(ctx, &addr);

	if (peer && addr_is_v4(&peer->vip)) {
		ctx->user_ip4 = peer->vip.word[3];
		ctx->user_port = peer->vip_port;
	}
	return PROCEED;
}

SEC("cgroup/getpeername6")
int sock_peername6(struct bpf_sock_addr *ctx)
{
	struct addr addr = ctx_addr6(ctx);
	struct sock_peer *peer = sock_recall(ctx, &addr);

	if (peer) {
		ctx_set_addr6(ctx, &peer->vip);
		ctx->user_port = peer->vip_port;
	}
	return PROCEED;
}

char _license[] SEC("license") = "Dual BSD/GPL";
