/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how the socket programs read and change the address of a call: each family has
 * fields of its own. */
#pragma once

#include <linux/bpf.h>

#include "addr.h"

static __always_inline struct svc_key ctx_key4(struct bpf_sock_addr *ctx)
{
	return (struct svc_key) {
		.addr = addr_from_v4(ctx->user_ip4),
		.port = ctx->user_port,
		.proto = ctx->protocol,
	};
}

static __always_inline struct svc_key ctx_key6(struct bpf_sock_addr *ctx)
{
	return (struct svc_key) {
		.addr.word = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] },
		.port = ctx->user_port,
		.proto = ctx->protocol,
	};
}

static __always_inline void ctx_set4(struct bpf_sock_addr *ctx, const struct addr *addr, __be16 port)
{
	ctx->user_ip4 = addr->word[3];
	ctx->user_port = port;
}

static __always_inline void ctx_set6(struct bpf_sock_addr *ctx, const struct addr *addr, __be16 port)
{
	ctx->user_ip6[0] = addr->word[0];
	ctx->user_ip6[1] = addr->word[1];
	ctx->user_ip6[2] = addr->word[2];
	ctx->user_ip6[3] = addr->word[3];
	ctx->user_port = port;
}
