// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the least that a node port needs at tc: headers are written directly, and the
 * checksum of TCP or UDP is updated in two calls with precomputed differences. */

#include "wrap.h"

enum {
	TC_NEXT = -1,
	TC_DROP = 2,
};

/* It takes two calls: in a packet with a partial checksum, such as any that GRO merged, the field
 * only holds the sum of the pseudo header, which includes the addresses but not the ports. */
static __always_inline int tc_apply(struct __sk_buff *skb, struct packet *p, const struct rewrite *to)
{
	__u64 udp = p->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 addr_diff = to->addr_diff, port_diff = to->port_diff, ifindex = to->ifindex;
	__u32 check = p->check_offset;

	rewrite_headers(p, to);
	if (bpf_l4_csum_replace(skb, check, 0, addr_diff, BPF_F_PSEUDO_HDR | udp) ||
	    bpf_l4_csum_replace(skb, check, 0, port_diff, udp))
		return TC_NEXT;
	return bpf_redirect(ifindex, 0);
}

static __always_inline int tc_wrap(struct __sk_buff *skb, struct packet *p, const struct rewrite *to)
{
	__u32 ifindex = to->ifindex;
	__u16 len = wrap_inner(p);
	bool is_v4 = p->ip4;

	if (bpf_skb_adjust_room(skb, wrap_len(is_v4), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) ||
	    !wrap_write((void *)(long)skb->data, (void *)(long)skb->data_end, is_v4, to, len))
		return TC_DROP;
	return bpf_redirect(ifindex, 0);
}

static __always_inline int tc_side(struct __sk_buff *skb, struct packet *p, const struct side *side)
{
	return matches(p, side) ? tc_apply(skb, p, &side->to) : TC_NEXT;
}

static __always_inline int tc_constant(struct __sk_buff *skb, const volatile struct side *sides)
{
	struct packet p;

	if (!parse(&p, (void *)(long)skb->data, (void *)(long)skb->data_end))
		return TC_NEXT;
	if (p.ip4)
		return tc_side(skb, &p, side_of(sides, V4));
	return tc_side(skb, &p, side_of(sides, V6));
}

static __always_inline int tc_flow(struct __sk_buff *skb, const volatile struct side *sides)
{
	const struct rewrite *row;
	struct rewrite fresh;
	struct packet p;

	if (!parse(&p, (void *)(long)skb->data, (void *)(long)skb->data_end))
		return TC_NEXT;
	row = flow_find(&p, sides, &fresh);
	if (row && wraps)
		return tc_wrap(skb, &p, row);
	return row ? tc_apply(skb, &p, row) : TC_NEXT;
}

SEC("tc")
int tc_constant_in(struct __sk_buff *skb)
{
	return tc_constant(skb, forward);
}

SEC("tc")
int tc_constant_out(struct __sk_buff *skb)
{
	return tc_constant(skb, reply);
}

SEC("tc")
int tc_flow_in(struct __sk_buff *skb)
{
	return tc_flow(skb, forward);
}

SEC("tc")
int tc_flow_out(struct __sk_buff *skb)
{
	return tc_flow(skb, reply);
}

char _license[] SEC("license") = "Dual BSD/GPL";
