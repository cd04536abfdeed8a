// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the programs that test, between devices created for the test, whether a packet
 * that has left a network namespace still has its socket and its socket's departure time where it
 * leaves the node. Congestion control with pacing needs both: through the socket the queue reports
 * how many packets wait, and by the time it knows how long to delay them. */

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum survival {
	SURVIVAL_PACKET = 1, /* the packet arrived */
	SURVIVAL_SOCKET = 2,
	SURVIVAL_TIME = 4,
};

const enum survival *survival_type __attribute__((unused));

const volatile __u32 leaves_by;
/* bytes that a tunnel has put before the packet */
const volatile __u32 encapsulated_in;
/* Other packets are ignored, such as those that the kernel sends of itself, which a tunnel takes to
 * the same node. An IPv4 address is in the last four bytes. */
const volatile __u8 goes_to[16];
__u64 survived;

/* Bypasses the stack, like packets that pods send. */
SEC("tc")
int survival_redirect(struct __sk_buff *skb __attribute__((unused)))
{
	return bpf_redirect(leaves_by, 0);
}

static __always_inline bool survival_is_ours(struct __sk_buff *skb)
{
	__u32 ip4 = encapsulated_in + sizeof(struct ethhdr) + offsetof(struct iphdr, daddr),
	      ip6 = encapsulated_in + sizeof(struct ethhdr) + offsetof(struct ipv6hdr, daddr);
	__u8 to[16] = {};
	__u16 protocol;
	long err;

	if (bpf_skb_load_bytes(skb, encapsulated_in + offsetof(struct ethhdr, h_proto), &protocol,
			       sizeof(protocol)))
		return false;
	if (protocol == bpf_htons(ETH_P_IP))
		err = bpf_skb_load_bytes(skb, ip4, to + 12, 4);
	else
		err = bpf_skb_load_bytes(skb, ip6, to, sizeof(to));
	if (err)
		return false;
	for (int i = 0; i < 16; i++)
		if (to[i] != goes_to[i])
			return false;
	return true;
}

SEC("tc")
int survival_look(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	__u64 saw = SURVIVAL_PACKET;

	if (!survival_is_ours(skb))
		return 0;
	if (sk && bpf_sk_fullsock(sk))
		saw |= SURVIVAL_SOCKET;
	if (skb->tstamp && skb->tstamp_type == BPF_SKB_TSTAMP_DELIVERY_MONO)
		saw |= SURVIVAL_TIME;
	__sync_fetch_and_or(&survived, saw);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
