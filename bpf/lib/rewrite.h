/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the writing of headers, which is the same in tc and XDP, and at tc of checksums. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/types.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "csum.h"
#include "flow.h"
#include "packet.h"
#include "types.h"

static __always_inline __u32 rewrite_check_offset(const struct packet *p)
{
	return p->flow.proto == IPPROTO_TCP ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check);
}

/* Changes an SCTP checksum, which covers the ports but no address. Zero means that there is none,
 * because a device has yet to compute it, or at all (RFC 9653), and stays. A packet whose length
 * says that it ends within its header has none either. */
static __always_inline bool rewrite_sctp(void *data, void *end, const struct packet *p, __be16 sport, __be16 dport)
{
	struct sctp *sctp = packet_at(data, end, p->l4, sizeof(*sctp));
	__u32 stop = packet_end(data, end, p), diff;

	if (!sctp)
		return false;
	diff = (p->flow.sport ^ sport) | (__u32)(p->flow.dport ^ dport) << 16;
	if (diff && sctp->check && stop >= p->l4 + sizeof(*sctp))
		sctp->check ^= csum_crc32c_change(diff, stop - p->l4);
	return true;
}

/* Here, and nowhere else, a packet loses a hop, as at any router. Returns how the sum over the IPv4 header
 * changes; what is rewritten besides is added to that before the header's checksum is changed. */
static __always_inline __u16 rewrite_hop4(struct iphdr *ip)
{
	ip->ttl--;
	return ~bpf_htons(0x100);
}

static __always_inline void rewrite_hop(void *ip, bool is_v4)
{
	struct iphdr *ip4 = ip;
	struct ipv6hdr *ip6 = ip;

	if (is_v4)
		ip4->check = csum_change(ip4->check, rewrite_hop4(ip4));
	else
		ip6->hop_limit--;
}

/* How the sum over the whole packet changes by that, which a device may have computed: in IPv4 the
 * header's checksum compensates. */
static __always_inline __u16 rewrite_hop_sum(bool is_v4)
{
	return is_v4 ? 0 : ~bpf_htons(1);
}

static __always_inline void rewrite_ip4(struct iphdr *ip, const struct ct_entry *to, bool forward)
{
	__u32 diff = to->addr_diff;

	if (forward)
		diff += rewrite_hop4(ip);
	ip->saddr = to->saddr.word[3];
	ip->daddr = to->daddr.word[3];
	ip->check = csum_change(ip->check, diff);
}

/* Both structs have the two addresses next to each other. */
static __always_inline void rewrite_ip6(struct ipv6hdr *ip, const struct ct_entry *to, bool forward)
{
	const __u64 *from = (const __u64 *)&to->saddr;
	__u64 *addrs = (void *)&ip->saddr;

	if (forward)
		rewrite_hop(ip, false);
	for (int i = 0; i < 4; i++)
		addrs[i] = from[i];
}

/* As both have the two ports. */
static __always_inline void rewrite_ports(void *l4, const struct ct_entry *to)
{
	*(__u32 *)l4 = *(const __u32 *)&to->sport;
}

/* And the two MAC addresses. */
static __always_inline void rewrite_hosts(void *eth, const struct ct_entry *to)
{
	const __u32 *from = (const __u32 *)to->dmac;
	__u32 *hosts = eth;

	for (int i = 0; i < 3; i++)
		hosts[i] = from[i];
}

/* Changes a complete TCP or UDP checksum. Zero means that a UDP packet has none, and stays; so a
 * result of zero is written as 0xffff. */
static __always_inline void rewrite_check(__u16 *check, __u8 proto, const struct ct_entry *to)
{
	__u16 sum = *check;

	if (proto == IPPROTO_UDP && !sum)
		return;
	sum = csum_change(sum, (__u32)to->addr_diff + to->port_diff);
	*check = proto == IPPROTO_UDP && !sum ? 0xffff : sum;
}

/* Writes the MAC addresses of the next link. */
static __always_inline bool rewrite_link(void *data, void *end, const struct action *a)
{
	if (data + sizeof(struct ethhdr) > end)
		return false;
	rewrite_hosts(data, &a->to);
	return true;
}

static __always_inline bool rewrite_ip(void *data, void *end, const struct packet *p, const struct action *a,
				       bool forward)
{
	void *ip = data + p->l3;

	if (p->is_v4) {
		if (ip + sizeof(struct iphdr) > end)
			return false;
		rewrite_ip4(ip, &a->to, forward);
		return true;
	}
	if (ip + sizeof(struct ipv6hdr) > end)
		return false;
	rewrite_ip6(ip, &a->to, forward);
	return true;
}

static __always_inline bool rewrite_hops(void *data, void *end, const struct packet *p)
{
	void *ip = packet_at(data, end, p->l3, p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));

	if (!ip)
		return false;
	rewrite_hop(ip, p->is_v4);
	return true;
}

