/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the check of what a pod may send: only packets from its own IP and MAC addresses,
 * and nothing by which its node or other pods would take it for somebody else. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "cluster.h"
#include "config.h"
#include "dsr.h"
#include "dsr_ingress.h"
#include "maps.h"
#include "packet.h"
#include "pod_maps.h"
#include "reason.h"
#include "route.h"
#include "types.h"

enum {
	ANTISPOOF_GOES = 0,   /* to any destination */
	ANTISPOOF_STAYS = -1, /* to the stack only: it concerns the link, whatever its destination */
	/* likewise, but it just has link-local source and destination addresses */
	ANTISPOOF_NEAR = -2,
	/* positive values are an enum reason */
};

enum {
	ND_SOLICIT_ROUTER = 133,
	ND_ROUTER_ADVERT = 134,
	ND_NEIGHBOR_ADVERT = 136,
	ND_REDIRECT = 137,
	ND_HOPS = 255, /* hop limit of packets that have not been forwarded */
	DHCP4_SERVER = 67,
	DHCP4_CLIENT = 68,
	DHCP6_SERVER = 547,
	ARP_ETHERNET = 1,
};

/* ARP for IPv4 over Ethernet. */
struct arp {
	__be16 link;
	__be16 proto;
	__u8 link_len;
	__u8 addr_len;
	__be16 op;
	__u8 from_mac[ETH_ALEN];
	__u8 from[4];
	__u8 to_mac[ETH_ALEN];
	__u8 to[4];
};

/* A neighbor advertisement. */
struct advert {
	struct icmp icmp;
	struct addr target;
};

static __always_inline bool antispoof_is_mac(const __u8 *a, const __u8 *b)
{
	__u32 head_a, head_b;
	__u16 tail_a, tail_b;

	__builtin_memcpy(&head_a, a, 4);
	__builtin_memcpy(&head_b, b, 4);
	__builtin_memcpy(&tail_a, a + 4, 2);
	__builtin_memcpy(&tail_b, b + 4, 2);
	return head_a == head_b && tail_a == tail_b;
}

static __always_inline bool antispoof_has(__u32 ifindex, const struct addr *addr)
{
	struct pod *pod = cluster_pod_at(addr);

	return pod && pod->ifindex == ifindex;
}

/* ARP: a pod may ask for any address, but has to use its own as the sender. */
static __always_inline int antispoof_arp(struct __sk_buff *skb, const struct pod_link *link)
{
	struct arp arp;
	struct addr from;
	__be32 ip;

	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &arp, sizeof(arp)))
		return REASON_MALFORMED;
	if (arp.link != bpf_htons(ARP_ETHERNET) || arp.proto != bpf_htons(ETH_P_IP) || arp.link_len != ETH_ALEN ||
	    arp.addr_len != sizeof(ip))
		return REASON_PROTOCOL;
	__builtin_memcpy(&ip, arp.from, sizeof(ip));
	from = addr_from_v4(ip);
	if (!antispoof_is_mac(arp.from_mac, link->mac) || (ip && !antispoof_has(skb->ifindex, &from)))
		return REASON_NEIGHBOR;
	return ANTISPOOF_STAYS;
}

/* Reports whether a pod may send an ICMPv6 packet, which may be neighbor discovery. */
static __always_inline int antispoof_nd(struct __sk_buff *skb, const struct packet *p)
{
	struct advert advert;

	if (bpf_skb_load_bytes(skb, p->l4, &advert.icmp, sizeof(advert.icmp)))
		return REASON_MALFORMED;
	switch (advert.icmp.type) {
	case ND_ROUTER_ADVERT:
	case ND_REDIRECT:
		return REASON_ROUTER;
	case ND_NEIGHBOR_ADVERT:
		if (bpf_skb_load_bytes(skb, p->l4, &advert, sizeof(advert)))
			return REASON_MALFORMED;
		return addr_is_local6(&advert.target) || antispoof_has(skb->ifindex, &advert.target)
			       ? ANTISPOOF_GOES
			       : REASON_NEIGHBOR;
	}
	return advert.icmp.type >= ICMP6_LINK_FIRST && advert.icmp.type <= ICMP6_LINK_LAST ? ANTISPOOF_STAYS
											   : ANTISPOOF_GOES;
}

