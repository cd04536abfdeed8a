/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the FIB lookup: where a packet goes once it is rewritten. */
#pragma once

#include "fib_cache.h"

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

	row->seen = ct_now();
	route_fill(ctx, p, row);
	asked = route_is_complete(row) ? fib_cache_at(row) : NULL;
	if (asked)
		fib_cache_keep(asked, p->ifindex, row, row->seen);
	return 0;
}

/* Writes into a row the route for packets that leave as the row says; a cached one will do.
 *
 * Packets for a pod of this node go through the stack: its network belongs to another plugin, whose
 * rules in the stack have to see both directions. */
static __always_inline void route_find(void *ctx, const struct packet *p, struct ct_entry *row)
{
	struct fib_cache_row *asked;

	if (row->flags & CT_STACK)
		return;
	asked = fib_cache_at(row);
	if (!asked || !fib_cache_find(asked, p->ifindex, row))
		route_ask(ctx, p, row);
}