/* Writes the addresses of a fragment, which has no ports. */
static __noinline int rewrite_fragment(void *data, void *end, const struct packet *p, const struct action *a)
{
	return p->l3 <= PACKET_L4_MOST && rewrite_ip(data, end, p, a, false);
}

/* Writes everything except the TCP or UDP checksum. With `forward`, the packet leaves here as a
 * router sends it. False: the packet is not what was parsed before, which cannot happen. */
static __always_inline bool rewrite_headers(void *data, void *end, const struct packet *p, const struct action *a,
					    bool forward)
{
	void *l4 = data + p->l4;

	if (p->l3 > PACKET_L4_MOST || p->l4 > PACKET_L4_MOST || l4 + sizeof(struct udphdr) > end)
		return false;
	rewrite_ports(l4, &a->to);
	return rewrite_ip(data, end, p, a, forward) && (!forward || rewrite_link(data, end, a));
}

/* Changes a packet's destination to the action's and keeps its source. That cannot come from the
 * row: for an ICMP error the row has the client's address, but the error may come from a router.
 * The caller updates the checksums behind the IP header by the differences in the action. */
static __noinline int rewrite_target(void *data, void *end, const struct packet *p, struct action *a)
{
	struct udphdr *l4;

	a->to.saddr = p->flow.saddr;
	a->to.sport = p->flow.sport;
	flow_finish(&p->flow, &a->to);
	if (!rewrite_fragment(data, end, p, a))
		return false;
	if (!p->l4 || packet_is_icmp(p))
		return true;
	l4 = packet_at(data, end, p->l4, sizeof(*l4));
	if (!l4)
		return false;
	l4->dest = a->to.dport;
	return true;
}

/* The checksums of a packet at tc, which need the kernel's help: a device may have yet to complete
 * them, or may have computed a sum over the whole packet. */

/* Two calls are the minimum: if the checksum is partial, as in every packet that GRO merged, the
 * field contains only the sum of the pseudo header, which includes the addresses but not the ports.
 * The first call assumes IPv4, where the header's checksum compensates for the addresses in a
 * device's sum over the whole packet; for IPv6 rewrite_skb_sum_ip6 has to undo that. */
static __always_inline int rewrite_skb_replace(struct __sk_buff *skb, __u32 check, __u8 proto,
					       const struct ct_entry *to)
{
	__u64 udp = proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;

	if (bpf_l4_csum_replace(skb, check, 0, to->addr_diff, BPF_F_PSEUDO_HDR | udp))
		return -1;
	return bpf_l4_csum_replace(skb, check, 0, to->port_diff, udp);
}

static __always_inline void rewrite_skb_sum_ip6(struct __sk_buff *skb, const struct ct_entry *to, bool forward)
{
	bpf_csum_update(skb, (__u32)to->addr_diff + (forward ? rewrite_hop_sum(false) : 0));
}

/* Returns zero, or a negative value if the packet is not what was parsed before. */
static __always_inline int rewrite_skb_sum(struct __sk_buff *skb, const struct packet *p, const struct action *a,
					   bool forward)
{
	if (p->flow.proto == IPPROTO_SCTP)
		return rewrite_sctp((void *)(long)skb->data, (void *)(long)skb->data_end, p, a->to.sport,
				    a->to.dport)
			       ? 0
			       : -1;
	if (rewrite_skb_replace(skb, p->l4 + rewrite_check_offset(p), p->flow.proto, &a->to))
		return -1;
	if (!p->is_v4)
		rewrite_skb_sum_ip6(skb, &a->to, forward);
	return 0;
}

/* Reports whether the sender left the checksum to a device. Such a checksum ignores every
 * difference but one of the pseudo header, and trying that is the only test that works on every
 * kernel. */
static __always_inline bool rewrite_skb_is_partial(struct __sk_buff *skb, const struct packet *p)
{
	__u32 at = p->l4 + rewrite_check_offset(p);
	__u16 before = 0, after = 0;

	if ((p->flow.proto != IPPROTO_TCP && p->flow.proto != IPPROTO_UDP) ||
	    bpf_skb_load_bytes(skb, at, &before, 2) || bpf_l4_csum_replace(skb, at, 0, 1, 0) ||
	    bpf_skb_load_bytes(skb, at, &after, 2))
		return false;
	bpf_skb_store_bytes(skb, at, &before, 2, 0);
	return before == after;
}

/* Forwards a packet that has no checksum of its own to fix. Of what a device may have summed, only
 * the hop limit of IPv6 changes here; the caller accounts for the addresses of a fragment. */
static __always_inline bool rewrite_skb_forward(struct __sk_buff *skb, const struct packet *p,
						const struct action *a)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (!rewrite_hops(data, end, p) || !rewrite_link(data, end, a))
		return false;
	if (!p->is_v4)
		bpf_csum_update(skb, rewrite_hop_sum(false));
	return true;
}
