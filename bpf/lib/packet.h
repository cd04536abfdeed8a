/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the packet parser. It knows neither __sk_buff nor xdp_md, but where tc reads what
 * is not linear, and it keeps offsets instead of pointers, because no helper invalidates an offset. */
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

#include "addr.h"
#include "types.h"

/* The parser skips at most this many VLAN tags and extension headers. A packet with more is left to
 * the stack. */
#define PACKET_TAGS 2
#define PACKET_EXTENSIONS 6

/* A packet whose headers end beyond this offset is left to the stack too: the verifier needs a
 * bound. */
#define PACKET_L4_MOST 1024

enum {
	IP4_DONT = 0x4000, /* in the fragment field */
	IP4_MORE = 0x2000,
	IP4_OFFSET = 0x1fff,
	IP6_MORE = 0x1,
	IP6_OFFSET = 0xfff8,
};

enum {
	TCP_FIN = 0x01,
	TCP_SYN = 0x02,
	TCP_RST = 0x04,
	TCP_ACK = 0x10,
};

enum parsed {
	PARSED_FLOW,  /* TCP, UDP or SCTP, with ports */
	PARSED_ICMP,  /* ICMP of the packet's family */
	PARSED_LATER, /* a fragment other than the first: it has no ports */
	PARSED_OTHER, /* anything else without ports */
	PARSED_SHORT, /* the packet ends within a header */
	PARSED_CUT,   /* it ends within the TCP or SCTP header, after the ports */
};

/* Maps already known to have no row for the packet's flow, so they need no lookup. */
enum lacks {
	LACKS_CT = 1,
	LACKS_PENDING = 2,
};

struct packet {
	struct flow flow;
	__u32 ifindex; /* set by the program that received it */
	__be32 seq;    /* TCP; for SCTP the tag that an INIT or INIT ACK asks for */
	__be32 ack;    /* TCP; for SCTP the verification tag of the packet */
	__be32 id;     /* of a fragment */
	__u16 l3;      /* offsets of the headers */
	__u16 l4;
	/* for a packet quoted by an ICMP error: where the error ends and padding begins */
	__u16 stop;
	__u8 tcp_flags; /* for SCTP, the TCP flags that correspond to its first chunk */
	__u8 ttl;
	bool is_v4;
	bool is_tagged;
	bool is_whole; /* must not be fragmented by a router */
	/* set by the receiving program: it can only send the packet back out of the same device
	 * (XDP) */
	bool bounces;
	bool is_fragment; /* the first fragment; later ones have no ports */
	/* set by the receiving program: another node forwarded it and chose the backend */
	bool is_forwarded : 1;
	/* likewise: this node forwarded it to another node, which gave it back */
	bool is_returned : 1;
	/* likewise: policies are about the pod that sent it */
	bool has_policy : 1;
	/* likewise: those about the pod that receives it have accepted its flow */
	bool is_accepted : 1;
	/* likewise: policy_flow_admits was asked about its sender, as it is now */
	bool is_read : 1;
	__u8 lacks; /* likewise, an enum lacks */
};

/* SCTP headers, which the kernel's UAPI does not define. */
struct sctp {
	__be16 source;
	__be16 dest;
	__be32 tag;
	__le32 check;
};

struct sctp_init {
	__u8 type;
	__u8 flags;
	__be16 len;
	__be32 tag;
};

enum sctp_chunk {
	SCTP_INIT = 1,
	SCTP_INIT_ACK = 2,
	SCTP_ABORT = 6,
	SCTP_SHUTDOWN = 7,
	SCTP_SHUTDOWN_ACK = 8,
	SCTP_SHUTDOWN_COMPLETE = 14,
};

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};

/* The ICMP header, the same in both families. The kernel's own header file pulls in half of
 * libc. */
struct icmp {
	__u8 type;
	__u8 code;
	__u16 check;
	__be32 rest;
};

enum icmp4 {
	ICMP4_ECHO_REPLY,
	ICMP4_UNREACHABLE = 3,
	ICMP4_ECHO = 8,
	ICMP4_EXPIRED = 11,
	ICMP4_PARAMETER = 12,
	ICMP4_CODE_PORT = 3,
	ICMP4_CODE_TOO_BIG = 4,
};

enum icmp6 {
	ICMP6_UNREACHABLE = 1,
	ICMP6_TOO_BIG = 2,
	ICMP6_EXPIRED = 3,
	ICMP6_PARAMETER = 4,
	ICMP6_ECHO = 128,
	ICMP6_ECHO_REPLY = 129,
	/* first and last of the types for the link only: multicast listeners, routers and
	 * neighbors */
	ICMP6_LINK_FIRST = 130,
	ICMP6_LINK_LAST = 143,
	ICMP6_CODE_PORT = 4,
};

