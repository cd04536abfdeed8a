/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how the backend's node reads the option of dsr_option.h, and changes the header
 * when the option is removed. */
#pragma once

#include "dsr_option.h"

/* The result of looking for the option. */
enum dsr_option_found {
	DSR_OPTION_NONE,
	DSR_OPTION_OURS,
	DSR_OPTION_STRAY, /* not as any node of ours writes it, or of what is no frontend */
};

/* What the client dialed. */
struct dsr_option {
	struct addr addr;
	__be16 port;
};

static __always_inline int dsr_option_read4(struct dsr_option *to, __u32 at, void *data, void *end)
{
	struct iphdr *ip = packet_at(data, end, at, sizeof(*ip) + 2);
	struct option4 *option = (void *)(ip + 1);
	__u8 *second;

	if (!ip || !dsr_option_is_there4(ip))
		return DSR_OPTION_NONE;
	if ((void *)(option + 1) > end || ip->ihl * 4 < sizeof(*ip) + sizeof(*option) ||
	    option->len != sizeof(*option))
		return DSR_OPTION_STRAY;
	second = (void *)(option + 1);
	if (ip->ihl * 4 > sizeof(*ip) + sizeof(*option) && ((void *)(second + 1) > end || *second == OPTION4))
		return DSR_OPTION_STRAY;
	to->addr = addr_from_v4(option->addr);
	to->port = option->port;
	return DSR_OPTION_OURS;
}

static __always_inline int dsr_option_read6(struct dsr_option *to, __u32 at, void *data, void *end)
{
	struct ipv6hdr *ip = packet_at(data, end, at, sizeof(*ip) + sizeof(struct extension));
	struct option6 *option = (void *)(ip + 1), *second = option + 1;

	if (!ip || !dsr_option_is_there6(ip))
		return DSR_OPTION_NONE;
	if ((void *)(option + 1) > end || option->words != sizeof(*option) / 8 - 1 ||
	    option->pad != OPTION6_PADDING || option->len != sizeof(option->port) + sizeof(option->addr) ||
	    addr_is_v4(&option->addr))
		return DSR_OPTION_STRAY;
	if (option->next == IPPROTO_DSTOPTS &&
	    ((void *)second + sizeof(struct extension) > end || dsr_option_is_first6(second)))
		return DSR_OPTION_STRAY;
	to->addr = option->addr;
	to->port = option->port;
	return DSR_OPTION_OURS;
}

/* Looks for the option in a packet that came in, and reads it. */
static __noinline int dsr_option_read(struct dsr_option *to, const struct packet *p, void *data, void *end)
{
	return p->is_v4 ? dsr_option_read4(to, p->l3, data, end) : dsr_option_read6(to, p->l3, data, end);
}

/* Returns a length field decreased by `less`. If the field is zero, the merged packet was too long
 * with the option; without it the packet may not be. */
static __always_inline __be16 dsr_option_length_of(__be16 before, __u32 less, __u32 len)
{
	if (before)
		return bpf_htons(bpf_ntohs(before) - less);
	return len <= 0xffff ? bpf_htons(len) : 0;
}

static __always_inline int dsr_option_remove4(void *data, void *end, const struct packet *p, __u32 len)
{
	struct iphdr *ip = packet_at(data, end, p->l3, sizeof(*ip) + sizeof(struct option4));
	struct option4 *option = (void *)(ip + 1);
	__u32 before, sum;

	if (!ip)
		return -1;
	before = *(__u32 *)ip;
	sum = csum_fold(csum_words(option, 2));
	ip->ihl -= sizeof(*option) / 4;
	ip->tot_len = dsr_option_length_of(ip->tot_len, sizeof(*option), len - p->l3 - sizeof(*option));
	ip->check = csum_change(ip->check, dsr_option_diff(before, *(__u32 *)ip) + (__u16)~sum);
	return sum;
}

static __always_inline int dsr_option_remove6(void *data, void *end, const struct packet *p, __u32 len)
{
	struct ipv6hdr *ip = packet_at(data, end, p->l3, sizeof(*ip) + sizeof(struct option6));
	struct option6 *option = (void *)(ip + 1);
	__u32 before;

	if (!ip)
		return -1;
	before = *((__u32 *)ip + 1);
	ip->nexthdr = option->next;
	ip->payload_len =
		dsr_option_length_of(ip->payload_len, sizeof(*option), len - p->l3 - sizeof(*ip) - sizeof(*option));
	return dsr_option_diff(before, *((__u32 *)ip + 1));
}

/* Changes the header for the removal of the option, which follows, in a frame of `len` bytes.
 * Returns the change to the sum over the whole packet while the option is still there, or a
 * negative value if the packet is not what was parsed before. */
static __noinline int dsr_option_remove(void *data, void *end, const struct packet *p, __u32 len)
{
	return p->is_v4 ? dsr_option_remove4(data, end, p, len) : dsr_option_remove6(data, end, p, len);
}
