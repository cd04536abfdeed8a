/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the way that what is kept to a rate takes if it stays on the node. No queue of a device is on
 * the way of a packet from a pod to another, or to the node itself. So there is a pair of devices that are each
 * other's wire: a packet waits in the queue of the one, and as it comes out of the other it goes on to where it
 * would have gone. Its mark says where that is. Nothing else is at these devices: they have no address, and no pod
 * can send there or set a mark. */
#pragma once

#include "packetcfg.h"
#include "edt.h"

/* Where a packet goes, in the upper bits of its mark; below them is an interface. */
enum pair_way {
	PAIR_POD = 1U << 28,	/* to the other end of it, a pod's */
	PAIR_DEVICE = 2U << 28, /* the same by the device, where tc_to_pod has something to translate */
	PAIR_NODE = 3U << 28,	/* to the stack, from the device of the pod that has sent it */
	PAIR_NETKIT = 4U << 28, /* the same, from a netkit: nothing there looks at it again */
	PAIR_PROXY = 5U << 28,	/* to the proxy of the pod that has sent it */
	PAIR_BACK = 6U << 28,	/* on by the device that is another plugin's, as if it had not waited */
	PAIR_WAYS = 15U << 28,
	PAIR_DONE = PAIR_WAYS, /* what comes from a pod's device once more */
};

/* Whether a packet has to wait. One whose time is long past has nobody before it who still does. */
static __always_inline bool pair_is_due(__u64 at)
{
	return at > EDT_LATE && at + EDT_BURST / 4 > bpf_ktime_get_ns();
}

/* Has a packet wait until its time. An interface that does not fit into a mark no node ever had. */
static __always_inline int pair_enter(struct __sk_buff *skb, __u64 at, __u32 way, __u32 ifindex)
{
	skb->mark = way | (ifindex & ~PAIR_WAYS);
	edt_stamp(skb, at);
	return bpf_redirect(cfg.pair, 0);
}