/* Every extension header that the parser skips has at least these bytes, and begins like this. */
struct extension {
	__u8 next;
	__u8 len;
	__be16 fragment;
	__be32 id; /* of a fragment */
};

/* Returns a pointer to the `size` bytes at offset `at` of a frame, or NULL if the frame is too
 * short. The asm keeps the offset in one register: otherwise the compiler may check one copy and
 * add another, which the verifier cannot relate. */
static __always_inline void *packet_at(void *data, void *end, __u32 at, __u32 size)
{
	void *found;

	asm volatile("" : "+r"(at));
	if (at > 2 * PACKET_L4_MOST)
		return NULL;
	found = data + at;
	return found + size > end ? NULL : found;
}

/* Returns the offset at which a packet ends within its frame; padding may follow. Zero: the packet
 * is not what was parsed before. */
static __always_inline __u32 packet_end(void *data, void *end, const struct packet *p)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	if (p->is_v4) {
		ip = packet_at(data, end, p->l3, sizeof(*ip));
		return ip ? p->l3 + bpf_ntohs(ip->tot_len) : 0;
	}
	ip6 = packet_at(data, end, p->l3, sizeof(*ip6));
	return ip6 ? p->l3 + sizeof(*ip6) + bpf_ntohs(ip6->payload_len) : 0;
}

