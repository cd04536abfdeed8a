/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how packets with a rate are delayed if they stay on the node, since no
 * device's queue is on the way between pods, or from a pod to the node itself. For these there is a
 * pair of devices that are each other's peer: a packet waits in the queue of one, and when it comes
 * out of the other it continues to where it would have gone. Its mark says where. Nothing else uses
 * these devices: they have no address, and no pod can send there. */
#pragma once

#include "checked.h"
#include "edt.h"

/* Where a packet goes, in the upper bits of its mark; the lower bits are an interface index. */
enum pacer_way {
	PACER_POD = 1U << 28, /* to the peer of the interface, a pod's */
	/* the same by the interface itself, because tc_to_pod has to translate it */
	PACER_DEVICE = 2U << 28,
	/* to the stack, as if coming from the interface of the pod that sent it */
	PACER_NODE = 3U << 28,
	PACER_PROXY = 5U << 28, /* to the proxy of the pod that sent it */
	/* on by the interface, which is another plugin's, as if it had not waited */
	PACER_BACK = 6U << 28,
	PACER_WAYS = 15U << 28,
};

/* Reports whether a packet has to wait. If its time is well past, no earlier packet still waits, so
 * it cannot overtake one. */
static __always_inline bool pacer_is_due(__u64 at)
{
	return at > EDT_BEYOND_HORIZON && at + EDT_BURST / 4 > bpf_ktime_get_ns();
}

/* Delays a packet until its time. No node has ever had an interface index too large for the
 * mark. */
static __always_inline int pacer_enter(struct __sk_buff *skb, __u64 at, __u32 way, __u32 ifindex)
{
	skb->mark = way | (ifindex & ~PACER_WAYS);
	edt_stamp(skb, at);
	return bpf_redirect(cfg.pacer, 0);
}