/* Checks what a packet is, whatever its addresses. */
static __always_inline int antispoof_content(struct __sk_buff *skb, const struct packet *p, enum parsed parsed)
{
	if (parsed == PARSED_FLOW && p->flow.proto == IPPROTO_UDP &&
	    p->flow.sport == bpf_htons(p->is_v4 ? DHCP4_SERVER : DHCP6_SERVER))
		return REASON_DHCP;
	return parsed == PARSED_ICMP && !p->is_v4 ? antispoof_nd(skb, p) : ANTISPOOF_GOES;
}

/* What has to be read of a packet to find what it encapsulates: two headers with IPv4 options, and
 * Geneve. */
#define ANTISPOOF_PULL 256

/* Reports whether the inner packet of what was read is for an address of a node, as far as Node
 * objects and this node's devices tell. In other clusters, such as one that runs in pods, the numbers
 * of NodePorts are numbers like any others. At an address of a node that nobody knows, a forger would
 * only choose among the Service's own backends. */
static __noinline int antispoof_is_to_node(const struct dsr_hint *hint, const struct packet *p, void *data,
					   void *end)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;
	struct addr to;

	if (p->is_v4) {
		ip = packet_at(data, end, p->l3 + hint->len, sizeof(*ip));
		if (!ip)
			return true;
		to = addr_from_v4(ip->daddr);
	} else {
		ip6 = packet_at(data, end, p->l3 + hint->len, sizeof(*ip6));
		if (!ip6)
			return true;
		__builtin_memcpy(&to, &ip6->daddr, sizeof(to));
	}
	return bpf_map_lookup_elem(&node_addrs, &to) || cluster_is_node(&to);
}

/* Reports whether a packet looks as if a node had forwarded it to a backend, see dsr_ingress.h: other
 * nodes would believe it if it had its node's address by the time that it gets there. Tunnels that
 * lead elsewhere are the pod's own business. */
static __noinline int antispoof_forges(struct __sk_buff *skb, const struct packet *p, enum parsed parsed)
{
	struct dsr_hint hint = {};
	void *data, *end;
	int to;

	if (!dsr_option_is_due(p) && !dsr_ingress_may_be(p, parsed))
		return false;
	if (bpf_skb_pull_data(skb, skb->len < ANTISPOOF_PULL ? skb->len : ANTISPOOF_PULL))
		return true;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (dsr_option_is_there(p, data, end))
		return true;
	if (!dsr_ingress_may_be(p, parsed) || !dsr_ingress_read(&hint, p, data, end))
		return false;
	if (hint.direct == DSR_GENEVE)
		return true;
	to = dsr_ingress_is_ours(&hint, p, data, end);
	return to == DSR_TO_NODE_PORT ? antispoof_is_to_node(&hint, p, data, end) : to;
}

/* A pod without an address may look for one by DHCP. */
static __always_inline int antispoof_nobody4(const struct packet *p, enum parsed parsed)
{
	return parsed == PARSED_FLOW && p->flow.proto == IPPROTO_UDP && p->flow.sport == bpf_htons(DHCP4_CLIENT) &&
			       p->flow.dport == bpf_htons(DHCP4_SERVER) &&
			       p->flow.daddr.word[3] == bpf_htonl(0xffffffff)
		       ? ANTISPOOF_STAYS
		       : REASON_SPOOFED;
}

/* Checks an IPv6 packet whose source is not an address of the pod: on its own link a pod has an
 * address that it made up, and before that the unspecified one. */
static __always_inline int antispoof_other6(const struct packet *p, int content)
{
	bool is_local = addr_is_local6(&p->flow.saddr);

	if (!is_local && !addr_is_any(&p->flow.saddr))
		return REASON_SPOOFED;
	if (!addr_stays6(&p->flow.daddr) || (!is_local && content != ANTISPOOF_STAYS))
		return REASON_SPOOFED;
	return content == ANTISPOOF_STAYS ? ANTISPOOF_STAYS : ANTISPOOF_NEAR;
}

static __always_inline int antispoof_ip(struct __sk_buff *skb, struct packet *p, enum parsed parsed)
{
	int content = antispoof_content(skb, p, parsed);

	if (content > 0)
		return content;
	if (antispoof_has(skb->ifindex, &p->flow.saddr))
		return content;
	if (!p->is_v4)
		return antispoof_other6(p, content);
	return addr_is_any(&p->flow.saddr) ? antispoof_nobody4(p, parsed) : REASON_SPOOFED;
}

/* Reports whether a pod may send a frame, and parses the packet for the caller. Not static, because
 * hardly any packet needs it: antispoof_own recognizes nearly all without it. */
