/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the reading of a packet. It knows neither skb nor xdp_md, and it keeps offsets instead of
 * pointers, which no helper invalidates. */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>

#include "addr.h"

/* So many tags and extension headers are looked through. What has more is left to the stack. */
#define PACKET_TAGS 2
#define PACKET_EXTENSIONS 6

/* Headers that end further in are left to the stack too: the verifier has to know a bound. */
#define PACKET_L4_MOST 1024

enum {
	IP4_DONT = 0x4000, /* in the field of the fragment */
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
	PARSED_ICMP,  /* of the packet's family */
	PARSED_LATER, /* a fragment that is not the first: it has no ports */
	PARSED_OTHER, /* nothing that has ports */
	PARSED_SHORT, /* it ends within a header */
	PARSED_CUT,   /* it ends within the header of TCP or SCTP, after the ports */
};

/* The maps that have no row of a packet's flow, as far as is known before it is read. */
enum lacks {
	LACKS_CT = 1,
	LACKS_HALF = 2,
};

struct packet {
	struct flow flow;
	__u32 ifindex; /* filled in by whoever received it */
	__be32 seq;    /* of TCP; of SCTP the tag that an INIT ACK asks for */
	__be32 ack;    /* of SCTP the tag that a packet bears */
	__be32 id;     /* of a fragment */
	__u16 l3;      /* offsets of the headers */
	__u16 l4;
	__u16 stop;	/* of one that an error quotes: where the error ends, and padding begins */
	__u8 tcp_flags; /* of SCTP, what its first chunk would be there */
	__u8 ttl;
	bool is_v4;
	bool is_tagged;
	bool is_whole;	       /* and no router may cut it up */
	bool bounces;	       /* filled in too: who received it can only send it back where it came from */
	bool is_fragment;      /* the first one: others have no ports */
	bool is_unwrapped : 1; /* filled in as well: another node forwarded it, and has chosen the backend */
	bool is_returned : 1;  /* and this: it was forwarded to another node, which has given it back */
	__u8 lacks;	       /* likewise, an enum lacks */
};

/* The headers of SCTP, of which the kernel's C library has none. */
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

/* The header of ICMP, the same in both families. That of the kernel comes with half of the C library. */
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
	ICMP6_CODE_PORT = 4,
};

enum {
	GENEVE_PORT = 6081,
	GENEVE_WORDS = 2, /* of options: ours */
	GENEVE_ETHERNET = 0x6558,
	GENEVE_CLASS = 0xff1d, /* of those for experiments, RFC 8926, 3.5 */
	GENEVE_BACKEND = 0x81, /* who does not know it has to drop the packet */
	GENEVE_CRITICAL = 0x40,
};

/* The header of Geneve with our option. */
struct geneve {
	__u8 words;
	__u8 flags;
	__be16 proto;
	__be32 vni;
	__be16 class;
	__u8 type;
	__u8 len; /* in words */
	__be16 port;
	__be16 pad;
};

/* What is between the IP header that is put around a packet and the packet's own. */
struct tunnel {
	struct udphdr udp;
	struct geneve geneve;
	struct ethhdr eth;
} __attribute__((packed));

/* Every extension header that is looked through has so many bytes, and begins like this. */
struct extension {
	__u8 next;
	__u8 len;
	__be16 fragment;
	__be32 id; /* of a fragment */
};

/* What is at an offset of a frame that has so many bytes there, or NULL. The offset is held in one register, or the
 * compiler would compare one copy and add another, of which the verifier knows nothing. */
static __always_inline void *packet_at(void *data, void *end, __u32 at, __u32 size)
{
	void *found;

	asm volatile("" : "+r"(at));
	if (at > 2 * PACKET_L4_MOST)
		return NULL;
	found = data + at;
	return found + size > end ? NULL : found;
}

/* Where a packet ends within its frame; what follows is padding. Zero: it is not as it was read. */
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

/* A connection of TCP or an association of SCTP begins with a handshake, by which the client shows that it is
 * there. */
static __always_inline bool packet_shakes_hands(const struct packet *p)
{
	return p->flow.proto == IPPROTO_TCP || p->flow.proto == IPPROTO_SCTP;
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

/* What begins or ends an association is the first chunk of its packet. */
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
	if (*chunk == SCTP_INIT_ACK && (void *)(init + 1) <= end)
		p->seq = init->tag;
	return PARSED_FLOW;
}

/* What all of these have is eight bytes. */
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
	/* All have their ports in the same place. They are written like this, and the protocol with its padding,
	 * because the map reads words: one that was written in parts has to wait until all of them are in the
	 * cache. */
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

static __always_inline bool extension_is(__u8 next)
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
	if (addr_is_v4(&p->flow.saddr) || addr_is_v4(&p->flow.daddr)) /* on no wire: it would pass for IPv4's */
		return PARSED_OTHER;
	next = ip->nexthdr;
	at += sizeof(*ip);
	for (int i = 0; i < PACKET_EXTENSIONS && extension_is(next); i++) {
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

/* Fills in a packet whose bytes are all zero. */
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
