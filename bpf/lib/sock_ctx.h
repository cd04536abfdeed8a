/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what the programs at cgroups read of a call: the address, and whether its process
 * opted out. */
#pragma once

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "config.h"
#include "maps.h"
#include "types.h"

/* The check whether a process opted out: a pod that handles its own connections has to see the address
 * that it dialed. It is made only for what dials a service. */

/* The deepest level of a pod's cgroup: if the node is itself a container, its pods are four levels
 * deeper than the usual three. */
#define OPTOUT_LEVELS 12

static __always_inline bool sock_optout_has(enum optout_kind kind, __u64 id)
{
	struct optout_key key = { .id = id, .kind = kind };

	return bpf_map_lookup_elem(&optout, &key);
}

/* Containers are in cgroups below their pod's. The pod's level depends on its QoS class and on
 * where the node's own tree is mounted, so every level is checked; the helper returns 0 beyond the
 * last. */
static __always_inline bool sock_optout_by_cgroup(void)
{
	for (int level = 1; level <= OPTOUT_LEVELS; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);

		if (!id)
			return false;
		if (sock_optout_has(OPTOUT_CGROUP, id))
			return true;
	}
	return false;
}

static __always_inline bool sock_optout_applies(__u64 netns)
{
	__u32 zero = 0;
	__u32 *kinds = bpf_map_lookup_elem(&optout_kinds, &zero);

	if (!kinds || !*kinds)
		return false;
	if (*kinds & OPTOUT_NETNS && sock_optout_has(OPTOUT_NETNS, netns))
		return true;
	return *kinds & OPTOUT_CGROUP && sock_optout_by_cgroup();
}

/* The probe by which the agent proves that its programs run: a dial that only they answer, and that
 * sends nothing if there is no program. */

/* The errno that the dial fails with. The kernel never returns it from connect. */
#define PROBE_ANSWER ENOANO

#define PROBE_V4 0xc0000008 /* 192.0.0.8, the dummy address (RFC 7600) */
#define PROBE_V6 0x01000000 /* 100::/64, the discard prefix (RFC 6666) */

/* The port and the low half of an IPv6 address are the token of the agent that loaded the programs,
 * so programs of another agent do not answer. The check is made only for dials that are for no
 * service. */
static __always_inline bool sock_probe_asks(const struct svc_key *to)
{
	if (to->port != (__be16)sock_cfg.probe)
		return false;
	if (addr_is_v4(&to->addr))
		return to->addr.word[3] == bpf_htonl(PROBE_V4);
	return to->addr.word[0] == bpf_htonl(PROBE_V6) && !to->addr.word[1] &&
	       to->addr.word[2] == (__u32)sock_cfg.probe && to->addr.word[3] == sock_cfg.probe >> 32;
}

static __always_inline struct svc_key sock_ctx_key4(struct bpf_sock_addr *ctx)
{
	return (struct svc_key) {
		.addr = addr_from_v4(ctx->user_ip4),
		.port = ctx->user_port,
		.proto = ctx->protocol,
	};
}

static __always_inline struct svc_key sock_ctx_key6(struct bpf_sock_addr *ctx)
{
	return (struct svc_key) {
		.addr.word = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] },
		.port = ctx->user_port,
		.proto = ctx->protocol,
	};
}

static __always_inline void sock_ctx_set4(struct bpf_sock_addr *ctx, const struct addr *addr, __be16 port)
{
	ctx->user_ip4 = addr->word[3];
	ctx->user_port = port;
}

static __always_inline void sock_ctx_set6(struct bpf_sock_addr *ctx, const struct addr *addr, __be16 port)
{
	ctx->user_ip6[0] = addr->word[0];
	ctx->user_ip6[1] = addr->word[1];
	ctx->user_ip6[2] = addr->word[2];
	ctx->user_ip6[3] = addr->word[3];
	ctx->user_port = port;
}
