/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how XDP sends packets of flows that their backend answers directly on the
 * fast path, see fastpath.h. If a function returns false for lack of headroom, the packet has been
 * written in part. */
#pragma once

#include "fastpath.h"

/* Reports whether the device that a packet came in by accepts `len` bytes, or the packet's own
 * length if that is zero. */
static __always_inline bool xdp_takes(struct xdp_md *ctx, struct action *a, __u32 len)
{
	a->mtu = len;
	return (len && len <= DSR_ENCAP_EVERY_LINK) || bpf_check_mtu(ctx, 0, &a->mtu, 0, 0) <= 0;
}

/* Copies an even number of bytes to a place at least eight bytes earlier. */
static __always_inline void xdp_copy(void *to, const void *from, __u32 len)
{
	__u32 at = 0;

	for (; at + 8 <= len; at += 8)
		*(__u64 *)(to + at) = *(__u64 *)(from + at);
	for (; at < len; at += 2)
		*(__u16 *)(to + at) = *(__u16 *)(from + at);
}

/* Encapsulates a packet for its backend. */
static __always_inline bool xdp_fastpath_encap(struct xdp_md *ctx, const struct flow *flow,
					       const struct ct_entry *to, const struct fastpath *plain,
					       bool is_geneve)
{
	__u32 room = dsr_encap_room(fastpath_is_v4(plain), is_geneve ? DSR_GENEVE : DSR_IPIP);
	void *data;

	if (bpf_xdp_adjust_head(ctx, -(int)room))
		return false;
	data = (void *)(long)ctx->data;
	if (data + room + plain->l4 > (void *)(long)ctx->data_end)
		return false;
	fastpath_encap(plain, flow, data, to, is_geneve);
	return true;
}

/* Sends a packet to its backend with what its client dialed in an option. */
static __always_inline bool xdp_fastpath_option(struct xdp_md *ctx, const struct flow *flow,
						const struct ct_entry *to, const struct fastpath *plain)
{
	__u32 room = dsr_encap_room(fastpath_is_v4(plain), DSR_OPT);
	void *data = (void *)(long)ctx->data;

	if (data + plain->check + sizeof(__u16) > (void *)(long)ctx->data_end)
		return false;
	fastpath_rewrite(plain, data, to, true);
	rewrite_check(data + plain->check, fastpath_proto(plain), to);
	if (bpf_xdp_adjust_head(ctx, -(int)room))
		return false;
	data = (void *)(long)ctx->data;
	if (data + room + plain->l4 > (void *)(long)ctx->data_end)
		return false;
	xdp_copy(data, data + room, plain->l4);
	fastpath_option(plain, data, flow);
	return true;
}
