/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains predicates and conversions of addresses. */
#pragma once

#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "types.h"

static __always_inline bool addr_is_v4(const struct addr *addr)
{
	return !addr->word[0] && !addr->word[1] && addr->word[2] == bpf_htonl(0xffff);
}

static __always_inline struct addr addr_from_v4(__be32 ip)
{
	return (struct addr) { .word = { 0, 0, bpf_htonl(0xffff), ip } };
}

static __always_inline bool addr_equal(const struct addr *a, const struct addr *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

/* Returns the unspecified address of the same family, which is the key of rows for every address of
 * the node. */
static __always_inline struct addr addr_any(const struct addr *addr)
{
	return addr_is_v4(addr) ? addr_from_v4(0) : (struct addr) {};
}

static __always_inline bool addr_is_any(const struct addr *addr)
{
	return !addr->word[3] && (addr_is_v4(addr) || (!addr->word[0] && !addr->word[1] && !addr->word[2]));
}

static __always_inline bool addr_is_loopback(const struct addr *addr)
{
	if (addr_is_v4(addr))
		return (addr->word[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
	return !addr->word[0] && !addr->word[1] && !addr->word[2] && addr->word[3] == bpf_htonl(1);
}

/* Reports whether an IPv6 address is link-local. */
static __always_inline bool addr_is_local6(const struct addr *addr)
{
	return (addr->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* Reports whether a destination is for neighbors only: link-local, or multicast of interface-local
 * or link-local scope. */
static __always_inline bool addr_stays6(const struct addr *to)
{
	return addr_is_local6(to) || (to->word[0] & bpf_htonl(0xff0f0000)) == bpf_htonl(0xff010000) ||
	       (to->word[0] & bpf_htonl(0xff0f0000)) == bpf_htonl(0xff020000);
}
