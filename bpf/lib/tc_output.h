/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the last steps for a packet at tc: drop, reply, send on, or leave to the stack. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "count.h"
#include "event.h"
#include "flow.h"
#include "maps.h"
#include "masquerade.h"
#include "packet.h"
#include "rate.h"
#include "reason.h"
#include "reject.h"
#include "rewrite.h"
#include "route.h"
#include "types.h"

/* Reports whether packets that are rewritten as a row says have a source address of this node: the
 * stack accepts no such IPv4 packet from outside. Not inlined, to have a stack frame of its own. */
static __noinline int tc_has_node_source(const struct ct_entry *row)
{
	struct addr from = row->saddr; /* as in flow_known */

	return bpf_map_lookup_elem(&node_addrs, &from) != NULL;
}

/* Makes a packet come in by the device that it is leaving by. */
static __always_inline int tc_to_stack(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return TC_ACT_SHOT;
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

enum {
	TC_NEXT = -1,  /* to the next program, whoever owns it */
	TC_AGAIN = -2, /* no verdict: the flow has to be handled another way, see dsr_tc.h */
	TC_DROP = 2,
	TC_VLAN_ID = 0xfff,
	TC_EVERY_LINK = 576, /* bytes of IPv4 */
	TC_LOOPBACK = 1,     /* the loopback device is the first of every namespace */
};

/* The value of skb->tc_index of packets that tc_from_netdev has rewritten, so that tc_to_netdev
 * skips them: tc_index survives the stack and redirects. skb->mark does as well, but it belongs to
 * the user. */
#define TC_DONE 0xfa1d

enum tc_output {
	/* the stack finds the route, or fragments what exceeds the next link's MTU */
	TC_OUTPUT_STACK,
	TC_OUTPUT_DEVICE,
	/* the stack fragments what it would not take from where it came, see tc_send_fragment */
	TC_OUTPUT_FRAGMENT,
	TC_OUTPUT_NONE, /* not at all, for a reason */
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
	flow_drop(a, REASON_BAD_TABLE);
	return tc_drop(skb, p, a, leaving);
}

static __always_inline int tc_refuse(struct __sk_buff *skb, const struct packet *p, const struct action *a,
				     bool leaving)
{
	tc_count(skb, p, a, leaving);
	if (a->reject == REJECT_NONE || !reject_tc(skb, p, a))
		return TC_DROP;
	return bpf_redirect(skb->ifindex, leaving ? BPF_F_INGRESS : 0);
}

/* Reports whether a packet has a VLAN tag: then the VLAN's device gets it again without the tag.
 * Priority tags (VLAN 0) do not count. */
static __always_inline bool tc_is_tagged(struct __sk_buff *skb, const struct packet *p)
{
	return p->is_tagged || (skb->vlan_present && skb->vlan_tci & TC_VLAN_ID);
}

/* Reports whether a packet has a priority tag behind another one. The kernel takes off all of them by
 * itself, so the stack would get a packet that no program has read. Only who hides something sends
 * that. */
static __noinline bool tc_is_hidden(struct __sk_buff *skb, const struct packet *p)
{
	__be16 tag[2];

	if (!p->is_tagged || !skb->vlan_present || skb->vlan_tci & TC_VLAN_ID)
		return false;
	if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), tag, sizeof(tag)))
		return true;
	return (tag[0] == bpf_htons(ETH_P_8021Q) || tag[0] == bpf_htons(ETH_P_8021AD)) &&
	       !(tag[1] & bpf_htons(TC_VLAN_ID));
}

/* Reports whether a packet is part of a datagram that routers may fragment further. */
static __always_inline bool tc_is_part(const struct packet *p)
{
	return !p->is_whole && (p->is_fragment || !p->l4);
}

/* Reports whether the device takes less than that where a fragment is now. All fragments of a
 * datagram have to go the same way: netfilter collects those that pass through the stack, and would
 * wait for one that does not. So the size of the fragment itself does not count. */
