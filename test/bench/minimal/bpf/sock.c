// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the least that a frontend needs at the socket: one constant is replaced with
 * another. */

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

enum {
	PROCEED = 1,
};

struct endpoint {
	__be32 addr[4]; /* IPv4: only the first word */
	__be32 port;
};

struct pair {
	struct endpoint frontend;
	struct endpoint backend;
};

const volatile struct pair pair4 = {};
const volatile struct pair pair6 = {};

static __always_inline int sock_replace4(struct bpf_sock_addr *ctx, const volatile struct endpoint *from,
					 const volatile struct endpoint *to)
{
	if (ctx->user_ip4 == from->addr[0] && ctx->user_port == from->port) {
		ctx->user_ip4 = to->addr[0];
		ctx->user_port = to->port;
	}
	return PROCEED;
}

static __always_inline int sock_replace6(struct bpf_sock_addr *ctx, const volatile struct endpoint *from,
					 const volatile struct endpoint *to)
{
	if (ctx->user_ip6[3] == from->addr[3] && ctx->user_ip6[2] == from->addr[2] &&
	    ctx->user_ip6[1] == from->addr[1] && ctx->user_ip6[0] == from->addr[0] &&
	    ctx->user_port == from->port) {
		ctx->user_ip6[0] = to->addr[0];
		ctx->user_ip6[1] = to->addr[1];
		ctx->user_ip6[2] = to->addr[2];
		ctx->user_ip6[3] = to->addr[3];
		ctx->user_port = to->port;
	}
	return PROCEED;
}

SEC("cgroup/connect4")
int sock_connect4(struct bpf_sock_addr *ctx)
{
	return sock_replace4(ctx, &pair4.frontend, &pair4.backend);
}

SEC("cgroup/connect6")
int sock_connect6(struct bpf_sock_addr *ctx)
{
	return sock_replace6(ctx, &pair6.frontend, &pair6.backend);
}

SEC("cgroup/sendmsg4")
int sock_sendmsg4(struct bpf_sock_addr *ctx)
{
	return sock_replace4(ctx, &pair4.frontend, &pair4.backend);
}

SEC("cgroup/sendmsg6")
int sock_sendmsg6(struct bpf_sock_addr *ctx)
{
	return sock_replace6(ctx, &pair6.frontend, &pair6.backend);
}

SEC("cgroup/recvmsg4")
int sock_recvmsg4(struct bpf_sock_addr *ctx)
{
	return sock_replace4(ctx, &pair4.backend, &pair4.frontend);
}

SEC("cgroup/recvmsg6")
int sock_recvmsg6(struct bpf_sock_addr *ctx)
{
	return sock_replace6(ctx, &pair6.backend, &pair6.frontend);
}

SEC("cgroup/getpeername4")
int sock_peername4(struct bpf_sock_addr *ctx)
{
	return sock_replace4(ctx, &pair4.backend, &pair4.frontend);
}

SEC("cgroup/getpeername6")
int sock_peername6(struct bpf_sock_addr *ctx)
{
	return sock_replace6(ctx, &pair6.backend, &pair6.frontend);
}

char _license[] SEC("license") = "Dual BSD/GPL";
