/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how connections that a pod opens are handed to a proxy on its node, which sees
 * the destination that the pod dialed as its own address.
 *
 * The stack accepts a packet only if its route says that it is for the node, and no route should say
 * so here. So the packet goes over the loopback device and is routed before: a packet that leaves
 * by that device comes in again with the route it left with. IPv4 routes any destination out of
 * that device. IPv6 needs a route, and only ::1 has one, so that is the packet's destination until
 * it leaves (tc_to_lo). As it comes in, a listener is assigned to it (tc_from_lo); the stack itself
 * finds a connected socket.
 *
 * This needs no rules or routes, which others on the node might remove, and no check of the source
 * address (rp_filter) applies. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "maps.h"
#include "packet.h"
#include "pod_maps.h"
#include "reason.h"
#include "types.h"

enum {
	PROXY_DEVICE = 1, /* the loopback device is the first of every namespace */

	/* The mark on the way over that device. Its lower half is the port of the listener that
	 * gets the packet; 0: none. */
	PROXY_MARK = 0xfa170000,
	PROXY_MARKED = 0xffff0000,
};

enum {
	PROXY_PASS = -1, /* the packet goes to its destination */
	PROXY_GOES = 0,	 /* it is ready for the loopback device */
			 /* positive values are an enum reason */
	/* where skb->cb keeps the IPv6 next header; the entries before it keep the destination */
	PROXY_CB_NEXT = 4,
};

static __always_inline bool proxy_is_marked(const struct __sk_buff *skb)
{
	return (skb->mark & PROXY_MARKED) == PROXY_MARK;
}

/* Returns the proxy of a pod. If the packet was not recognized as the pod's own at once, the pod is
 * found by its device. */
static __always_inline __u32 proxy_of(struct __sk_buff *skb, const struct pod *from)
{
	__u32 ifindex = skb->ifindex;
	struct pod_link *link;

	if (from)
		return from->proxy;
	link = bpf_map_lookup_elem(&pod_links, &ifindex);
	return link ? link->proxy : 0;
}

/* Reports whether an IPv6 address is one by which a cloud serves its machines as by link-local ones:
 * in fd00:ec2::/32 (Amazon) or fd20:ce::/32 (Google). */
static __always_inline bool proxy_is_cloud6(__u32 first)
{
	return first == 0xfd000ec2 || first == 0xfd2000ce;
}

/* Reports whether a packet never goes to a proxy: its destination is the node, or one that the node
 * must not dial on the pod's behalf: unspecified, multicast, or link-local, where a cloud's metadata
 * service trusts whatever the node asks. */
static __always_inline bool proxy_is_beside(const struct packet *p)
{
	__u32 first = bpf_ntohl(p->flow.daddr.word[p->is_v4 ? 3 : 0]);
	struct addr to = p->flow.daddr; /* as in cluster_pod_at */

	if (p->is_v4 ? first >> 24 == 0 || first >> 16 == 0xa9fe || first >= 0xe0000000
		     : first >> 22 == 0xfe800000 >> 22 || first >> 24 == 0xff || proxy_is_cloud6(first))
		return true;
	return addr_is_any(&to) || bpf_map_lookup_elem(&node_addrs, &to);
}

/* Reports whether the protocol of a packet is unknown because it has more extension headers than the
 * parser follows: it stops at the header's number, or at none (which is that of the first kind of
 * header). Its receiver may find TCP behind them. */
static __always_inline bool proxy_is_hidden(const struct packet *p)
{
	return !p->is_v4 && packet_is_extension(p->flow.proto);
}

static __always_inline struct bpf_sock *proxy_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple,
						     bool is_v4)
{
	__u32 size = is_v4 ? sizeof(tuple->ipv4) : sizeof(tuple->ipv6);

	return bpf_skc_lookup_tcp(skb, tuple, size, BPF_F_CURRENT_NETNS, 0);
}

/* Reports whether a socket of the node is connected to the pod, with the address that the pod
 * dialed. A socket that only listens, at any address, may be somebody else's and does not count. A
 * socket in TIME-WAIT does: it replies to a new connection's SYN with an ACK, the pod answers that
 * with a RST, and when the SYN is repeated the old socket is gone. */
static __noinline bool proxy_is_connected(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	__u32 state;

	if (p->is_v4) {
		tuple.ipv4.saddr = p->flow.saddr.word[3];
		tuple.ipv4.daddr = p->flow.daddr.word[3];
		tuple.ipv4.sport = p->flow.sport;
		tuple.ipv4.dport = p->flow.dport;
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &p->flow.saddr, sizeof(struct addr));
		__builtin_memcpy(tuple.ipv6.daddr, &p->flow.daddr, sizeof(struct addr));
		tuple.ipv6.sport = p->flow.sport;
		tuple.ipv6.dport = p->flow.dport;
	}
	sk = proxy_lookup(skb, &tuple, p->is_v4);
	if (!sk)
		return false;
	state = sk->state;
	bpf_sk_release(sk);
	return state != BPF_TCP_LISTEN;
}

/* Finds the socket that listens at a port of the loopback address, or at all addresses. The port of
 * the tuple's source is 0, which no connection has. The caller releases it. */
