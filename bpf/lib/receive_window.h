/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how senders to a rate-limited pod are slowed down: by lowering the TCP window
 * that the pod advertises. Only packets that still have their socket are changed, because the
 * socket knows the window scale. The pod has room for what it advertised before, so no sender has
 * to take back data in flight. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "pod_maps.h"
#include "rate.h"

enum { RECEIVE_WINDOW_STREAM = 1 }; /* SOCK_STREAM, which no UAPI header has */

/* The parts of kernel types that are read here. */
struct tcp_options_received {
	__u8 snd_wscale : 4, rcv_wscale : 4;
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct tcp_options_received rx_opt;
	__u16 advmss;
} __attribute__((preserve_access_index));

/* Returns the offset of a packet's TCP header, or zero if it has none or is a later fragment. */
static __always_inline __u32 receive_window_find(struct __sk_buff *skb, bool is_v4)
{
	__be16 fragment = 0;
	__u8 proto;
	__u32 off;

	if (is_v4 && bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + offsetof(struct iphdr, frag_off), &fragment,
					sizeof(fragment)))
		return 0;
	off = rate_transport(skb, is_v4, &proto);
	return off && proto == IPPROTO_TCP && !(fragment & bpf_htons(0x1fff)) ? off : 0;
}

/* The largest window that a packet may advertise, in units of its socket's window scale. It is
 * never less than two segments: a sender with less would wait for timers, either the receiver's
 * delayed ACK, or its own if not even one segment fits. */
static __always_inline __u64 receive_window_most(struct tcp_sock *tcp, __u64 bytes)
{
	__u32 scale = BPF_CORE_READ_BITFIELD(tcp, rx_opt.rcv_wscale), least = 2 * tcp->advmss;

	if (bytes < least)
		bytes = least;
	return (bytes + (1ULL << (scale & 15)) - 1) >> (scale & 15);
}

/* Lowers the window that a packet from a pod advertises to what the pod should receive. */
static __noinline int receive_window_lower(struct __sk_buff *skb, __u32 ifindex, bool is_v4)
{
	struct pod_rate *limit = bpf_map_lookup_elem(&pod_rates, &ifindex);
	struct pod_pace *pace = limit ? rate_pace(limit, ifindex, PACE_IN) : NULL;
	__u64 bytes = pace ? *(volatile __u64 *)&pace->window.bytes : 0, most;
	struct bpf_sock *sk = skb->sk;
	struct tcp_sock *tcp;
	struct tcphdr head;
	__be16 is;
	__u32 off;

	if (!bytes || !sk)
		return 0;
	sk = bpf_sk_fullsock(sk);
	/* The kernel replies for closed sockets from a control socket. Linux 6.1 takes it for a TCP
	 * socket. */
	tcp = sk && sk->type == RECEIVE_WINDOW_STREAM ? bpf_skc_to_tcp_sock(sk) : NULL;
	off = tcp ? receive_window_find(skb, is_v4) : 0;
	if (!off || bpf_skb_load_bytes(skb, off, &head, sizeof(head)) || head.syn || head.rst)
		return 0;
	most = receive_window_most(tcp, bytes);
	if (bpf_ntohs(head.window) <= most)
		return 0;
	is = bpf_htons(most);
	bpf_l4_csum_replace(skb, off + offsetof(struct tcphdr, check), head.window, is, sizeof(is));
	bpf_skb_store_bytes(skb, off + offsetof(struct tcphdr, window), &is, sizeof(is), 0);
	return 0;
}
