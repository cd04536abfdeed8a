/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what monitors are told while there are any: drops, and some of the choices of a backend. It is
 * called where a packet is dropped or begins a flow and nowhere else, so those of established flows know nothing of
 * it, and the others read one word while nobody watches. */
#pragma once

#include "action.h"

/* More than this is not told, on each CPU: a flood must not keep whoever reads from anything else. */
#define EVENT_BURST 512
#define EVENT_EVERY 2000000 /* ns */

/* Where a packet is seen: a hook, and this on its way out of the node. */
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

/* Who watched last may have been killed, so what is wanted is wanted for some seconds, and then has to be wanted
 * again. */
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
	e->flags = a->to.flags;
	e->tcp_flags = p->tcp_flags;
	__builtin_memset(e->pad, 0, sizeof(e->pad));
}

/* Whether anybody watches, for who would not call a function for nothing. */
static __always_inline bool event_is_watched(void)
{
	__u32 row = 0;
	struct watch *w = bpf_map_lookup_elem(&watch, &row);

	return w && w->reasons;
}

/* Tells what is about to become of a packet. The function is not static, so the verifier walks it once and not for
 * every way that leads here. */
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
