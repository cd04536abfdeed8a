/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how the backend's node reads the option of option.h, and changes the header
 * when the option is removed. */
#pragma once

#include "option.h"

/* The result of looking for the option. */
enum unmark {
	UNMARK_NONE,
	UNMARK_OURS,
	UNMARK_STRAY, /* not as any node of ours writes it, or of what is no frontend */
};

/* What the client dialed. */
struct unmarked {
	struct addr addr;
	__be16 port;
};

static __always_inline int unmark_read4(struct unmarked *to, __u32 at, void *data, void *end)
{
	struct iphdr *ip = packet_at(data, end, at, sizeof(*ip) + 2);
	struct option4 *option = (void *)(ip + 1);
	__u8 *second;

	if (!ip || !option_is_there4(ip))
		return UNMARK_NONE;
	if ((void *)(option + 1) > end || ip->ihl * 4 < sizeof(*ip) + sizeof(*option) ||
	    option->len != sizeof(*option))
		return UNMARK_STRAY;
	second = (void *)(option + 1);
	if (ip->ihl * 4 > sizeof(*ip) + sizeof(*option) && ((void *)(second + 1) > end || *second == OPTION4))
		return UNMARK_STRAY;
	to->addr = addr_from_v4(option->addr);
	to->port = option->port;
	return UNMARK_OURS;
}

static __always_inline int unmark_read6(struct unmarked *to, __u32 at, void *data, void *end)
{
	struct ipv6hdr *ip = packet_at(data, end, at, sizeof(*ip) + sizeof(struct extension));
	struct option6 *option = (void *)(ip + 1), *second = option + 1;

	if (!ip || !option_is_there6(ip))
		return UNMARK_NONE;
	if ((void *)(option + 1) > end || option->words != sizeof(*option) / 8 - 1 ||
	    option->pad != OPTION6_PADDING || option->len != sizeof(option->port) + sizeof(option->addr) ||
	    addr_is_v4(&option->addr))
		return UNMARK_STRAY;
	if (option->next == IPPROTO_DSTOPTS &&
	    ((void *)second + sizeof(struct extension) > end || option_is_first6(second)))
		return UNMARK_STRAY;
	to->addr = option->addr;
	to->port = option->port;
	return UNMARK_OURS;
}

/* Looks for the option in a packet that came in, and reads it. */
static __noinline int unmark_read(struct unmarked *to, const struct packet *p, void *data, void *end)
{
	return p->is_v4 ? unmark_read4(to, p->l3, data, end) : unmark_read6(to, p->l3, data, end);
}

/* Returns a length field decreased by `less`. If the field is zero, the merged packet was too long
 * with the option; without it the packet may not be. */
static __always_inline __be16 unmark_length(__be16 before, __u32 less, __u32 len)
{
	if (before)
		return bpf_htons(bpf_ntohs(before) - less);
	return len <= 0xffff ? bpf_htons(len) : 0;
}

static __always_inline int unmark_header4(void *data, void *end, const struct packet *p, __u32 len)
{
	struct iphdr *ip = packet_at(data, end, p->l3, sizeof(*ip) + sizeof(struct option4));
	struct option4 *option = (void *)(ip + 1);
	__u32 before, sum;

	if (!ip)
		return -1;
	before = *(__u32 *)ip;
	sum = csum_fold(csum_words(option, 2));
	ip->ihl -= sizeof(*option) / 4;
	ip->tot_len = unmark_length(ip->tot_len, sizeof(*option), len - p->l3 - sizeof(*option));
	ip->check = csum_change(ip->check, option_diff(before, *(__u32 *)ip) + (__u16)~sum);
	return sum;
}

static __always_inline int unmark_header6(void *data, void *end, const struct packet *p, __u32 len)
{
	struct ipv6hdr *ip = packet_at(data, end, p->l3, sizeof(*ip) + sizeof(struct option6));
	struct option6 *option = (void *)(ip + 1);
	__u32 before;

	if (!ip)
		return -1;
	before = *((__u32 *)ip + 1);
	ip->nexthdr = option->next;
	ip->payload_len =
		unmark_length(ip->payload_len, sizeof(*option), len - p->l3 - sizeof(*ip) - sizeof(*option));
	return option_diff(before, *((__u32 *)ip + 1));
}

/* Changes the header for the removal of the option, which follows, in a frame of `len` bytes.
 * Returns the change to the sum over the whole packet while the option is still there, or a
 * negative value if the packet is not what was parsed before. */
static __noinline int unmark_header(void *data, void *end, const struct packet *p, __u32 len)
{
	return p->is_v4 ? unmark_header4(data, end, p, len) : unmark_header6(data, end, p, len);
}
