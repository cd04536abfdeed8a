/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how tc turns a packet into the reply to it. */
#pragma once

#include "reject.h"
#include "sumtc.h"

/* A reset keeps its TCP header at the same place, because the position is where a device completes
 * the checksum. So IP options before it are removed. */
static __always_inline bool tc_make_room(struct __sk_buff *skb, const struct answering *r)
{
	__s32 spare = r->p->l4 - r->p->l3 - r->base;

	if (!r->room && spare > 0 && bpf_skb_adjust_room(skb, -spare, BPF_ADJ_ROOM_NET, 0))
		return false;
	return !bpf_skb_change_tail(skb, r->keep, 0) &&
	       (!r->room || !bpf_skb_adjust_room(skb, r->room, BPF_ADJ_ROOM_MAC, 0)) &&
	       !bpf_skb_pull_data(skb, skb->len);
}

/* Turns a dropped packet into the reply to it. */
__noinline int tc_reject(struct __sk_buff *skb, const struct packet *p, const struct action *a)
{
	struct answering r = { .p = p, .len = skb->len };

	if (!p || !a || !reject_plan(&r, a, (void *)(long)skb->data, (void *)(long)skb->data_end))
		return false;
	r.is_partial = skb_is_partial(skb, p);
	return tc_make_room(skb, &r) && reject_write(&r, a, (void *)(long)skb->data, (void *)(long)skb->data_end);
}
