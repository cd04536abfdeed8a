/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the changes of a packet for which tc needs the kernel's help: making room in a
 * packet that may be a merged one, and fixing its checksums. */
#pragma once

#include "dsr_option_write.h"
#include "sumtc.h"
#include "dsr_option_read.h"
#include "dsr_encap.h"

/* Changes a packet's destination, with its checksums. */
static __always_inline bool skb_point(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 check = dsr_option_check(p);

	if (!rewrite_target(data, end, p, a))
		return false;
	if (dsr_option_has_ports(p))
		return !skb_sum(skb, p, a, false);
	if (check && bpf_l4_csum_replace(skb, check, 0, a->to.addr_diff, BPF_F_PSEUDO_HDR))
		return false;
	if (!p->is_v4)
		bpf_csum_update(skb, a->to.addr_diff);
	return true;
}

/* Forwards a packet that has no checksum of its own to fix. Of what a device may have summed, only
 * the hop limit of IPv6 changes here; the caller accounts for the addresses of a fragment. */
static __always_inline bool skb_forward(struct __sk_buff *skb, const struct packet *p, const struct action *a)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (!rewrite_hops(data, end, p) || !rewrite_link(data, end, a))
		return false;
	if (!p->is_v4)
		bpf_csum_update(skb, (__u16)~bpf_htons(1));
	return true;
}

/* Reports whether packets that are rewritten as a row says have a source address of this node: the
 * stack accepts no such IPv4 packet from outside. Not inlined, to have a stack frame of its own. */
static __noinline int skb_is_own(const struct ct_entry *row)
{
	struct addr from = row->saddr; /* as in ct_known */

	return bpf_map_lookup_elem(&node_addrs, &from) != NULL;
}

/* Makes room for the option. Every segment of a merged TCP packet becomes smaller by as much. */
static __always_inline bool skb_option_room(struct __sk_buff *skb, __u32 len, __u8 proto)
{
	__u64 flags = proto == IPPROTO_UDP ? BPF_F_ADJ_ROOM_FIXED_GSO : 0;

	return !bpf_skb_adjust_room(skb, len, BPF_ADJ_ROOM_NET, flags);
}

/* Inserts the option. */
static __always_inline bool skb_mark(struct __sk_buff *skb, const struct packet *p)
{
	int diff;

	if (!skb_option_room(skb, dsr_option_len(p), p->flow.proto))
		return false;
	diff = dsr_option_write((void *)(long)skb->data, (void *)(long)skb->data_end, p);
	if (diff >= 0)
		bpf_csum_update(skb, diff);
	return diff >= 0;
}

/* Removes the option from a received packet. */
static __always_inline bool skb_remove_option(struct __sk_buff *skb, const struct packet *p)
{
	int diff = dsr_option_remove((void *)(long)skb->data, (void *)(long)skb->data_end, p, skb->len);

	if (diff < 0)
		return false;
	bpf_csum_update(skb, diff);
	return !bpf_skb_adjust_room(skb, -(__s32)dsr_option_len(p), BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO);
}

static __always_inline __u64 skb_grow_flags(bool is_v4, __u8 proto, bool is_geneve)
{
	__u64 flags = is_v4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;

	if (proto == IPPROTO_UDP)
		flags |= BPF_F_ADJ_ROOM_FIXED_GSO;
	if (is_geneve)
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2_ETH |
			 BPF_F_ADJ_ROOM_ENCAP_L2((__u64)sizeof(struct ethhdr));
	return flags;
}

/* The kernel refuses to encapsulate a packet that was encapsulated before, even after
 * decapsulation. It can still segment such a packet if the new encapsulation equals the old one
 * (which it does when a packet is given back, without a port). A packet that is not merged needs no
 * segmentation. */
static __always_inline bool skb_grow_by(struct __sk_buff *skb, __u32 len, __u64 flags, __be16 port)
{
	if (!bpf_skb_adjust_room(skb, len, BPF_ADJ_ROOM_MAC, flags))
		return true;
	return (!port || !skb->gso_size) &&
	       !bpf_skb_adjust_room(skb, len, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
}

static __always_inline bool skb_grow(struct __sk_buff *skb, const struct packet *p, const struct action *a)
{
	return skb_grow_by(skb, dsr_encap_len(p, a),
			   skb_grow_flags(p->is_v4, p->flow.proto, dsr_encap_is_geneve(a)), a->to.dport);
}
