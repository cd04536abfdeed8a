// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains a source of packets and two sinks. BPF_PROG_TEST_RUN runs the source on the
 * kernel's own frames, which it fills and redirects; the sinks count and drop what arrives. */

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include "shape.h"

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} source_port SEC(".maps");

struct tally {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tally);
} arrived SEC(".maps");

/* The destination port of the packets that a sink counts, in network order. */
const volatile __u16 sink_port = 0;

__u64 sent;

SEC("xdp")
int source(struct xdp_md *ctx)
{
	if (!shape_write((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return XDP_ABORTED;
	sent++;
	return bpf_redirect_map(&source_port, 0, XDP_ABORTED);
}

/* Runs on frames that are dropped afterward, to find out whether the kernel makes any. */
SEC("xdp")
int source_only(struct xdp_md *ctx)
{
	if (!shape_write((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return XDP_ABORTED;
	sent++;
	return XDP_DROP;
}

/* Ports are at the same offset in TCP and UDP. The hosts' own traffic is not counted. */
static __always_inline bool sink_wants(void *data, void *end)
{
	struct ethhdr *eth = data;
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct iphdr *ip4 = (void *)(eth + 1);
	struct udphdr *l4;
	__u8 proto;

	if ((void *)(ip4 + 1) > end)
		return false;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		l4 = (void *)(ip4 + 1);
		proto = ip4->protocol;
	} else {
		if (eth->h_proto != bpf_htons(ETH_P_IPV6) || (void *)(ip6 + 1) > end)
			return false;
		l4 = (void *)(ip6 + 1);
		proto = ip6->nexthdr;
	}
	if ((void *)(l4 + 1) > end)
		return false;
	return (proto == IPPROTO_TCP || proto == IPPROTO_UDP) && l4->dest == sink_port;
}

static __always_inline void sink_count(__u64 bytes)
{
	__u32 zero = 0;
	struct tally *tally = bpf_map_lookup_elem(&arrived, &zero);

	if (!tally)
		return;
	tally->packets++;
	tally->bytes += bytes;
}

SEC("xdp")
int xdp_sink(struct xdp_md *ctx)
{
	if (!sink_wants((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return XDP_PASS;
	sink_count(ctx->data_end - ctx->data);
	return XDP_DROP;
}

SEC("tc")
int tc_sink(struct __sk_buff *skb)
{
	if (!sink_wants((void *)(long)skb->data, (void *)(long)skb->data_end))
		return TC_ACT_UNSPEC;
	sink_count(skb->len);
	return TC_ACT_SHOT;
}

/* Without an XDP program here or GRO, a veth takes no frames. */
SEC("xdp")
int xdp_pass(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