static __always_inline bool tc_takes_less(struct __sk_buff *skb, struct action *a)
{
	__u32 here = 0;

	return bpf_check_mtu(skb, 0, &here, 0, 0) >= 0 && bpf_check_mtu(skb, a->to.ifindex, &a->mtu, 0, 0) >= 0 &&
	       a->mtu < here;
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

static __always_inline enum tc_output tc_output_refuse(struct action *a)
{
	a->reject = REJECT_TOO_BIG;
	flow_drop(a, REASON_TOO_BIG);
	return TC_OUTPUT_NONE;
}

/* A leaving packet can be too big only if it goes on by another device than the kernel assumed. */
static __always_inline enum tc_output tc_output_host_flow(struct __sk_buff *skb, const struct packet *p,
							  struct action *a)
{
	if (flow_kind(&a->to) != FLOW_HOST || !a->to.ifindex)
		return TC_OUTPUT_STACK;
	if (tc_is_part(p))
		return tc_takes_less(skb, a) ? TC_OUTPUT_FRAGMENT : TC_OUTPUT_STACK;
	if (tc_is_too_big(skb, a) <= 0 || rate_jumbo_fits(skb, a->mtu))
		return TC_OUTPUT_STACK;
	return p->is_whole ? tc_output_refuse(a) : TC_OUTPUT_FRAGMENT;
}

static __always_inline enum tc_output tc_output(struct __sk_buff *skb, const struct packet *p, struct action *a,
						bool leaving)
{
	int too_big;

	if (leaving)
		return tc_output_host_flow(skb, p, a);
	if (!a->to.ifindex)
		return TC_OUTPUT_STACK;
	if (p->ttl <= 1) {
		flow_expire(a);
		return TC_OUTPUT_NONE;
	}
	too_big = tc_is_part(p) ? tc_takes_less(skb, a) : tc_is_too_big(skb, a);
	if (too_big > 0 && rate_jumbo_fits(skb, a->mtu))
		return TC_OUTPUT_DEVICE;
	if (too_big > 0 && p->is_whole)
		return tc_output_refuse(a);
	if (too_big > 0 && tc_has_node_source(&a->to))
		return TC_OUTPUT_FRAGMENT;
	return too_big ? TC_OUTPUT_STACK : TC_OUTPUT_DEVICE;
}

/* Leaves a packet that has an address of the node as its source to the stack, to be fragmented. From
 * a device to the outside the stack takes no such packet. From the loopback device it does, since
 * the agent sets accept_local there. What it then sends still has the mark that keeps it from being
 * translated again. */
static __always_inline int tc_send_fragment(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return TC_ACT_SHOT;
	__builtin_memset(eth, 0, 2 * ETH_ALEN); /* the address of that device */
	skb->tc_index = TC_DONE;
	return bpf_redirect(TC_LOOPBACK, BPF_F_INGRESS);
}

/* Sends on what the node itself sends to a service, or a local backend's reply to it. If the
 * neighbor is not resolved, or the route leads into a tunnel, the kernel sends it as if the socket
 * had sent it to the backend. */
static __noinline int tc_send_host_flow(struct __sk_buff *skb, const struct ct_entry *to)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (flow_kind(to) == FLOW_HOST_LOCAL)
		return tc_to_stack(skb);
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
static __always_inline int tc_send(struct __sk_buff *skb, const struct ct_entry *to, enum tc_output output,
				   bool leaving)
{
	if (output == TC_OUTPUT_FRAGMENT)
		return tc_send_fragment(skb);
	if (leaving)
		return flow_is_of_host(to) ? tc_send_host_flow(skb, to) : TC_NEXT;
	skb->tc_index = TC_DONE;
	if (output != TC_OUTPUT_DEVICE)
		return TC_NEXT;
	if (skb->vlan_present)
		bpf_skb_vlan_pop(skb);
	return route_is_complete(to) ? bpf_redirect(to->ifindex, 0) : bpf_redirect_neigh(to->ifindex, NULL, 0, 0);
}

/* Lets a packet on that belongs to no flow, unless it would show a pod's address. */
static __noinline int tc_stray(struct __sk_buff *skb, const struct packet *p, struct action *a, bool leaving)
{
	if (!leaving || !masquerade_refuses_stray(skb, p))
		return TC_NEXT;
	flow_drop(a, REASON_NO_PORTS);
	return tc_drop(skb, p, a, true);
}

/* Not inlined, to have a stack frame of its own, which is not there yet while the packet is read. */
static __noinline int tc_drop_read(struct __sk_buff *skb, const struct packet *p, enum reason reason)
{
	struct action a = {};

	flow_drop(&a, reason);
	return tc_drop(skb, p, &a, false);
}

/* Drops a packet about which nothing has been decided. */
__noinline int tc_drop_for(struct __sk_buff *skb, __u32 reason)
{
	struct packet p = {};

	packet_read(skb, &p, 0);
	return tc_drop_read(skb, &p, reason);
}
