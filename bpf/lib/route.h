/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains where a packet goes once it is rewritten: the FIB lookup, the cache of recent
 * ones, and when a row's route is looked up again. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>

#include "flow.h"
#include "flow_hash.h"
#include "maps.h"
#include "packet.h"
#include "types.h"

/* The cache of recent FIB lookups. The lookup is the largest cost of a new flow, and a few backends
 * and clients have most of the flows, so one result serves the next flow as well: between the same
 * addresses, from the same device, and while the agent vouches that nothing has changed since.
 * Without an agent every flow makes its own lookup.
 *
 * Each CPU has its own rows, so no CPU waits for another. But a program may interrupt another one on
 * the same CPU. So `turn` is odd while a row is written, and a reader checks afterward that `turn`
 * has not changed. */

static __always_inline struct fib_cache_row *route_cache_at(const struct ct_entry *to)
{
	__u32 index = flow_hash_sum_addrs((const __u64 *)to, flow_hash_factor) >> 32 & (FIB_CACHE_ROWS - 1);

	return bpf_map_lookup_elem(&fib_cache, &index);
}

/* Reports whether a result from the tick `seen` is still valid: it is younger than the last change,
 * and an agent follows changes now. As in flow_route_epoch, `changed` is loaded last. */
static __always_inline bool route_cache_holds(__u32 seen)
{
	__u32 zero = 0, until;
	struct route_epoch *told = bpf_map_lookup_elem(&route_epoch, &zero);

	if (!told)
		return false;
	until = *(volatile __u32 *)&told->until;
	return (__s32)(until - flow_now()) >= 0 && (__s32)(seen - *(volatile __u32 *)&told->changed) > 0;
}

/* Reports whether a row is for the addresses of `to`. Both begin with the two addresses, in whole
 * words. */
static __always_inline bool route_cache_is(const struct fib_cache_row *row, const struct ct_entry *to)
{
	const __u64 *a = (const __u64 *)row, *b = (const __u64 *)to;

	return a[3] == b[3] && a[1] == b[1] && a[2] == b[2] && a[0] == b[0];
}

/* Copies a cached route into `out`. False: there is no valid one. */
static __always_inline bool route_cache_find(struct fib_cache_row *row, __u32 in, struct ct_entry *out)
{
	__u32 turn = *(volatile __u32 *)&row->turn;

	if (turn & 1 || row->in != in || !route_cache_is(row, out) || !route_cache_holds(row->seen))
		return false;
	out->ifindex = row->ifindex;
	__builtin_memcpy(out->dmac, row->dmac, sizeof(out->dmac));
	__builtin_memcpy(out->smac, row->smac, sizeof(out->smac));
	return *(volatile __u32 *)&row->turn == turn;
}

/* Caches a route that was looked up in the tick `seen`. If two programs write the same row, one
 * gives up. */
static __always_inline void route_cache_keep(struct fib_cache_row *row, __u32 in, const struct ct_entry *way,
					     __u32 seen)
{
	__u32 turn = *(volatile __u32 *)&row->turn;

	if (turn & 1 || __sync_val_compare_and_swap(&row->turn, turn, turn + 1) != turn)
		return;
	row->from = way->saddr;
	row->to = way->daddr;
	row->in = in;
	row->seen = seen;
	row->ifindex = way->ifindex;
	__builtin_memcpy(row->dmac, way->dmac, sizeof(row->dmac));
	__builtin_memcpy(row->smac, way->smac, sizeof(row->smac));
	asm volatile("" ::: "memory");
	*(volatile __u32 *)&row->turn = turn + 2;
}

enum {
	ROUTE_INET = 2, /* AF_INET and AF_INET6 */
	ROUTE_INET6 = 10,
};

/* Reports whether a row has the neighbor's MAC address, and not only the device behind which to
 * resolve it. */
static __always_inline bool route_is_complete(const struct ct_entry *row)
{
	return *(const __u32 *)row->dmac | *(const __u16 *)(row->dmac + 4);
}

/* Reports whether a packet is for another program: the receiving program can only send it back
 * where it came from (XDP), and the route leads elsewhere. If there is no route the stack has to
 * find it, whichever program rewrites the packet. */
static __always_inline bool route_is_elsewhere(const struct packet *p, const struct ct_entry *row)
{
	return p->bounces && row->ifindex && (row->ifindex != p->ifindex || !route_is_complete(row));
}

/* Returns the device of a route that bpf_fib_lookup did not report completely. It does not follow
 * routes into tunnels. The stack would, but not for a packet that comes in by a device with a
 * source address of the node, as every masqueraded one: it drops that as martian. So such a packet
 * is sent by the tunnel's device, and the kernel finds the remote end of the tunnel by the
 * route. */
