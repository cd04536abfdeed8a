// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the shortest paths from one wire to another: of a packet, only the hardware
 * addresses are read and changed. */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

enum {
	TC_NEXT = -1,
};

struct hop {
	__u32 ifindex;
	__u8 dmac[6];
	__u8 smac[6];
};

const volatile struct hop hop = {};

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} port SEC(".maps");

/* Hides from the compiler which object this is. Otherwise it would use the zeroes that the object
 * has at compile time instead of the values set at load. */
static __always_inline const struct hop *hop_load(void)
{
	const struct hop *known = (const struct hop *)&hop;

	asm volatile("" : "+r"(known));
	return known;
}

/* Addresses a frame to the next hop. Frames to groups are left alone, since they include neighbor
 * discovery. */
static __always_inline int hop_write(void *data, void *end)
{
	const struct hop *to = hop_load();
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end || eth->h_dest[0] & 1)
		return 0;
	__builtin_memcpy(eth->h_dest, to->dmac, 6);
	__builtin_memcpy(eth->h_source, to->smac, 6);
	return 1;
}

SEC("tc")
int tc_redirect(struct __sk_buff *skb)
{
	if (!hop_write((void *)(long)skb->data, (void *)(long)skb->data_end))
		return TC_NEXT;
	return bpf_redirect(hop.ifindex, 0);
}

/* Redirects directly to the far end of the wire, which only works if the near end is in this
 * namespace. */
SEC("tc")
int tc_redirect_peer(struct __sk_buff *skb)
{
	if (!hop_write((void *)(long)skb->data, (void *)(long)skb->data_end))
		return TC_NEXT;
	return bpf_redirect_peer(hop.ifindex, 0);
}

SEC("xdp")
int xdp_redirect(struct xdp_md *ctx)
{
	if (!hop_write((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return XDP_PASS;
	return bpf_redirect_map(&port, 0, XDP_ABORTED);
}

char _license[] SEC("license") = "Dual BSD/GPL";