__noinline int antispoof_check(struct __sk_buff *skb, struct packet *p)
{
	__u32 ifindex = skb->ifindex;
	struct pod_link *link = bpf_map_lookup_elem(&pod_links, &ifindex);
	enum parsed parsed;
	struct ethhdr eth;

	if (!p || bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
		return REASON_MALFORMED;
	parsed = packet_read(skb, p, 0);
	if (!link || !antispoof_is_mac(eth.h_source, link->mac))
		return REASON_SPOOFED_LINK;
	/* The stack goes by what it was told, and a pod may tell it something else by a netkit. */
	if (skb->vlan_present || skb->protocol != eth.h_proto)
		return REASON_PROTOCOL;
	if (eth.h_proto == bpf_htons(ETH_P_ARP))
		return link->flags & POD_UNCHECKED ? ANTISPOOF_STAYS : antispoof_arp(skb, link);
	if (eth.h_proto != bpf_htons(ETH_P_IP) && eth.h_proto != bpf_htons(ETH_P_IPV6))
		return REASON_PROTOCOL;
	if (!p->l3 || parsed == PARSED_SHORT || parsed == PARSED_CUT)
		return REASON_MALFORMED;
	if (addr_is_loopback(&p->flow.daddr))
		return REASON_LOOPBACK;
	if (!p->is_v4 && (addr_is_v4(&p->flow.saddr) || addr_is_v4(&p->flow.daddr)))
		return REASON_SPOOFED;
	if (antispoof_forges(skb, p, parsed))
		return REASON_FORGED;
	return link->flags & POD_UNCHECKED ? ANTISPOOF_GOES : antispoof_ip(skb, p, parsed);
}

/* Reports whether a packet has a protocol by which no pod can pose as another, or as a node, in the
 * header right behind the fixed IP header. */
static __always_inline bool antispoof_is_harmless(void *l4, void *end, __u8 proto, bool is_v4)
{
	if (proto == IPPROTO_TCP)
		return true;
	if (proto != IPPROTO_UDP)
		return is_v4 && proto == IPPROTO_ICMP;
	return l4 + sizeof(struct udphdr) <= end &&
	       ((struct udphdr *)l4)->source != bpf_htons(is_v4 ? DHCP4_SERVER : DHCP6_SERVER) &&
	       ((struct udphdr *)l4)->dest != bpf_htons(GENEVE_PORT);
}

/* Returns the pod that a packet read by packet_read_addrs evidently is from, or NULL. */
static __always_inline struct pod *antispoof_own(struct __sk_buff *skb, const struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end,
	     *ip = data + sizeof(struct ethhdr);
	struct pod *pod;

	if (p->is_v4) {
		if (ip + sizeof(struct iphdr) > end || *(__u8 *)ip != 0x45 || addr_is_loopback(&p->flow.daddr) ||
		    !antispoof_is_harmless(ip + sizeof(struct iphdr), end, p->flow.proto, true))
			return NULL;
	} else if (ip + sizeof(struct ipv6hdr) > end || *(__u8 *)ip >> 4 != 6 || addr_is_loopback(&p->flow.daddr) ||
		   !antispoof_is_harmless(ip + sizeof(struct ipv6hdr), end, p->flow.proto, false)) {
		return NULL;
	}
	if (skb->protocol != ((struct ethhdr *)data)->h_proto)
		return NULL;
	pod = cluster_pod_at(&p->flow.saddr);
	return pod && pod->ifindex == p->ifindex && antispoof_is_mac(((struct ethhdr *)data)->h_source, pod->mac)
		       ? pod
		       : NULL;
}

/* Reports whether a pod's packet stays on the node. */
static __always_inline bool antispoof_stays_on_node(const struct packet *p, const struct pod *to)
{
	struct addr addr = p->flow.daddr; /* as in cluster_pod_at */

	return to || (!p->is_v4 && addr_stays6(&addr)) || bpf_map_lookup_elem(&node_addrs, &addr);
}

/* Longer neighbor discovery carries something else: a router's advertisement with a few prefixes and
 * name servers fits. */
#define POD_LONGEST_ND 512

/* Reports whether a packet is ARP or neighbor discovery, which must not wait behind other packets.
 * Neighbor discovery from beyond the link has a lower hop limit, and if a pod sends it there it has
 * another kind of destination. ARP fits the shortest frame; what is longer carries something else. */
static __always_inline bool antispoof_is_neighbor_discovery(struct __sk_buff *skb, struct packet *p, bool sends)
{
	struct ipv6hdr ip6;
	__u8 type;

	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return skb->len <= ETH_ZLEN;
	if (skb->protocol != bpf_htons(ETH_P_IPV6) || skb->len > POD_LONGEST_ND ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &ip6, sizeof(ip6)) || ip6.nexthdr != IPPROTO_ICMPV6 ||
	    ip6.hop_limit != ND_HOPS ||
	    bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + sizeof(ip6), &type, sizeof(type)) ||
	    type < ND_SOLICIT_ROUTER || type > ND_REDIRECT)
		return false;
	__builtin_memcpy(&p->flow.daddr, &ip6.daddr, sizeof(struct addr));
	return !sends || antispoof_stays_on_node(p, NULL);
}

