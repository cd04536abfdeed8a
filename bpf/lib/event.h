/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the events for monitors: drops, and samples of the choice of a backend. It is
 * called only where a packet is dropped or begins a flow. So packets of established flows pay
 * nothing for it, and the others read one word while nobody watches. */
#pragma once

#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>

#include "flow.h"
#include "maps.h"
#include "packet.h"
#include "reason.h"
#include "types.h"

/* The limit of events, on each CPU: a flood must not occupy the reader entirely. */
#define EVENT_BURST 512
#define EVENT_EVERY 2000000 /* ns */

/* Where a packet is seen: an enum hook, plus this on its way out of the node. */
#define EVENT_LEAVING 0x100

static __always_inline bool event_is_at(const struct watch *w, const struct addr *addr)
{
	for (int i = 0; i < 4; i++) {
		if ((addr->word[i] & w->mask.word[i]) != w->addr.word[i])
			return false;
	}
	return true;
}

static __always_inline bool event_has_addr(const struct watch *w, const struct packet *p, const struct action *a)
{
	return event_is_at(w, &p->flow.saddr) || event_is_at(w, &p->flow.daddr) || event_is_at(w, &a->to.saddr) ||
	       event_is_at(w, &a->to.daddr);
}

static __always_inline bool event_has_port(const struct watch *w, const struct packet *p, const struct action *a)
{
	return !w->port || p->flow.sport == w->port || p->flow.dport == w->port || a->to.sport == w->port ||
	       a->to.dport == w->port;
}

/* The last monitor may have been killed, so a watch expires after some seconds unless it is
 * renewed. */
static __always_inline bool event_is_wanted(const struct watch *w, const struct packet *p, const struct action *a)
{
	if (!(w->reasons >> (a->reason & 63) & 1) || bpf_ktime_get_coarse_ns() > w->until)
		return false;
	if (a->reason == REASON_NONE && w->sample > 1 && bpf_get_prandom_u32() % w->sample)
		return false;
	return event_has_addr(w, p, a) && event_has_port(w, p, a);
}

static __always_inline bool event_is_allowed(struct watched *told)
{
	__u64 now = bpf_ktime_get_coarse_ns(), gained = (now - told->filled) / EVENT_EVERY;

	if (gained >= EVENT_BURST - told->tokens) {
		told->tokens = EVENT_BURST;
		told->filled = now;
	} else if (gained) {
		told->tokens += gained;
		told->filled += gained * EVENT_EVERY;
	}
	if (!told->tokens)
		return false;
	told->tokens--;
	return true;
}

static __always_inline void event_write(struct event *e, const struct packet *p, const struct action *a,
					__u32 where)
{
	e->at = bpf_ktime_get_ns();
	e->flow = p->flow;
	e->saddr = a->to.saddr;
	e->daddr = a->to.daddr;
	e->sport = a->to.sport;
	e->dport = a->to.dport;
	e->ifindex = p->ifindex;
	e->out = a->to.ifindex;
	e->hook = where;
	e->is_leaving = !!(where & EVENT_LEAVING);
	e->reason = a->reason;
	e->is_dropped = a->verdict == VERDICT_DROP;
	e->kind = a->to.kind;
	e->tcp_flags = p->tcp_flags;
	e->rule = a->reason == REASON_POLICY || a->reason == REASON_POLICY_AUDIT ? a->rule : 0;
	__builtin_memset(e->pad, 0, sizeof(e->pad));
}

/* Reports whether anybody watches, for callers that would rather not call a function for
 * nothing. */
static __always_inline bool event_is_watched(void)
{
	__u32 row = 0;
	struct watch *w = bpf_map_lookup_elem(&watch, &row);

	return w && w->reasons;
}

/* Reports what is about to happen to a packet. Not static, so that the verifier walks it only once
 * and not for every path that leads here. */
__noinline int event_tell(const struct packet *p, const struct action *a, __u32 where, __u32 len)
{
	struct watched *told;
	struct watch *w;
	struct event *e;
	__u32 row = 0;

	if (!p || !a)
		return 0;
	w = bpf_map_lookup_elem(&watch, &row);
	if (!w || !w->reasons || !event_is_wanted(w, p, a))
		return 0;
	row = a->reason == REASON_NONE ? WATCHED_CHOICE : WATCHED_REASON;
	told = bpf_map_lookup_elem(&watched, &row);
	if (!told)
		return 0;
	e = event_is_allowed(told) ? bpf_ringbuf_reserve(&events, sizeof(*e), 0) : NULL;
	if (!e) {
		told->lost++;
		return 0;
	}
	event_write(e, p, a, where);
	e->len = len;
	e->sample = w->sample;
	bpf_ringbuf_submit(e, 0);
	return 0;
}
