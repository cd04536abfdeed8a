/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the checksums of a packet at tc, which need the kernel's help: a device may
 * have yet to complete them, or may have computed a sum over the whole packet. */
#pragma once

#include "rewrite.h"

/* Two calls are the minimum: if the checksum is partial, as in every packet that GRO merged, the
 * field contains only the sum of the pseudo header, which includes the addresses but not the ports.
 * The first call assumes IPv4, where the header's checksum compensates for the addresses in a
 * device's sum over the whole packet; for IPv6 skb_sum_ip6 has to undo that. */
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

/* Returns zero, or a negative value if the packet is not what was parsed before. */
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

/* Reports whether the sender left the checksum to a device. Such a checksum ignores every
 * difference but one of the pseudo header, and trying that is the only test that works on every
 * kernel. */
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
