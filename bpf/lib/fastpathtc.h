/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how tc sends packets of flows that their backend answers directly on the short
 * way, see fastpath.h. If a function returns false for lack of memory, the packet has been written in
 * part. */
#pragma once

#include "fastpath.h"
#include "skb.h"

/* Reports whether the row's device accepts `len` bytes, or the packet's own length if that is zero,
 * and returns its MTU in `a`. */
static __always_inline bool tc_takes(struct __sk_buff *skb, struct action *a, __u32 len)
{
	a->mtu = len;
	if (len && len <= DSR_ENCAP_EVERY_LINK && !skb->gso_size)
		return true;
	return bpf_check_mtu(skb, a->to.ifindex == skb->ifindex ? 0 : a->to.ifindex, &a->mtu, 0, 0) <= 0;
}

/* Reports whether the device accepts a packet with its encapsulation. Merged UDP packets take the
 * slow path, because their segments must not become smaller. */
static __always_inline bool tc_fastpath_fits(struct __sk_buff *skb, struct action *a, const struct fastpath *plain)
{
	__u32 len = fastpath_len(plain, (void *)(long)skb->data, (void *)(long)skb->data_end);

	if (!len || (fastpath_proto(plain) == IPPROTO_UDP && skb->gso_size))
		return false;
	return tc_takes(skb, a, len + dsr_encap_room(fastpath_is_v4(plain), dsr_encap_mode(&a->to)));
}

/* Encapsulates a packet for its backend. */
static __always_inline bool tc_fastpath_encap(struct __sk_buff *skb, const struct flow *flow,
					      const struct ct_entry *to, const struct fastpath *plain,
					      bool is_geneve)
{
	__u32 room = dsr_encap_room(fastpath_is_v4(plain), is_geneve ? DSR_GENEVE : DSR_IPIP);
	__u64 flags = skb_grow_flags(fastpath_is_v4(plain), fastpath_proto(plain), is_geneve), diff;
	void *data;

	if (!skb_grow_by(skb, room, flags, to->dport))
		return false;
	data = (void *)(long)skb->data;
	if (data + room + plain->l4 > (void *)(long)skb->data_end)
		return false;
	diff = fastpath_encap(plain, flow, data, to, is_geneve);
	if (!fastpath_is_v4(plain) || is_geneve)
		bpf_csum_update(skb, csum_fold(diff));
	return true;
}

/* Sends a packet to its backend with what its client dialed in an option. */
static __always_inline bool tc_fastpath_option(struct __sk_buff *skb, const struct flow *flow,
					       const struct ct_entry *to, const struct fastpath *plain)
{
	__u32 room = dsr_encap_room(fastpath_is_v4(plain), DSR_OPT);
	void *data = (void *)(long)skb->data;
	__u16 diff;

	if (data + plain->check + sizeof(__u16) > (void *)(long)skb->data_end)
		return false;
	fastpath_rewrite(plain, data, to, true);
	if (skb_replace(skb, plain->check, fastpath_proto(plain), to) ||
	    !skb_option_room(skb, room, fastpath_proto(plain)))
		return false;
	data = (void *)(long)skb->data;
	if (data + room + plain->l4 > (void *)(long)skb->data_end)
		return false;
	diff = fastpath_option(plain, data, flow);
	if (!fastpath_is_v4(plain)) {
		skb_sum_ip6(skb, to, true);
		bpf_csum_update(skb, diff);
	}
	return true;
}
