/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the memory of fragmented datagrams, of which only the first fragment has
 * ports. */
#pragma once

#include "decide.h"

/* After this many ticks a datagram can no longer become complete, and its id may be reused. */
#define FRAGMENT_TICKS 30

static __always_inline struct datagram fragment_key(const struct packet *p)
{
	return (struct datagram) {
		.saddr = p->flow.saddr,
		.daddr = p->flow.daddr,
		.id = p->id,
		.proto = p->is_v4 ? p->flow.proto : IPPROTO_FRAGMENT,
	};
}

static __always_inline __u32 fragment_checksum(const struct datagram *key, const struct datagram_flow *value)
{
	const __u64 *word = (const __u64 *)value;
	__u64 hash = ct_hash((const struct flow *)key);

	return ct_mix(ct_mix(hash, word[0]), value->proto) >> 32;
}

/* Stores the ports of a first fragment for the later ones. If that fails the first fragment is
 * useless, and is dropped. */
__noinline int fragment_remember(const struct packet *p, struct action *a)
{
	struct datagram_flow value = { .seen = ct_now() };
	struct datagram key;

	if (!p || !a)
		return 0;
	if (p->flow.proto == IPPROTO_SCTP && (p->flow.sport != a->to.sport || p->flow.dport != a->to.dport))
		/* the checksum's change depends on how much is still to come */
		return action_drop(a, REASON_FRAGMENT);
	key = fragment_key(p);
	value.sport = p->flow.sport;
	value.dport = p->flow.dport;
	value.proto = p->flow.proto;
	value.checksum = fragment_checksum(&key, &value);
	if (!bpf_map_update_elem(&frags, &key, &value, BPF_NOEXIST))
		lru_stats_made(LRU_FRAGS);
	else if (bpf_map_update_elem(&frags, &key, &value, BPF_ANY))
		return action_drop(a, REASON_FRAGMENT);
	return 0;
}

/* Returns the mark of a datagram, which a few others share. */
static __always_inline struct early_mark *fragment_mark(__u64 hash)
{
	__u32 row = (__u32)hash % EARLY_MARKS;

	return bpf_map_lookup_elem(&early_marks, &row);
}

/* Reports whether fragments of a datagram may be waiting for this first one, which has stored its
 * ports: then tc sends them again. early_fragments_keep sets the mark and then looks for the ports again, so
 * at least one of the two sees the other. That takes an operation that neither compiler nor CPU
 * reorders. A packet that ends a flow is excluded: it comes in a second time, and would not find
 * the flow then. No honest sender fragments a RST, or a packet that begins and ends a flow at
 * once. */
__noinline int fragment_is_awaited(const struct packet *p)
{
	struct early_mark *mark;
	struct datagram key;
	__u32 kept;

	if (!p || p->tcp_flags & TCP_RST || (packet_is_syn(p) && p->tcp_flags & TCP_FIN))
		return false;
	key = fragment_key(p);
	mark = fragment_mark(ct_hash((const struct flow *)&key));
	if (!mark)
		return false;
	kept = __sync_fetch_and_add(&mark->kept, 0);
	return kept && ct_now() + 1 - kept <= FRAGMENT_TICKS;
}

/* Gives a later fragment the flow of the first. False: the first was not ours, or has not
 * arrived. */
static __always_inline bool fragment_complete(struct packet *p)
{
	struct datagram key = fragment_key(p);
	struct datagram_flow *row = bpf_map_lookup_elem(&frags, &key), known;

	if (!row)
		return false;
	known = *(volatile struct datagram_flow *)row;
	if (known.checksum != fragment_checksum(&key, &known) || ct_now() - known.seen > FRAGMENT_TICKS)
		return false;
	p->flow.sport = known.sport;
	p->flow.dport = known.dport;
	p->flow.proto = known.proto;
	return true;
}

/* Decides about a fragment without ports. It neither begins nor extends a flow: the first fragment
 * has done that. False: nothing is known of its datagram. */
static __noinline int fragment_decide(struct packet *p, struct action *a)
{
	if (!fragment_complete(p))
		return false;
	action_known(a, &p->flow);
	return true;
}

/* A first fragment that ends within the TCP or SCTP header cannot be translated, since its checksum
 * is in another fragment. It is dropped if it is for one of our flows or frontends; only an
 * attacker sends such fragments. */
__noinline int fragment_decide_cut(const struct packet *p, struct action *a)
{
	if (!p || !a || !p->is_fragment)
		return 0;
	if (ct_known(&p->flow, &a->to) != CT_UNKNOWN || new_flow_frontend(&p->flow, false))
		action_drop(a, REASON_FRAGMENT);
	return 0;
}
