/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the ports that this node lends: to flows whose backend, or whose host outside,
 * sees an address of this node as their client. A port has one flow to each destination, so whoever
 * opens flow after flow to one destination would leave none for others. Therefore:
 *
 * - If all drawn ports are in use, a flow that is not established gives way, see snat_give_way. One that
 *   is established never does.
 * - A pod may use half of the ports that there are for pods, another half than any other pod, see
 *   snat_side: whatever it keeps open, half of the ports that another may use are left. */
#pragma once

#include <linux/in.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "config.h"
#include "count.h"
#include "flow.h"
#include "flow_hash.h"
#include "maps.h"
#include "types.h"

/* How many ports are tried toward a backend. They are drawn by a hash, so with nine of ten ports
 * in use one flow in thirty finds no free one. */
#define SNAT_TRIES 32

/* With a port: it is free, as far as is known. */
#define SNAT_IS_FREE 0x10000

enum snat_outcome {
	SNAT_NONE,
	SNAT_FREE,  /* the port was free */
	SNAT_TAKEN, /* it was another flow's */
};

/* Which of two neighboring ports a pod may use: a bit of a hash of both. In IPv4 and in IPv6, the
 * second half of an address tells the pods of a node apart. */
static __always_inline __u32 snat_side(const struct ct_entry *row, __u32 pair)
{
	__u64 pod;

	__builtin_memcpy(&pod, &row->daddr.word[2], sizeof(pod));
	return flow_hash_mix(flow_hash_mix(pod, pair), 1) >> 63;
}

/* Draws a port. Flows of pods to the outside use the upper half of the ports, and balanced flows the
 * lower half. A pod's flow to another node's frontend and a client's flow to a backend on that node
 * both have this node's address. Here their destinations tell them apart, but once that node has
 * chosen the same backend for the pod, only their ports do. */
static __always_inline __be16 snat_port(__u64 hash, const struct ct_entry *row)
{
	__u32 ports = cfg.snat_last - cfg.snat_first + 1, part = cfg.masquerade ? (ports + 1) / 2 : ports;
	__u32 first = cfg.snat_first, pair;

	if (flow_kind(row) != FLOW_MASQUERADED && flow_kind(row) != FLOW_HOST)
		return bpf_htons(first + (__u32)(hash >> 32) % part);
	first += ports - part;
	if (flow_kind(row) == FLOW_HOST)
		return bpf_htons(first + (__u32)(hash >> 32) % part);
	pair = (__u32)(hash >> 32) % ((part + 1) / 2);
	first += 2 * pair + snat_side(row, pair);
	return bpf_htons(first <= cfg.snat_last ? first : cfg.snat_last);
}

static __always_inline void snat_set(__be16 port, struct flow *reply)
{
	flow_set_ports(reply, reply->sport, port, reply->proto);
}

/* Reports whether the port is one that is never lent: what a node gets at its tunnel's port is for the
 * tunnel, whoever sent it. */
static __always_inline bool snat_is_tunnel(const struct flow *reply)
{
	return reply->dport == bpf_htons(cfg.tunnel_port) && reply->proto == IPPROTO_UDP;
}

/* Draws a port for the reply and claims it if it is free. */
static __always_inline bool snat_draw(__u64 hash, struct flow *reply, struct ct_entry *row)
{
	snat_set(snat_port(hash, row), reply);
	if (snat_is_tunnel(reply))
		return false;
	flow_finish(reply, row);
	return flow_claim(reply, row);
}

/* A reply for which ports are drawn until one is free, and what has the others. */
struct snat_search {
	struct flow *reply;
	struct ct_entry *row;
	__u64 hash;
	__u32 own;    /* how many of the drawn ports are the same client's */
	__u32 others; /* how many belong to flows of others that are not established */
	/* the port to take if none is free; zero: there is none that could be taken */
	__be16 port;
	bool is_own;  /* that of the same client */
	bool is_free; /* the last port that was drawn */
	__s32 idle;
};

static __always_inline bool snat_is_own(const struct snat_search *s, const struct ct_entry *known)
{
	return addr_equal(&known->daddr, &s->row->daddr);
}

