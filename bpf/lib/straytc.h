/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what tc does with packets about which no flow says anything. */
#pragma once

#include "masquerade.h"
#include "read.h"
#include "sendtc.h"

/* Lets a packet on that belongs to no flow, unless it would show a pod's address. */
static __noinline int tc_stray(struct __sk_buff *skb, const struct packet *p, struct action *a, bool leaving)
{
	if (!leaving || !masquerade_refuses_stray(skb, p))
		return TC_NEXT;
	action_drop(a, REASON_NO_PORTS);
	return tc_drop(skb, p, a, true);
}

/* Not inlined, to have a stack frame of its own, which is not there yet while the packet is read. */
static __noinline int tc_drop_read(struct __sk_buff *skb, const struct packet *p, enum reason reason)
{
	struct action a = {};

	action_drop(&a, reason);
	return tc_drop(skb, p, &a, false);
}

/* Drops a packet about which nothing has been decided. */
__noinline int tc_drop_for(struct __sk_buff *skb, __u32 reason)
{
	struct packet p = {};

	read_packet(skb, &p, 0);
	return tc_drop_read(skb, &p, reason);
}