static __always_inline bool packet_is_icmp(const struct packet *p)
{
	return p->flow.proto == (p->is_v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
}

/* A TCP connection or an SCTP association begins with a handshake, which proves that the client
 * receives our packets. */
static __always_inline bool packet_shakes_hands(const struct packet *p)
{
	return p->flow.proto == IPPROTO_TCP || p->flow.proto == IPPROTO_SCTP;
}

/* Reports whether a packet opens a TCP connection or SCTP association. */
static __always_inline bool packet_is_syn(const struct packet *p)
{
	return (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
}

static __always_inline enum parsed packet_parse_tcp(struct packet *p, struct tcphdr *tcp, void *end)
{
	if ((void *)(tcp + 1) > end)
		return PARSED_CUT;
	p->seq = tcp->seq;
	p->ack = tcp->ack_seq;
	p->tcp_flags = ((__u8 *)tcp)[13];
	return PARSED_FLOW;
}

static __always_inline __u8 packet_sctp_flags(__u8 chunk)
{
	switch (chunk) {
	case SCTP_INIT:
		return TCP_SYN;
	case SCTP_INIT_ACK:
		return TCP_SYN | TCP_ACK;
	case SCTP_ABORT:
		return TCP_RST;
	case SCTP_SHUTDOWN:
	case SCTP_SHUTDOWN_ACK:
	case SCTP_SHUTDOWN_COMPLETE:
		return TCP_FIN | TCP_ACK;
	default:
		return TCP_ACK;
	}
}

/* A chunk that begins or ends an association is the first one of its packet. */
static __always_inline enum parsed packet_parse_sctp(struct packet *p, struct sctp *sctp, void *end)
{
	struct sctp_init *init = (void *)(sctp + 1);
	__u8 *chunk = (void *)(sctp + 1);

	if ((void *)(sctp + 1) > end)
		return PARSED_CUT;
	p->ack = sctp->tag;
	if ((void *)(chunk + 1) > end)
		return PARSED_FLOW;
	p->tcp_flags = packet_sctp_flags(*chunk);
	if (p->tcp_flags & TCP_SYN && (void *)(init + 1) <= end)
		p->seq = init->tag;
	return PARSED_FLOW;
}

/* The header of every protocol handled here has at least eight bytes. */
static __always_inline enum parsed packet_parse_l4(struct packet *p, void *data, void *end, __u32 at)
{
	__u32 ports, proto = p->flow.proto;
	struct udphdr *udp = data + at;

	if (at > PACKET_L4_MOST)
		return PARSED_OTHER;
	p->l4 = at;
	if (p->flow.proto != IPPROTO_UDP && !packet_shakes_hands(p) && !packet_is_icmp(p))
		return PARSED_OTHER;
	if ((void *)(udp + 1) > end)
		return PARSED_SHORT;
	if (packet_is_icmp(p))
		return PARSED_ICMP;
	/* All have their ports in the same place. Ports and protocol (with its padding) are written
	 * as whole words because the map's hash reads words: a load that spans several smaller
	 * stores stalls until they have reached the cache. */
	ports = *(__u32 *)udp;
	__builtin_memcpy(&p->flow.sport, &ports, sizeof(ports));
	__builtin_memcpy(&p->flow.proto, &proto, sizeof(proto));
	if (p->flow.proto == IPPROTO_TCP)
		return packet_parse_tcp(p, data + at, end);
	return p->flow.proto == IPPROTO_SCTP ? packet_parse_sctp(p, data + at, end) : PARSED_FLOW;
}

static __always_inline enum parsed packet_parse4(struct packet *p, void *data, void *end, __u32 at)
{
	struct iphdr *ip = data + at;

	if ((void *)(ip + 1) > end)
		return PARSED_SHORT;
	if (ip->version != 4 || ip->ihl < 5)
		return PARSED_OTHER;
	p->l3 = at;
	p->is_v4 = true;
	p->is_fragment = ip->frag_off & bpf_htons(IP4_MORE);
	p->id = ip->id;
	p->is_whole = ip->frag_off & bpf_htons(IP4_DONT);
	p->ttl = ip->ttl;
	p->flow.saddr = addr_from_v4(ip->saddr);
	p->flow.daddr = addr_from_v4(ip->daddr);
	p->flow.proto = ip->protocol;
	if (ip->frag_off & bpf_htons(IP4_OFFSET))
		return PARSED_LATER;
	return packet_parse_l4(p, data, end, at + ip->ihl * 4);
}

static __always_inline bool packet_is_extension(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS ||
	       next == IPPROTO_FRAGMENT;
}

static __always_inline enum parsed packet_parse6(struct packet *p, void *data, void *end, __u32 at)
{
	struct ipv6hdr *ip = data + at;
	__u8 next;

	if ((void *)(ip + 1) > end)
		return PARSED_SHORT;
	if (ip->version != 6)
		return PARSED_OTHER;
	p->l3 = at;
	p->is_whole = true;
	p->ttl = ip->hop_limit;
	__builtin_memcpy(&p->flow.saddr, &ip->saddr, sizeof(struct addr));
	__builtin_memcpy(&p->flow.daddr, &ip->daddr, sizeof(struct addr));
	/* never on the wire; it would be mistaken for IPv4 */
	if (addr_is_v4(&p->flow.saddr) || addr_is_v4(&p->flow.daddr))
		return PARSED_OTHER;
	next = ip->nexthdr;
	at += sizeof(*ip);
	for (int i = 0; i < PACKET_EXTENSIONS && packet_is_extension(next); i++) {
		struct extension *header = data + at;

		if ((void *)(header + 1) > end)
			return PARSED_SHORT;
		if (next != IPPROTO_FRAGMENT) {
			at += (header->len + 1) * 8;
		} else {
			p->id = header->id;
			if (header->fragment & bpf_htons(IP6_OFFSET))
				return PARSED_LATER;
			p->is_fragment = header->fragment & bpf_htons(IP6_MORE);
			at += 8;
		}
		if (at > PACKET_L4_MOST)
			return PARSED_OTHER;
		next = header->next;
	}
	p->flow.proto = next;
	return packet_parse_l4(p, data, end, at);
}

/* Parses a packet into `p`, which must be all zero. */
static __always_inline enum parsed packet_parse(struct packet *p, void *data, void *end)
{
	struct ethhdr *eth = data;
	__u32 at = sizeof(*eth);
	__be16 proto;

	if ((void *)(eth + 1) > end)
		return PARSED_SHORT;
	proto = eth->h_proto;
	for (int i = 0; i < PACKET_TAGS; i++) {
		struct vlan_tag *tag = data + at;

		if (proto != bpf_htons(ETH_P_8021Q) && proto != bpf_htons(ETH_P_8021AD))
			break;
		if ((void *)(tag + 1) > end)
			return PARSED_SHORT;
		proto = tag->proto;
		at += sizeof(*tag);
		p->is_tagged = true;
	}
	if (proto == bpf_htons(ETH_P_IP))
		return packet_parse4(p, data, end, at);
	if (proto == bpf_htons(ETH_P_IPV6))
		return packet_parse6(p, data, end, at);
	return PARSED_OTHER;
}

/* Reports whether a message type is an error that quotes a packet. Redirects are not handled: they
 * concern only the path to the next router. */
static __always_inline bool packet_is_error(const struct packet *p, __u8 type)
{
	if (p->is_v4)
		return type == ICMP4_UNREACHABLE || type == ICMP4_EXPIRED || type == ICMP4_PARAMETER;
	return type >= ICMP6_UNREACHABLE && type <= ICMP6_PARAMETER;
}

/* Parses the packet that an error quotes. It is always truncated, but the ports have to be
 * there. */
static __noinline int packet_quote(struct packet *quote, const struct packet *p, void *data, void *end)
{
	struct icmp *icmp = packet_at(data, end, p->l4, sizeof(*icmp));
	__u32 at = p->l4 + sizeof(*icmp), stop = packet_end(data, end, p);
	int parsed;

	__builtin_memset(quote, 0, sizeof(*quote));
	asm volatile("" : "+r"(at)); /* in one register, for the reason given at packet_at */
	if (p->is_fragment || !icmp || !packet_is_error(p, icmp->type) || at > PACKET_L4_MOST)
		return PARSED_OTHER;
	parsed = p->is_v4 ? packet_parse4(quote, data, end, at) : packet_parse6(quote, data, end, at);
	quote->stop = stop > 0xffff ? 0xffff : stop;
	return quote->l4 + sizeof(struct udphdr) > stop ? PARSED_OTHER : parsed;
}

/* Reports whether a packet without a row begins its flow, as far as its flags tell. */
static __always_inline bool packet_begins_flow(const struct packet *p)
{
	return packet_is_syn(p) || !packet_shakes_hands(p);
}

/* How tc reads a packet: it need not be linear, and generic XDP may have left it without its link
 * header. */

enum {
	READ_PULL = PACKET_L4_MOST + sizeof(struct tcphdr),
};

/* Since Linux 6.9, generic XDP loses the length of the link header when it copies a packet for a
 * program that supports fragments, whoever owns that program; tc then gets the packet without the
 * header. The header is still in front of the data, which shows in that more bytes can be loaded
 * from the MAC header than there are after `data`. False: the header is where it belongs, or there
 * is none. */
__noinline int packet_restore_link(struct __sk_buff *skb)
{
	struct ethhdr eth;

	if (bpf_skb_load_bytes_relative(skb, skb->data_end - skb->data, &eth, sizeof(eth), BPF_HDR_START_MAC) ||
	    bpf_skb_load_bytes_relative(skb, 0, &eth, sizeof(eth), BPF_HDR_START_MAC))
		return false;
	return !bpf_skb_change_head(skb, sizeof(eth), 0) && !bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0);
}

/* Reports whether parsing a packet again may give a better result. A packet that lost its link
 * header parses as nonsense, except from the few addresses whose middle looks like the end of an
 * Ethernet header. */
static __always_inline bool packet_mend(struct __sk_buff *skb, const struct packet *p, enum parsed parsed)
{
	if (parsed == PARSED_SHORT || parsed == PARSED_CUT)
		return !bpf_skb_pull_data(skb, skb->len < READ_PULL ? skb->len : READ_PULL);
	return (parsed == PARSED_OTHER || p->is_tagged) && packet_restore_link(skb);
}

/* Parses a packet; if headers are not linear, makes them so and parses again. Not static, so that
 * the verifier walks what follows once and not for every kind of packet and every value of
 * `lacks`. */
__noinline int packet_read(struct __sk_buff *skb, struct packet *p, __u32 lacks)
{
	enum parsed parsed = PARSED_OTHER;

	if (!p)
		return PARSED_OTHER;
	for (int i = 0; i < 2; i++) {
		__builtin_memset(p, 0, sizeof(*p));
		p->ifindex = skb->ifindex;
		p->lacks = lacks;
		parsed = packet_parse(p, (void *)(long)skb->data, (void *)(long)skb->data_end);
		if (!packet_mend(skb, p, parsed))
			break;
	}
	return parsed;
}

/* Reads a packet's addresses, protocol and hop limit. False: it is not IP, has a VLAN tag, or its
 * header is truncated. IPv6 addresses that would be mistaken for IPv4 are never on the wire. */
static __always_inline bool packet_read_addrs(struct __sk_buff *skb, struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct iphdr *ip4 = (void *)(eth + 1);

	if ((void *)(ip4 + 1) > end || skb->vlan_present)
		return false;
	p->ifindex = skb->ifindex;
	p->is_v4 = eth->h_proto == bpf_htons(ETH_P_IP);
	if (p->is_v4) {
		p->ttl = ip4->ttl;
		p->flow.saddr = addr_from_v4(ip4->saddr);
		p->flow.daddr = addr_from_v4(ip4->daddr);
		p->flow.proto = ip4->protocol;
		return true;
	}
	if (eth->h_proto != bpf_htons(ETH_P_IPV6) || (void *)(ip6 + 1) > end)
		return false;
	p->ttl = ip6->hop_limit;
	__builtin_memcpy(&p->flow.saddr, &ip6->saddr, sizeof(struct addr));
	__builtin_memcpy(&p->flow.daddr, &ip6->daddr, sizeof(struct addr));
	p->flow.proto = ip6->nexthdr;
	return !addr_is_v4(&p->flow.saddr) && !addr_is_v4(&p->flow.daddr);
}
