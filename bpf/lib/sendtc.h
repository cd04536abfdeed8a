/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the ends of a packet's way at tc: it is dropped, answered, sent on or left to the stack. */
#pragma once

#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include "answertc.h"
#include "count.h"
#include "jumbo.h"
#include "own.h"
#include "skb.h"

enum {
	TC_NEXT = -1,  /* to the next program, of whoever that is */
	TC_AGAIN = -2, /* no verdict: the flow has to have another way, see fallback.h */
	TC_DROP = 2,
	TC_VLAN_ID = 0xfff,
	TC_EVERY_LINK = 576, /* bytes of IPv4 */
};

/* What tc_from_netdev leaves in a packet that it has rewritten, so that tc_to_netdev need not look at it on its way
 * out: the index survives the stack, and a redirection too. skb->mark does as well, but belongs to the user. */
#define TC_DONE 0xfa1d

enum tc_way {
	TC_WAY_STACK, /* finds the way, or cuts up what the next link does not take */
	TC_WAY_ON,
	TC_WAY_NONE, /* for a reason */
};

static __always_inline void tc_count(struct __sk_buff *skb, const struct packet *p, const struct action *a,
				     bool leaving)
{
	count(HOOK_TC, a->reason, skb->len);
	event_tell(p, a, leaving ? HOOK_TC | EVENT_LEAVING : HOOK_TC, skb->len);
}

static __noinline int tc_drop(struct __sk_buff *skb, const struct packet *p, const struct action *a, bool leaving)
{
	tc_count(skb, p, a, leaving);
	return TC_DROP;
}

/* The packet is not as it was read, which cannot be. */
static __always_inline int tc_mistake(struct __sk_buff *skb, const struct packet *p, struct action *a, bool leaving)
{
	action_drop(a, REASON_BAD_TABLE);
	return tc_drop(skb, p, a, leaving);
}

static __always_inline int tc_refuse(struct __sk_buff *skb, const struct packet *p, const struct action *a,
				     bool leaving)
{
	tc_count(skb, p, a, leaving);
	if (a->answer == ANSWER_NONE || !tc_answer(skb, p, a))
		return TC_DROP;
	return bpf_redirect(skb->ifindex, leaving ? BPF_F_INGRESS : 0);
}

/* The device of a tag is sent the packet again, without it. A tag that only has a priority has none. */
static __always_inline bool tc_is_tagged(struct __sk_buff *skb, const struct packet *p)
{
	return p->is_tagged || (skb->vlan_present && skb->vlan_tci & TC_VLAN_ID);
}

/* Whether a device takes a packet: zero if so, and less if there is no such device. Each segment of a merged one
 * counts for itself. What every link takes is not asked about. */
static __always_inline int tc_is_too_big(struct __sk_buff *skb, struct action *a)
{
	a->mtu = 0;
	if (skb->len <= sizeof(struct ethhdr) + TC_EVERY_LINK)
		return 0;
	return bpf_check_mtu(skb, a->to.ifindex, &a->mtu, 0, BPF_MTU_CHK_SEGS);
}

/* Of what leaves only what goes on by another device than the kernel thought may be too big. */
static __always_inline enum tc_way tc_way_own(struct __sk_buff *skb, struct action *a)
{
	if (!(a->to.flags & CT_NODE) || !(a->to.flags & CT_POD))
		return TC_WAY_STACK;
	if (!a->to.ifindex || tc_is_too_big(skb, a) <= 0 || jumbo_fits(skb, a->mtu))
		return TC_WAY_STACK;
	a->answer = ANSWER_TOO_BIG;
	action_drop(a, REASON_TOO_BIG);
	return TC_WAY_NONE;
}

static __always_inline enum tc_way tc_way(struct __sk_buff *skb, const struct packet *p, struct action *a,
					  bool leaving)
{
	int too_big;

	if (leaving)
		return tc_way_own(skb, a);
	if (!a->to.ifindex)
		return TC_WAY_STACK;
	if (p->ttl <= 1) {
		action_expire(a);
		return TC_WAY_NONE;
	}
	too_big = tc_is_too_big(skb, a);
	if (too_big > 0 && jumbo_fits(skb, a->mtu))
		return TC_WAY_ON;
	if (too_big > 0 && (p->is_whole || skb_is_own(&a->to))) {
		a->answer = ANSWER_TOO_BIG;
		action_drop(a, REASON_TOO_BIG);
		return TC_WAY_NONE;
	}
	return too_big ? TC_WAY_STACK : TC_WAY_ON;
}

/* Sends what the node itself sends to a service, or answers to it, on its way. What the kernel has to ask for a
 * neighbour, or by which of its tunnels, it sends to where it would if the socket had sent it there. */
static __noinline int tc_send_own(struct __sk_buff *skb, const struct ct_entry *to)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (!(to->flags & CT_POD))
		return own_enter(skb);
	if (!to->ifindex)
		return TC_NEXT;
	if (route_is_complete(to) && data + sizeof(struct ethhdr) <= end)
		rewrite_hosts(data, to);
	if (route_is_complete(to) && to->ifindex == skb->ifindex)
		return TC_NEXT;
	skb->tc_index = TC_DONE;
	return route_is_complete(to) ? bpf_redirect(to->ifindex, 0) : bpf_redirect_neigh(to->ifindex, NULL, 0, 0);
}

/* Lets a packet that was rewritten go its way. The kernel asks for a neighbour that is not known. */
static __always_inline int tc_send(struct __sk_buff *skb, const struct ct_entry *to, enum tc_way way, bool leaving)
{
	if (leaving)
		return to->flags & CT_NODE ? tc_send_own(skb, to) : TC_NEXT;
	skb->tc_index = TC_DONE;
	if (way != TC_WAY_ON)
		return TC_NEXT;
	if (skb->vlan_present)
		bpf_skb_vlan_pop(skb);
	return route_is_complete(to) ? bpf_redirect(to->ifindex, 0) : bpf_redirect_neigh(to->ifindex, NULL, 0, 0);
}
