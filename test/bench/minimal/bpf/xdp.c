// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the least that a node port needs at XDP: everything is written directly, and
 * the checksum of TCP or UDP is updated by hand. The checksum must be complete, not left to a
 * device. */

#include "wrap.h"

enum {
	PORT_BACK,  /* toward the backend */
	PORT_FRONT, /* toward the client */
	PORTS,
};

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

static __always_inline int xdp_apply(struct packet *p, const struct rewrite *to, __u32 port)
{
	__be16 *check = (void *)p->eth + p->check_offset;
	__u32 diff = (__u32)fold(to->addr_diff) + fold(to->port_diff);

	rewrite_headers(p, to);
	if (p->proto == IPPROTO_TCP) {
		replace(check, diff);
	} else if (*check) { /* 0 = no checksum, and must not become the result */
		replace(check, diff);
		if (!*check)
			*check = 0xffff;
	}
	return bpf_redirect_map(&ports, port, XDP_ABORTED);
}

static __always_inline int xdp_wrap(struct xdp_md *ctx, struct packet *p, const struct rewrite *to, __u32 port)
{
	__u16 len = wrap_inner(p);
	bool is_v4 = p->ip4;

	if (bpf_xdp_adjust_head(ctx, -(int)wrap_len(is_v4)) ||
	    !wrap_write((void *)(long)ctx->data, (void *)(long)ctx->data_end, is_v4, to, len))
		return XDP_ABORTED;
	return bpf_redirect_map(&ports, port, XDP_ABORTED);
}

static __always_inline int xdp_side(struct packet *p, const struct side *side, __u32 port)
{
	return matches(p, side) ? xdp_apply(p, &side->to, port) : XDP_PASS;
}

static __always_inline int xdp_constant(struct xdp_md *ctx, const volatile struct side *sides, __u32 port)
{
	struct packet p;

	if (!parse(&p, (void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return XDP_PASS;
	if (p.ip4)
		return xdp_side(&p, side_of(sides, V4), port);
	return xdp_side(&p, side_of(sides, V6), port);
}

static __always_inline int xdp_flow(struct xdp_md *ctx, const volatile struct side *sides, __u32 port)
{
	const struct rewrite *row;
	struct rewrite fresh;
	struct packet p;

	if (!parse(&p, (void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return XDP_PASS;
	row = flow_find(&p, sides, &fresh);
	if (row && wraps)
		return xdp_wrap(ctx, &p, row, port);
	return row ? xdp_apply(&p, row, port) : XDP_PASS;
}

SEC("xdp")
int xdp_constant_in(struct xdp_md *ctx)
{
	return xdp_constant(ctx, forward, PORT_BACK);
}

SEC("xdp")
int xdp_constant_out(struct xdp_md *ctx)
{
	return xdp_constant(ctx, reply, PORT_FRONT);
}

SEC("xdp")
int xdp_flow_in(struct xdp_md *ctx)
{
	return xdp_flow(ctx, forward, PORT_BACK);
}

SEC("xdp")
int xdp_flow_out(struct xdp_md *ctx)
{
	return xdp_flow(ctx, reply, PORT_FRONT);
}

char _license[] SEC("license") = "Dual BSD/GPL";