static __always_inline struct bpf_sock *proxy_listener(struct __sk_buff *skb, bool is_v4, __u32 port)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;

	if (is_v4) {
		tuple.ipv4.saddr = tuple.ipv4.daddr = bpf_htonl(0x7f000001);
		tuple.ipv4.dport = bpf_htons(port);
	} else {
		tuple.ipv6.saddr[3] = tuple.ipv6.daddr[3] = bpf_htonl(1);
		tuple.ipv6.dport = bpf_htons(port);
	}
	sk = port ? proxy_lookup(skb, &tuple, is_v4) : NULL;
	if (sk && sk->state != BPF_TCP_LISTEN) {
		bpf_sk_release(sk);
		return NULL;
	}
	return sk;
}

/* Reports whether a packet proves that a listener has replied to its sender with a SYN cookie,
 * which it does when its queue is full. */
static __always_inline bool proxy_has_cookie(struct __sk_buff *skb, const struct packet *p,
					     struct bpf_sock *listener)
{
	struct ipv6hdr ip; /* as long as the minimal IPv4 and TCP headers together */
	struct tcphdr tcp;

	if (bpf_skb_load_bytes(skb, p->l3, &ip, sizeof(ip)) || bpf_skb_load_bytes(skb, p->l4, &tcp, sizeof(tcp)))
		return false;
	return !bpf_tcp_check_syncookie(listener, &ip, sizeof(ip), &tcp, sizeof(tcp));
}

/* Reports whether a listener accepts a packet that belongs to no connection. */
static __noinline bool proxy_admits(struct __sk_buff *skb, const struct packet *p, bool is_first, __u32 port)
{
	struct bpf_sock *listener = proxy_listener(skb, p->is_v4, port);
	bool admits;

	if (!listener)
		return false;
	admits = is_first || proxy_has_cookie(skb, p, listener);
	bpf_sk_release(listener);
	return admits;
}

/* Prepares a packet for the loopback device. An IPv6 packet also loses its protocol until it
 * leaves: if tc_to_lo is missing, no socket at ::1 gets it. */
static __always_inline bool proxy_prepare(struct __sk_buff *skb, const struct packet *p, __u32 port)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ipv6hdr *ip6 = data + sizeof(struct ethhdr);

	if (p->l3 != sizeof(struct ethhdr))
		return false;
	if (!p->is_v4) {
		if ((void *)(ip6 + 1) > end)
			return false;
		for (int i = 0; i < 4; i++)
			skb->cb[i] = p->flow.daddr.word[i];
		skb->cb[PROXY_CB_NEXT] = ip6->nexthdr;
		ip6->nexthdr = IPPROTO_NONE;
		__builtin_memset(&ip6->daddr, 0, sizeof(ip6->daddr));
		ip6->daddr.in6_u.u6_addr32[3] = bpf_htonl(1);
	}
	skb->mark = PROXY_MARK | port;
	return true;
}

/* Decides about a packet of a pod that has a proxy, which is TCP or may be. Connections that the pod
 * opens go to the proxy, and so do packets of such connections. Replies to connections to the pod,
 * and packets of connections older than the proxy, go their way. `now`: the packet goes right away
 * and is prepared. Not static, so that the verifier walks it only once. */
__noinline int proxy_take(struct __sk_buff *skb, struct packet *p, __u32 proxy, bool now)
{
	enum parsed parsed = p ? packet_read(skb, p, 0) : PARSED_OTHER;
	__u32 port = 0;
	bool is_first;

	if (!p || proxy_is_beside(p))
		return PROXY_PASS;
	if (parsed == PARSED_SHORT)
		return REASON_MALFORMED;
	if (parsed == PARSED_CUT || (parsed == PARSED_FLOW && p->is_fragment))
		return REASON_FRAGMENT; /* the rest of the datagram could not be attributed */
	if (parsed == PARSED_OTHER && proxy_is_hidden(p))
		return REASON_EXTENSIONS;
	if (parsed != PARSED_FLOW || p->flow.proto != IPPROTO_TCP)
		return PROXY_PASS;
	is_first = (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	if (!proxy_is_connected(skb, p)) {
		port = proxy & POD_PROXY_PORT;
		if (!proxy_admits(skb, p, is_first, port))
			return is_first && !(proxy & POD_PROXY_OPTIONAL) ? REASON_NO_PROXY : PROXY_PASS;
	}
	return !now || proxy_prepare(skb, p, port) ? PROXY_GOES : REASON_MALFORMED;
}

/* Restores what proxy_prepare removed from an IPv6 packet, now that it has its route. */
static __always_inline bool proxy_restore(struct __sk_buff *skb)
{
	struct addr to;
	__u8 next = skb->cb[PROXY_CB_NEXT];

	for (int i = 0; i < 4; i++)
		to.word[i] = skb->cb[i];
	return !bpf_skb_store_bytes(skb, sizeof(struct ethhdr) + offsetof(struct ipv6hdr, daddr), &to, sizeof(to),
				    0) &&
	       !bpf_skb_store_bytes(skb, sizeof(struct ethhdr) + offsetof(struct ipv6hdr, nexthdr), &next,
				    sizeof(next), 0);
}

/* Assigns a packet to the listener at a port. False: there is no listener any more, or it shares
 * its port with others (SO_REUSEPORT), which bpf_sk_assign supports only since Linux 6.6. */
static __always_inline bool proxy_assign(struct __sk_buff *skb, __u32 port)
{
	struct bpf_sock *listener = proxy_listener(skb, skb->protocol == bpf_htons(ETH_P_IP), port);
	long failed;

	if (!listener)
		return false;
	failed = bpf_sk_assign(skb, listener, 0);
	bpf_sk_release(listener);
	return !failed;
}
