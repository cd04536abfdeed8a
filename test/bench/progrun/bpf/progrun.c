// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains what runs before a program under test in each repetition of one system call:
 * it writes the next packet and jumps to the program, which never returns here. */

#include "../../frames/bpf/shape.h"

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} under_test SEC(".maps");

/* The length of every packet. What the previous run added around the packet is removed again. */
const volatile __u32 frame_len;

/* The number of runs without a packet to write to, or without a program to jump to. */
__u64 broken;

SEC("xdp")
int xdp_run(struct xdp_md *ctx)
{
	long more = (void *)(long)ctx->data_end - (void *)(long)ctx->data - (long)frame_len;

	if (more > 0 && bpf_xdp_adjust_head(ctx, more))
		broken++;
	if (shape_write((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		bpf_tail_call(ctx, &under_test, 0);
	broken++;
	return XDP_ABORTED;
}

SEC("tc")
int tc_run(struct __sk_buff *skb)
{
	/* The kernel uses one packet for all runs. */
	skb->mark = 0;
	if (skb->len > frame_len &&
	    bpf_skb_adjust_room(skb, -(int)(skb->len - frame_len), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		broken++;
	if (shape_write((void *)(long)skb->data, (void *)(long)skb->data_end))
		bpf_tail_call(skb, &under_test, 0);
	broken++;
	return 0;
}

/* The cost when there is nothing to do. */
SEC("xdp")
int xdp_empty(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_PASS;
}

SEC("tc")
int tc_empty(struct __sk_buff *skb __attribute__((unused)))
{
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
