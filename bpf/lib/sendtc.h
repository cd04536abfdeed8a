/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the last steps for a packet at tc: drop, reply, send on, or leave to the
 * stack. */
#pragma once

#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include "answertc.h"
#include "count.h"
#include "jumbo.h"
#include "own.h"
#include "skb.h"

enum {
	TC_NEXT = -1,  /* to the next program, whoever owns it */
	TC_AGAIN = -2, /* no verdict: the flow has to be handled another way, see fallback.h */
	TC_DROP = 2,
	TC_VLAN_ID = 0xfff,
	TC_EVERY_LINK = 576, /* bytes of IPv4 */
};

/* The value of skb->tc_index of packets that tc_from_netdev has rewritten, so that tc_to_netdev
 * skips them: tc_index survives the stack and redirects. skb->mark does as well, but it belongs to
 * the user. */
#define TC_DONE 0xfa1d

enum tc_way {
	/* the stack finds the route, or fragments what exceeds the next link's MTU */
	TC_WAY_STACK,
	TC_WAY_ON,
	TC_WAY_NONE, /* not at all, for a reason */
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

/* Drops a packet that is not what was parsed before, which cannot happen. */
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

/* Reports whether a packet has a VLAN tag: then the VLAN's device gets it again without the tag.
 * Priority tags (VLAN 0) do not count. */
static __always_inline bool tc_is_tagged(struct __sk_buff *skb, const struct packet *p)
{
	return p->is_tagged || (skb->vlan_present && skb->vlan_tci & TC_VLAN_ID);
}

/* Reports whether a packet exceeds a device's MTU: positive if so, zero if not, negative if there
 * is no such device. Every segment of a merged packet is checked by itself. No check is needed for
 * what every link accepts. */
static __always_inline int tc_is_too_big(struct __sk_buff *skb, struct action *a)
{
	a->mtu = 0;
	if (skb->len <= sizeof(struct ethhdr) + TC_EVERY_LINK)
		return 0;
	return bpf_check_mtu(skb, a->to.ifindex, &a->mtu, 0, BPF_MTU_CHK_SEGS);
}

/* A leaving packet can be too big only if it goes on by another device than the kernel assumed. */
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

/* Sends on what the node itself sends to a service, or a local backend's reply to it. If the
 * neighbor is not resolved, or the route leads into a tunnel, the kernel sends it as if the socket
 * had sent it to the backend. */
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

/* Sends on a packet that was rewritten. The kernel resolves a neighbor that is not known. */
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
