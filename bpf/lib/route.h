/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the question to the kernel where a packet goes once it is rewritten. */
#pragma once

#include "asked.h"

enum {
	ROUTE_INET = 2, /* AF_INET and AF_INET6 */
	ROUTE_INET6 = 10,
};

/* Whether a row has the neighbour too, and not only the device behind which it has to be asked for. */
static __always_inline bool route_is_complete(const struct ct_entry *row)
{
	return *(const __u32 *)row->dmac | *(const __u16 *)(row->dmac + 4);
}

/* Whether a packet is for another program: its receiver can only send it back where it came from, and that is not
 * the way on. Where there is none, the stack has to find it whoever rewrites the packet. */
static __always_inline bool route_is_elsewhere(const struct packet *p, const struct ct_entry *row)
{
	return p->bounces && row->ifindex && (row->ifindex != p->ifindex || !route_is_complete(row));
}

/* The device of a way that the kernel did not tell all of. It does not follow routes into tunnels. The stack would,
 * but not for what comes in by a device with an address of the node, as what is masqueraded does: that is martian
 * to it. So it is sent by the tunnel's device, and the kernel finds the tunnel's other end by the route. */
static __always_inline __u32 route_device(long found, struct bpf_fib_lookup *way)
{
	__u32 *ifindex;

	if (found != BPF_FIB_LKUP_RET_UNSUPP_LWT)
		return found == BPF_FIB_LKUP_RET_NO_NEIGH ? way->ifindex : 0;
	way->ifindex = 0; /* the key: there is no room for another */
	ifindex = bpf_map_lookup_elem(&tunnel, &way->ifindex);
	return ifindex ? *ifindex : 0;
}

/* Asks the kernel for the way of what leaves as a row says, and writes it into the row: the device and the
 * neighbour, or the device alone if it has yet to learn of the neighbour. That this very packet is too large for
 * the device says nothing against the way. */
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

/* Does that, and keeps an answer that lacks nothing. A function, since it has no room where others do more. */
static __noinline int route_ask(void *ctx, const struct packet *p, struct ct_entry *row)
{
	__u32 now = ct_now();
	struct asked_way *asked;

	route_fill(ctx, p, row);
	asked = route_is_complete(row) ? asked_row(row) : NULL;
	if (asked)
		asked_keep(asked, p->ifindex, row, now);
	return 0;
}

/* Writes the way of what leaves as a row says into it. An answer of before will do.
 *
 * What is for a pod of this node goes through the stack: its network is another plugin's, whose rules there have to
 * see both directions. */
static __always_inline void route_find(void *ctx, const struct packet *p, struct ct_entry *row)
{
	struct asked_way *asked;

	if (row->flags & CT_STACK)
		return;
	asked = asked_row(row);
	if (!asked || !asked_find(asked, p->ifindex, row))
		route_ask(ctx, p, row);
}
