/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the sums of a packet at tc, with which the kernel has to help: a device has yet to complete
 * them, or has made one over the whole packet. */
#pragma once

#include "rewrite.h"

/* Two calls and no fewer: where the sum is partial, as in every packet that GRO merged, the field has only the sum
 * of the pseudo header, of which the addresses are part and the ports are not. The first takes the addresses for
 * those of IPv4, whose header makes up for them in the sum of a device that summed the whole packet; with IPv6 that
 * has to be undone. */
static __always_inline int skb_replace(struct __sk_buff *skb, __u32 check, __u8 proto, const struct ct_entry *to)
{
	__u64 udp = proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;

	if (bpf_l4_csum_replace(skb, check, 0, to->addr_diff, BPF_F_PSEUDO_HDR | udp))
		return -1;
	return bpf_l4_csum_replace(skb, check, 0, to->port_diff, udp);
}

static __always_inline void skb_sum_ip6(struct __sk_buff *skb, const struct ct_entry *to, bool forward)
{
	bpf_csum_update(skb, (__u32)to->addr_diff + (forward ? (__u16)~bpf_htons(1) : 0));
}

/* Zero, or less if the packet is not as it was read. */
static __always_inline int skb_sum(struct __sk_buff *skb, const struct packet *p, const struct action *a,
				   bool forward)
{
	if (p->flow.proto == IPPROTO_SCTP)
		return rewrite_sctp((void *)(long)skb->data, (void *)(long)skb->data_end, p, a->to.sport,
				    a->to.dport)
			       ? 0
			       : -1;
	if (skb_replace(skb, p->l4 + rewrite_check_offset(p), p->flow.proto, &a->to))
		return -1;
	if (!p->is_v4)
		skb_sum_ip6(skb, &a->to, forward);
	return 0;
}

/* A sum that the sender left to a device takes no difference but that of the pseudo header, which is the only way
 * that every kernel has to tell. */
static __always_inline bool skb_is_partial(struct __sk_buff *skb, const struct packet *p)
{
	__u32 at = p->l4 + rewrite_check_offset(p);
	__u16 before = 0, after = 0;

	if ((p->flow.proto != IPPROTO_TCP && p->flow.proto != IPPROTO_UDP) ||
	    bpf_skb_load_bytes(skb, at, &before, 2) || bpf_l4_csum_replace(skb, at, 0, 1, 0) ||
	    bpf_skb_load_bytes(skb, at, &after, 2))
		return false;
	bpf_skb_store_bytes(skb, at, &before, 2, 0);
	return before == after;
}
