/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how a packet that has passed the check at its pod's device is known when it
 * comes in by the node's end of that device once more: after a delay, or from a netkit, whose program
 * has seen it as the pod sent it. Who may load programs in a pod can hand packets to that end
 * himself (bpf_redirect_peer), past a netkit's program, with any mark and any tc_index. So both
 * together are a number that only the node knows. */
#pragma once

#include <linux/bpf.h>

#include "packetcfg.h"

static __always_inline bool checked_is(const struct __sk_buff *skb)
{
	return cfg.checked && skb->mark == (__u32)cfg.checked && skb->tc_index == (__u16)(cfg.checked >> 32);
}

static __always_inline void checked_set(struct __sk_buff *skb)
{
	skb->mark = cfg.checked;
	skb->tc_index = (__u16)(cfg.checked >> 32);
}

/* Clears the fields by which a pod could speak to programs, rules and queues of the node: whether a
 * packet was rewritten or delayed, which band and which queue it gets. The kernel does so only for
 * what comes over the device in the usual way. */
static __always_inline void checked_clear(struct __sk_buff *skb)
{
	skb->mark = 0;
	skb->tc_index = 0;
	skb->priority = 0;
	asm volatile("" ::: "memory"); /* the compiler would write it together with `mark` */
	skb->queue_mapping = 0;
}