/* Notes a flow that is not established and in the way. The first to go is one of the same client, and
 * the one that was begun, or last answered, longest ago. */
static __always_inline void snat_meet(struct snat_search *s, const struct ct_entry *known)
{
	__s32 idle = s->row->seen - known->seen;
	bool own = snat_is_own(s, known);

	if (!(known->kind & FLOW_REPLY))
		return;
	s->own += own;
	s->others += !own;
	if (s->port && (own == s->is_own ? idle <= s->idle : s->is_own))
		return;
	s->port = s->reply->dport;
	s->is_own = own;
	s->idle = idle;
}

static long snat_draw_again(__u32 i, struct snat_search *s)
{
	struct ct_entry *known;

	s->hash = flow_hash_mix(s->hash, i + 1);
	snat_set(snat_port(s->hash, s->row), s->reply);
	if (snat_is_tunnel(s->reply))
		return false;
	known = bpf_map_lookup_elem(&ct_pending, s->reply);
	if (known && !flow_same_rewrite(known, s->row)) {
		snat_meet(s, known);
		return false;
	}
	if (!known)
		known = flow_table_lookup(s->reply);
	else
		known = NULL;
	if (known)
		s->own += snat_is_own(s, known);
	s->is_free = !known;
	return s->is_free;
}

/* Searches for a free port, with SNAT_IS_FREE. If there is none, returns one that may be taken: of the same
 * client, or of others if these have more of what was drawn. So a client that has all of its share
 * takes nothing from those that have little. Zero: there is none.
 *
 * Kept out of line, since the first port is nearly always free. */
static __noinline __u32 snat_search(__u64 hash, struct flow *reply, struct ct_entry *row)
{
	struct snat_search s = { .reply = reply, .row = row, .hash = hash };

	bpf_loop(SNAT_TRIES - 1, snat_draw_again, &s, 0);
	if (s.is_free)
		return SNAT_IS_FREE | bpf_ntohs(reply->dport);
	return s.is_own || s.own < s.others ? bpf_ntohs(s.port) : 0;
}

/* Deletes the row of the request that a reply's row belongs to. It may be that of a flow that the
 * client has begun anew, from another port. Returns how many rows were deleted. */
static __always_inline __u32 snat_forget_request(const struct flow *reply, const struct ct_entry *row)
{
	struct flow request = flow_reverse(reply, row);

	row = bpf_map_lookup_elem(&ct_pending, &request);
	return row && flow_leads(row, reply) && !bpf_map_delete_elem(&ct_pending, &request);
}

/* Takes a port from a flow that is not established and loses both rows. A flow that is established
 * meanwhile keeps its port: its row is in `ct` before it leaves `ct_pending`, and flow_claim looks there
 * last. */
static __noinline int snat_give_way(const struct flow *reply)
{
	struct ct_entry *known = flow_table_lookup(reply) ? NULL : bpf_map_lookup_elem(&ct_pending, reply);
	__u32 gone;

	if (!known)
		return 0;
	gone = snat_forget_request(reply, known);
	gone += !bpf_map_delete_elem(&ct_pending, reply);
	count_lru_deleted(LRU_CT_PENDING, gone);
	return 0;
}

/* Claims a port that was found, for a reply that is set to it. */
static __noinline int snat_take(__u32 port, struct flow *reply, struct ct_entry *row)
{
	flow_finish(reply, row);
	if (!flow_claim(reply, row))
		return SNAT_NONE;
	return port & SNAT_IS_FREE ? SNAT_FREE : SNAT_TAKEN;
}

/* Claims a port of the node for the reply to a flow. */
static __always_inline int snat_claim(const struct flow *flow, struct flow *reply, struct ct_entry *row)
{
	__u64 hash = flow_hash_mix(flow_hash(flow), 0);
	__u32 port;

	if (snat_draw(hash, reply, row))
		return SNAT_FREE;
	port = snat_search(hash, reply, row);
	if (!port)
		return SNAT_NONE;
	snat_set(bpf_htons(port), reply);
	if (!(port & SNAT_IS_FREE))
		snat_give_way(reply);
	return snat_take(port, reply, row);
}