static __always_inline __u32 route_device(long found, struct bpf_fib_lookup *way)
{
	__u32 *ifindex;

	if (found != BPF_FIB_LKUP_RET_UNSUPP_LWT)
		return found == BPF_FIB_LKUP_RET_NO_NEIGH ? way->ifindex : 0;
	/* doubles as the map's key: there is no stack space for another variable */
	way->ifindex = 0;
	ifindex = bpf_map_lookup_elem(&tunnel, &way->ifindex);
	return ifindex ? *ifindex : 0;
}

/* Looks up the route for packets that leave as a row says, and writes it into the row: the device
 * and the neighbor, or the device alone while the neighbor is not resolved. It does not matter if
 * this particular packet exceeds the device's MTU. */
static __always_inline void route_fill(void *ctx, const struct packet *p, struct ct_entry *row)
{
	struct bpf_fib_lookup way = { .family = p->is_v4 ? ROUTE_INET : ROUTE_INET6, .ifindex = p->ifindex };
	long found;

	if (p->is_v4) {
		way.ipv4_src = row->saddr.word[3];
		way.ipv4_dst = row->daddr.word[3];
	} else {
		__builtin_memcpy(way.ipv6_src, &row->saddr, sizeof(struct addr));
		__builtin_memcpy(way.ipv6_dst, &row->daddr, sizeof(struct addr));
	}
	found = bpf_fib_lookup(ctx, &way, sizeof(way), 0);
	if (found != BPF_FIB_LKUP_RET_SUCCESS && found != BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		row->ifindex = route_device(found, &way);
		__builtin_memset(row->dmac, 0, sizeof(row->dmac));
		__builtin_memset(row->smac, 0, sizeof(row->smac));
		return;
	}
	row->ifindex = way.ifindex;
	__builtin_memcpy(row->dmac, way.dmac, sizeof(row->dmac));
	__builtin_memcpy(row->smac, way.smac, sizeof(row->smac));
}

/* Does that, and caches a complete result. Not inlined, to keep its stack out of its callers'. The
 * time of the lookup is that of the row, which saves a variable: the stack is full. */
static __noinline int route_ask(void *ctx, const struct packet *p, struct ct_entry *row)
{
	struct fib_cache_row *asked;

	row->seen = flow_now();
	route_fill(ctx, p, row);
	asked = route_is_complete(row) ? route_cache_at(row) : NULL;
	if (asked)
		route_cache_keep(asked, p->ifindex, row, row->seen);
	return 0;
}

/* Writes into a row the route for packets that leave as the row says; a cached one will do.
 *
 * Packets for a pod of this node go through the stack: its network belongs to another plugin, whose
 * rules in the stack have to see both directions. */
static __always_inline void route_find(void *ctx, const struct packet *p, struct ct_entry *row)
{
	struct fib_cache_row *asked;

	if (flow_is(row, FLOW_STACK))
		return;
	asked = route_cache_at(row);
	if (!asked || !route_cache_find(asked, p->ifindex, row))
		route_ask(ctx, p, row);
}

/* When the route in a row is looked up again: with the first packet of a tick, if the agent has seen a
 * change since the last lookup. The time of that lookup needs no field of its own: it is `seen`,
 * because a packet that updates `seen` first looks the route up if that is due. */

/* How many ticks a handshake may take, including retransmissions. */
#define ROUTE_EPOCH_HANDSHAKE 128

/* Reports whether the route of a row that is used now, and was last used in the tick `before`, has
 * to be looked up: always while no agent follows changes, and as long as the route is
 * incomplete. */
static __always_inline bool route_epoch_is_due(const struct ct_entry *row, const __u32 *before)
{
	const struct route_epoch *told;

	if (flow_is(row, FLOW_STACK))
		return false;
	told = flow_route_epoch(row);
	return !told || !route_is_complete(row) || flow_route_is_old(before, &told->changed);
}

/* Looks the route of a row up. True: it has changed, and so has the checksum. */
static __always_inline bool route_epoch_refresh(void *ctx, const struct packet *p, struct ct_entry *row)
{
	__u64 before[2], after[2];

	__builtin_memcpy(before, &row->ifindex, sizeof(before)); /* both MACs follow it */
	route_find(ctx, p, row);
	__builtin_memcpy(after, &row->ifindex, sizeof(after));
	if (before[0] == after[0] && before[1] == after[1])
		return false;
	row->checksum = flow_checksum(&p->flow, row);
	return true;
}

/* Returns the initial `seen` of a request's row in `ct` after a handshake. In `ct_pending` the row did
 * not say when its route was looked up. If that may have been before the last change, the row is
 * made to look as old, so that the next packet looks its route up. */
static __always_inline __u32 route_epoch_opened(__u32 now)
{
	__u32 zero = 0, changed;
	struct route_epoch *told = bpf_map_lookup_elem(&route_epoch, &zero);

	if (!told)
		return now;
	changed = *(volatile __u32 *)&told->changed;
	return now - changed < ROUTE_EPOCH_HANDSHAKE ? changed : now;
}
