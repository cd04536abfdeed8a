/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the option that tells the backend's node what the client dialed, in direct
 * server return without encapsulation. The packet is sent to the backend, from the client, with one
 * more IPv4 option or IPv6 destination options header. It comes first, right behind the fixed part
 * of the header, so that it can be removed without a search and the client's own options stay
 * behind it.
 *
 * Every packet has the option, and every fragment. A packet without ports, such as an ICMP error,
 * has none in the option either. */
#pragma once

#include "dsr_ingress_target.h"
#include "ranges.h"

enum {
	/* copied into fragments, class control, for experiments: RFC 4727, 2.3 */
	OPTION4 = 0x9e,
	/* for experiments, 3.3: a host that does not know it drops the packet silently */
	OPTION6 = 0x5e,
	OPTION4_HEADER = 60, /* maximum length of an IPv4 header */
	OPTION6_PADDING = 1, /* PadN */
};

struct option4 {
	__u8 type;
	__u8 len;
	__be16 port;
	__be32 addr;
};

/* The whole header. Padding comes first, so that the address is aligned. */
struct option6 {
	__u8 next;
	__u8 words; /* in units of eight bytes, without the first */
	__u8 pad;
	__u8 pad_len;
	__u8 type;
	__u8 len;
	__be16 port;
	struct addr addr;
};

_Static_assert(sizeof(struct option4) == 8 && sizeof(struct option6) == 24,
	       "what is put into packets has no padding");

static __always_inline bool dsr_option_is_mode(const struct action *a)
{
	return (a->to.flags & CT_DSR) >> DSR_SHIFT == DSR_OPT;
}

/* The length of an IP header without options or extensions. */
static __always_inline __u32 dsr_option_base(const struct packet *p)
{
	return p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

static __always_inline __u32 dsr_option_len(const struct packet *p)
{
	return p->is_v4 ? sizeof(struct option4) : sizeof(struct option6);
}

/* The number of bytes between the fixed IP header and the header with the ports. Undefined if no
 * ports were found. */
static __always_inline __u32 dsr_option_spare(const struct packet *p)
{
	return p->l4 - p->l3 - dsr_option_base(p);
}

/* Reports whether a packet may contain our option: it has something between the fixed IP header and
 * the ports, other than just an IPv6 fragment header, or its ports cannot be read. */
static __always_inline bool dsr_option_is_due(const struct packet *p)
{
	__u32 spare = dsr_option_spare(p);

	if (!spare)
		return false;
	return p->l3 && (p->is_v4 || !p->is_fragment || spare != sizeof(struct extension));
}

static __always_inline bool dsr_option_is_there4(const struct iphdr *ip)
{
	const struct option4 *option = (const void *)(ip + 1);

	return ip->ihl > 5 && option->type == OPTION4;
}

/* Reports whether the options begin with ours, with or without the padding. */
static __always_inline bool dsr_option_is_first6(const struct option6 *option)
{
	return option->pad == OPTION6 ||
	       (option->pad == OPTION6_PADDING && !option->pad_len && option->type == OPTION6);
}

static __always_inline bool dsr_option_is_there6(const struct ipv6hdr *ip)
{
	return ip->nexthdr == IPPROTO_DSTOPTS && dsr_option_is_first6((const void *)(ip + 1));
}

/* Reports whether a packet begins with our option. */
static __always_inline bool dsr_option_is_there(const struct packet *p, void *data, void *end)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	if (p->is_v4) {
		ip = packet_at(data, end, p->l3, sizeof(*ip) + 2);
		return ip && dsr_option_is_there4(ip);
	}
	ip6 = packet_at(data, end, p->l3, sizeof(*ip6) + sizeof(struct extension));
	return ip6 && dsr_option_is_there6(ip6);
}

