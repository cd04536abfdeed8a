/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains flows that their backend was to answer itself and cannot: its node has given them back, see
 * back.h, or the first packet does not fit with what is put around it. They get this node's address after all, and
 * keep it: two rows take the place of the one that there was.
 *
 * What is given back may be forged. So it counts only where a flow is known that is forwarded to just that backend
 * from just that address; and a flow that has been forwarded for a while stays as it is. Else what is inside
 * goes on as if the client had sent it, which who forges that could have sent as well. */
#pragma once

#include "back.h"
#include "direct.h"
#include "unwrap.h"

/* So many ticks after its first packet a flow may be given back. Most are within a round trip. */
#define FALLBACK_TICKS 32

/* Whether what has no port around it is from the backend's node, about a flow of ours. */
static __noinline int fallback_is_known(const struct hint *hint, const struct flow *inner)
{
	struct ct_entry row;

	return ct_known(inner, &row) == CT_KNOWN && !(row.flags & CT_REPLY) &&
	       (row.flags & CT_DIRECT) >> DIRECT_SHIFT != DIRECT_OPT && addr_equal(&row.daddr, &hint->from) &&
	       addr_equal(&row.saddr, &hint->backend);
}

/* Reads the flow of what is inside, in a frame of its own that is gone by the time the flow is looked for. */
static __noinline int fallback_read(struct flow *flow, const struct packet *p, void *data, void *end, __u32 at)
{
	struct packet inner = {};
	int parsed;

	asm volatile("" : "+r"(at)); /* one register, for the reason that packet_at gives */
	if (at > PACKET_L4_MOST)
		return false;
	parsed = p->is_v4 ? packet_parse4(&inner, data, end, at) : packet_parse6(&inner, data, end, at);
	*flow = inner.flow;
	return parsed == PARSED_FLOW;
}

static __noinline int fallback_is_ours(const struct hint *hint, const struct packet *p, void *data, void *end)
{
	struct flow flow;

	return fallback_read(&flow, p, data, end, p->l3 + hint->len) && fallback_is_known(hint, &flow);
}

/* Whether a packet is from another node, that forwarded it or gives it back. */
static __always_inline bool fallback_or_forwarded(struct hint *hint, const struct packet *p, void *data, void *end)
{
	if (!unwrap_read(hint, p, data, end))
		return false;
	return hint->port ? unwrap_is_ours(hint, p, data, end) : fallback_is_ours(hint, p, data, end);
}

/* Whether a packet that was not forwarded to the backend's node may take the other way. */
static __always_inline bool fallback_is_due(const struct packet *p, const struct action *a)
{
	__u16 age = ct_now() - a->to.addr_diff;

	if (!p->is_returned)
		return a->is_first && a->reason == REASON_TOO_BIG;
	return age <= FALLBACK_TICKS || (packet_shakes_hands(p) && a->to.state == CT_NEW);
}

/* Makes both rows of a flow that has less than that, and no packet of which anybody is to be told. */
__noinline int tc_enter(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	return p && a ? first_enter(skb, p, a) : 0;
}

/* Gives the first packet of a flow that another node forwarded its way. */
__noinline int tc_host(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	if (!p || !a)
		return 0;
	if (back_is_due(skb, p, a))
		return back_give(skb, p, a);
	tc_enter(skb, p, a);
	return a->verdict == VERDICT_REWRITE ? event_tell(p, a, HOOK_TC, 0) : 0;
}

/* Gives a flow this node's address that its backend was to answer itself. */
static __always_inline void fallback_enter(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	a->answer = ANSWER_NONE;
	a->to.flags &= CT_GUARDED;
	a->to.state = CT_NEW;
	a->verdict = VERDICT_REWRITE;
	a->reason = REASON_NONE;
	tc_enter(skb, p, a);
}