/* The check that keeps pods from the tunnel between nodes, see admit.h. */

/* Reports whether this node's stack takes packets to an address itself, as it does those to the
 * broadcast address of a network that it is in. */
static __noinline bool antispoof_tunnel_is_heard(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_fib_lookup way = { .family = ROUTE_INET, .ifindex = skb->ifindex };

	if (!p->is_v4)
		return false;
	way.ipv4_src = p->flow.saddr.word[3];
	way.ipv4_dst = p->flow.daddr.word[3];
	return bpf_fib_lookup(skb, &way, sizeof(way), 0) == BPF_FIB_LKUP_RET_NOT_FWDED;
}

/* Reports whether an address is a node's, as far as Node objects and this node's devices tell, or
 * one by which nodes hear their neighbors: link-local, multicast, broadcast, or none. */
static __always_inline bool antispoof_tunnel_is_at(const struct addr *addr)
{
	__u32 first = bpf_ntohl(addr->word[addr_is_v4(addr) ? 3 : 0]);
	struct prefix_key source = { .prefix_len = PREFIX_BITS, .addr = *addr };
	struct addr key = *addr; /* as in cluster_pod_at */
	struct cluster_node *behind;

	if (addr_is_any(&key) ||
	    (addr_is_v4(addr) ? first >= 0xe0000000 : first >> 22 == 0xfe800000 >> 22 || first >> 24 == 0xff))
		return true;
	if (bpf_map_lookup_elem(&node_addrs, &key) || cluster_node_at(&key))
		return true;
	behind = bpf_map_lookup_elem(&node_sources, &source);
	return behind && behind->flags & CLUSTER_NODE_TUNNEL;
}

/* Reports whether the destination's port, or the protocol, has to be read to tell whether a packet
 * is for the tunnel. Nearly no packet needs that. */
static __always_inline bool antispoof_tunnel_may_be(struct __sk_buff *skb, const struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end,
	     *ip = data + sizeof(struct ethhdr);
	struct ipv6hdr *ip6 = ip;
	struct udphdr *udp;

	if (!cfg.tunnel_port || p->flow.proto == IPPROTO_TCP || p->flow.proto == IPPROTO_ICMP ||
	    p->flow.proto == IPPROTO_ICMPV6)
		return false;
	if (p->flow.proto != IPPROTO_UDP)
		return !p->is_v4;
	if (p->is_v4 && (ip + sizeof(struct iphdr) > end || *(__u8 *)ip != 0x45))
		return true;
	/* behind extension headers, if whoever read the packet looked there */
	if (!p->is_v4 && ((void *)(ip6 + 1) > end || ip6->nexthdr != IPPROTO_UDP))
		return true;
	udp = ip + (p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	return (void *)(udp + 1) > end || udp->dest == bpf_htons(cfg.tunnel_port);
}

/* Reports whether a pod's packet is for a node's tunnel, or for any tunnel as from a node. IPv6
 * extension headers beyond those that are read may hide that it is. */
__noinline int antispoof_tunnel_is_entered(struct __sk_buff *skb)
{
	struct packet p = {};
	enum parsed parsed = packet_read(skb, &p, 0);

	if (parsed == PARSED_FLOW ? p.flow.proto != IPPROTO_UDP || p.flow.dport != bpf_htons(cfg.tunnel_port)
				  : parsed != PARSED_OTHER || p.is_v4 || !packet_is_extension(p.flow.proto))
		return false;
	return antispoof_tunnel_is_at(&p.flow.daddr) || cluster_node_at(&p.flow.saddr) ||
	       antispoof_tunnel_is_heard(skb, &p);
}