/* Reports whether the packets of a flow can get the option, judged by its first packet. Options of
 * its own that leave no room are in every packet of a flow, and those of IPv6 may be hop-by-hop
 * options, which have to come first. A client inside the cluster cannot use the mode either: the
 * backend's node could hardly reply to it, and does not know which node to give the packet back to.
 * Not static, so that the verifier does not follow both results. */
__noinline int dsr_option_is_possible(const struct packet *p)
{
	__u32 most = OPTION4_HEADER - sizeof(struct iphdr) - sizeof(struct option4);

	if (!p)
		return false;
	if (!p->is_v4)
		most = p->is_fragment ? sizeof(struct extension) : 0;
	return dsr_option_spare(p) <= most && !ranges_are_of_pods(&p->flow.saddr);
}

/* Returns the mode for a flow of a service with the given mode. */
static __always_inline __u32 dsr_option_mode(const struct packet *p, __u32 mode)
{
	return mode >> DSR_SHIFT != DSR_OPT || dsr_option_is_possible(p) ? mode : 0;
}

/* Reports whether the option fits into a packet. */
static __always_inline bool dsr_option_fits(void *data, void *end, const struct packet *p)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	if (p->is_v4) {
		ip = packet_at(data, end, p->l3, sizeof(*ip));
		return ip && ip->ihl * 4 + sizeof(struct option4) <= OPTION4_HEADER;
	}
	ip6 = packet_at(data, end, p->l3, sizeof(*ip6));
	return ip6 && ip6->nexthdr != IPPROTO_HOPOPTS;
}

/* Returns a length field increased by `more`. It is zero in a merged packet of more than 64 KiB. */
static __always_inline __be16 dsr_option_length(__be16 before, __u32 more)
{
	__u32 len = bpf_ntohs(before) + more;

	return before && len <= 0xffff ? bpf_htons(len) : 0;
}

static __always_inline __u32 dsr_option_diff(__u32 before, __u32 after)
{
	return csum_fold((__u64)(__u32)~before + after);
}

/* Writes the option into the room behind the fixed part of the header. Returns the change to the
 * sum over the whole packet: zero for IPv4, where the header's checksum compensates. */
static __always_inline __u16 dsr_option_put4(struct iphdr *ip, const struct flow *flow)
{
	struct option4 *option = (void *)(ip + 1);
	__u32 before = *(__u32 *)ip;

	*option = (struct option4) {
		.type = OPTION4,
		.len = sizeof(*option),
		.port = flow->dport,
		.addr = flow->daddr.word[3],
	};
	ip->ihl += sizeof(*option) / 4;
	ip->tot_len = dsr_option_length(ip->tot_len, sizeof(*option));
	ip->check =
		csum_change(ip->check, dsr_option_diff(before, *(__u32 *)ip) + csum_fold(csum_words(option, 2)));
	return 0;
}

static __always_inline __u16 dsr_option_put6(struct ipv6hdr *ip, const struct flow *flow)
{
	struct option6 *option = (void *)(ip + 1);
	__u32 before = *((__u32 *)ip + 1);

	*option = (struct option6) {
		.next = ip->nexthdr,
		.words = sizeof(*option) / 8 - 1,
		.pad = OPTION6_PADDING,
		.type = OPTION6,
		.len = sizeof(option->port) + sizeof(option->addr),
		.port = flow->dport,
		.addr = flow->daddr,
	};
	ip->nexthdr = IPPROTO_DSTOPTS;
	ip->payload_len = dsr_option_length(ip->payload_len, sizeof(*option));
	return csum_fold((__u64)dsr_option_diff(before, *((__u32 *)ip + 1)) +
			 csum_words(option, sizeof(*option) / 4));
}

static __always_inline bool dsr_option_has_ports(const struct packet *p)
{
	return p->l4 && !packet_is_icmp(p);
}

/* Returns the offset of the checksum that covers the addresses in a packet without ports; zero if
 * there is none. */
static __always_inline __u32 dsr_option_check(const struct packet *p)
{
	return p->l4 && !p->is_v4 ? p->l4 + offsetof(struct icmp, check) : 0;
}
