/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains hashes of addresses and ports. */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "types.h"

/* Mixes a word into a hash of which the upper bits are used. */
static __always_inline __u64 flow_hash_mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

/* Factors for a sum of products, one for each word. They are odd and random, but chosen so that any
 * change of one byte of a word changes the upper 16 bits of the sum (TestSealOfEveryByte). No
 * product waits for another, so all of them take little longer than one; a hash that chains its
 * words takes as long as all of them in sequence. */
static const __u64 flow_hash_factor[] = {
	0xe1454c40c439f34bULL, 0x26b563b1e794ee15ULL, 0xac8be7d742840d2bULL, 0xe7ca430e92ac3d43ULL,
	0x1333bc1cfe6c2b03ULL, 0x20050ed31a6e72b9ULL, 0x94a67f00f335c357ULL, 0x332726d0356a4153ULL,
	0xa0187b4d51209e8fULL, 0xae6ac4a9e89c5bc7ULL, 0x542861cd55e7d67fULL, 0x17bcc74d6d683cf9ULL,
	0x8491cabea0afe357ULL,
};

/* The sum over the four words of two addresses. Neighboring addresses differ in their last bytes,
 * and the upper bits of a product depend on everything below them, so the swap moves these bytes to
 * the lower end. */
static __always_inline __u64 flow_hash_sum_addrs(const __u64 *word, const __u64 *factor)
{
	__u64 sum = 0;

	for (int i = 0; i < 4; i++)
		sum += __builtin_bswap64(word[i]) * factor[i];
	return sum;
}

static __always_inline __u64 flow_hash_sum(const struct flow *flow)
{
	const __u64 *word = (const __u64 *)flow;

	return flow_hash_sum_addrs(word, flow_hash_factor) + word[4] * flow_hash_factor[4];
}

/* A hash of which the upper half is to be used: the low bits of a sum of products are only as good
 * as the low bits of its words. */
static __always_inline __u64 flow_hash(const struct flow *flow)
{
	__u64 sum = flow_hash_sum(flow);

	return flow_hash_mix(sum ^ sum >> 32, 0);
}
