/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the arithmetic of the Internet checksum: the difference that a rewrite makes
 * can be computed in advance. */
#pragma once

#include <stddef.h>
#include <bpf/bpf_helpers.h>

#include "types.h"

/* Only bytes up to this offset of a packet are summed. */
#define CSUM_AT_MOST 2047

static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* The difference to a sum when one address replaces another. The words of IPv4 mapping add up to
 * nothing. */
static __always_inline __u64 csum_addr_diff(const struct addr *from, const struct addr *to)
{
	__u64 diff = 0;

	for (int i = 0; i < 4; i++)
		diff += (__u64)(__u32)~from->word[i] + to->word[i];
	return diff;
}

static __always_inline __u32 csum_port_diff(__be16 from, __be16 to)
{
	return (__u32)(__u16)~from + to;
}

/* Applies a difference of a few 16-bit sums to a checksum in a header. */
static __always_inline __u16 csum_change(__u16 check, __u32 diff)
{
	__u32 sum = (__u16)~check + diff;

	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

/* The sum over words that the verifier knows to be readable. */
static __always_inline __u64 csum_words(const void *at, int words)
{
	const __u32 *word = at;
	__u64 sum = 0;

	for (int i = 0; i < words; i++)
		sum += word[i];
	return sum;
}

/* A range of packet bytes to sum. */
struct csum_range {
	void *data;
	void *end;
	__u64 sum;
	__u32 at;
	__u32 len;
};

/* Adds one byte, in its half of the 16-bit word. */
static long csum_byte(__u32 i, struct csum_range *range)
{
	__u32 at = range->at + i;
	__u8 *byte;

	asm volatile("" : "+r"(at));
	if (at > CSUM_AT_MOST)
		return 1;
	byte = range->data + at;
	if ((void *)(byte + 1) > range->end)
		return 1;
	range->sum += (__u32)*byte << (i & 1) * 8;
	return 0;
}

static __always_inline __u16 csum_bytes(struct csum_range *range)
{
	bpf_loop(range->len, csum_byte, range, 0);
	return csum_fold(range->sum);
}
