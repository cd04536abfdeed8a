/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how those who send to a pod are held up: by the packets in which the pod tells them how much
 * room it has for what they send. Only those are changed that still have their socket, which knows in what unit
 * they tell it. What the pod has told before it has room for; nobody has to take back what is on its way. */
#pragma once

#include <linux/tcp.h>

#include <bpf/bpf_core_read.h>

#include "edt.h"

enum { HOLD_STREAM = 1 }; /* SOCK_STREAM, which is in no header of the kernel's */

/* What is read of the kernel's. */
struct tcp_options_received {
	__u8 snd_wscale : 4, rcv_wscale : 4;
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct tcp_options_received rx_opt;
	__u16 advmss;
} __attribute__((preserve_access_index));

/* Where a packet has its TCP header, or zero: it has none, or is not its beginning. */
static __always_inline __u32 hold_find(struct __sk_buff *skb, bool is_v4)
{
	__be16 fragment = 0;
	__u8 proto;
	__u32 off;

	if (is_v4 && bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + offsetof(struct iphdr, frag_off), &fragment,
					sizeof(fragment)))
		return 0;
	off = edt_transport(skb, is_v4, &proto);
	return off && proto == IPPROTO_TCP && !(fragment & bpf_htons(0x1fff)) ? off : 0;
}

/* The most that a packet may say, in its socket's unit. A sender that may have less than two segments on its way
 * waits for clocks: its receiver's, which acknowledges one alone late, or its own where not even that fits. */
static __always_inline __u64 hold_most(struct tcp_sock *tcp, __u64 bytes)
{
	__u32 scale = BPF_CORE_READ_BITFIELD(tcp, rx_opt.rcv_wscale), least = 2 * tcp->advmss;

	if (bytes < least)
		bytes = least;
	return (bytes + (1ULL << (scale & 15)) - 1) >> (scale & 15);
}

/* Has a packet that a pod sends say that the pod has room for no more than what it should get. */
static __noinline int hold_senders(struct __sk_buff *skb, __u32 ifindex, bool is_v4)
{
	struct pod_rate *limit = bpf_map_lookup_elem(&pod_rates, &ifindex);
	struct pod_pace *pace = limit ? edt_pace(limit, ifindex, PACE_IN) : NULL;
	__u64 bytes = pace ? *(volatile __u64 *)&pace->window.bytes : 0, most;
	struct bpf_sock *sk = skb->sk;
	struct tcp_sock *tcp;
	struct tcphdr head;
	__be16 is;
	__u32 off;

	if (!bytes || !sk)
		return 0;
	sk = bpf_sk_fullsock(sk);
	/* By a socket of its own the kernel answers for those that are gone. Linux 6.1 takes it for one of TCP. */
	tcp = sk && sk->type == HOLD_STREAM ? bpf_skc_to_tcp_sock(sk) : NULL;
	off = tcp ? hold_find(skb, is_v4) : 0;
	if (!off || bpf_skb_load_bytes(skb, off, &head, sizeof(head)) || head.syn || head.rst)
		return 0;
	most = hold_most(tcp, bytes);
	if (bpf_ntohs(head.window) <= most)
		return 0;
	is = bpf_htons(most);
	bpf_l4_csum_replace(skb, off + offsetof(struct tcphdr, check), head.window, is, sizeof(is));
	bpf_skb_store_bytes(skb, off + offsetof(struct tcphdr, window), &is, sizeof(is), 0);
	return 0;
}
