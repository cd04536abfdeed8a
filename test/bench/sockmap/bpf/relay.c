// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the least that takes messages past TCP, and a relay that forwards for a proxy
 * inside the kernel. Both find the other socket by ports, which only a benchmark may do: they check
 * nothing, and never wait. */

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* A socket, by its ports. */
struct ports {
	__u32 local;
	__u32 remote;
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 1024);
	__type(key, struct ports);
	__type(value, __u64);
} talkers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 1024);
	__type(key, struct ports);
	__type(value, __u64);
} relayed SEC(".maps");

/* The socket that receives what another one gets; it may be the same. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct ports);
	__type(value, struct ports);
} others SEC(".maps");

SEC("sk_msg")
int least_message(struct sk_msg_md *msg)
{
	struct ports peer = { .local = bpf_ntohl(msg->remote_port), .remote = msg->local_port };

	bpf_msg_redirect_hash(msg, &talkers, &peer, BPF_F_INGRESS);
	return SK_PASS;
}

SEC("sk_skb/stream_verdict")
int relay_verdict(struct __sk_buff *skb)
{
	struct ports at = { .local = skb->local_port, .remote = bpf_ntohl(skb->remote_port) };
	struct ports *other = bpf_map_lookup_elem(&others, &at);
	struct ports to;

	if (!other)
		return SK_PASS;
	to = *other;
	return bpf_sk_redirect_hash(skb, &relayed, &to, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
