/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the answer to what is to be done with a packet. */
#pragma once

#include "ct.h"

enum verdict {
	VERDICT_PASS,
	VERDICT_DROP,
	VERDICT_REWRITE,
};

enum answer {
	ANSWER_NONE,
	ANSWER_RESET,	    /* RST */
	ANSWER_UNREACHABLE, /* ICMP: nobody is at the port */
	ANSWER_EXPIRED,	    /* ICMP: no hops are left */
	ANSWER_TOO_BIG,	    /* ICMP: the next link takes less */
};

struct action {
	__u8 verdict;	    /* enum verdict */
	__u8 reason;	    /* enum reason, of a drop */
	__u8 answer;	    /* enum answer, to a drop */
	bool is_first;	    /* of a flow, which may still have another way */
	__u32 mtu;	    /* of what is too big */
	struct ct_entry to; /* of a rewrite */
};

static __always_inline int action_drop(struct action *a, enum reason reason)
{
	a->verdict = VERDICT_DROP;
	a->reason = reason;
	return 0;
}

/* A router says so when it drops a packet that may go no further. */
static __always_inline int action_expire(struct action *a)
{
	a->answer = ANSWER_EXPIRED;
	return action_drop(a, REASON_TTL);
}

/* Takes over what is known of the flow of a packet that neither begins nor extends it. */
static __always_inline int action_known(struct action *a, const struct flow *flow)
{
	int known = ct_known(flow, &a->to);

	if (known == CT_TORN)
		return action_drop(a, REASON_FLOW_RACE);
	if (known == CT_KNOWN)
		a->verdict = VERDICT_REWRITE;
	return 0;
}
