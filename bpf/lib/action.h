/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the decision about a packet. */
#pragma once

#include "ct.h"

enum verdict {
	VERDICT_PASS,
	VERDICT_DROP,
	VERDICT_REWRITE,
};

enum reject {
	REJECT_NONE,
	REJECT_RESET,	    /* TCP RST */
	REJECT_UNREACHABLE, /* ICMP: port unreachable */
	REJECT_EXPIRED,	    /* ICMP: time exceeded */
	REJECT_TOO_BIG,	    /* ICMP: the packet exceeds the MTU of the next link */
};

struct action {
	__u8 verdict;	    /* enum verdict */
	__u8 reason;	    /* enum reason, for a drop */
	__u8 reject;	    /* enum reject, to a dropped packet */
	bool is_first;	    /* first packet of a flow, which may still be sent another way */
	__u32 mtu;	    /* for REJECT_TOO_BIG */
	struct ct_entry to; /* for a rewrite */
};

static __always_inline int action_drop(struct action *a, enum reason reason)
{
	a->verdict = VERDICT_DROP;
	a->reason = reason;
	return 0;
}

/* Drops a packet that has no hops left, with the ICMP error that a router sends. */
static __always_inline int action_expire(struct action *a)
{
	a->reject = REJECT_EXPIRED;
	return action_drop(a, REASON_TTL);
}

/* Applies the row of a flow to a packet that neither begins nor extends it. */
static __always_inline int action_known(struct action *a, const struct flow *flow)
{
	int known = ct_known(flow, &a->to);

	if (known == CT_TORN)
		return action_drop(a, REASON_FLOW_RACE);
	if (known == CT_KNOWN)
		a->verdict = VERDICT_REWRITE;
	return 0;
}
