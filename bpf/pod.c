// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the program at the host's end of a pod's device: whether the pod may send what it sends, and
 * the way past the stack, to another pod of this node or out of it. */

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "lib/count.h"
#include "lib/event.h"
#include "lib/route.h"
#include "lib/sender.h"

enum {
	POD_NEXT = -1, /* to the next program, of whoever that is, and then to the stack */
	POD_DROP = 2,
};

__noinline int pod_drop(struct __sk_buff *skb, struct packet *p, __u32 reason)
{
	struct action a = {};

	if (!p)
		return POD_DROP;
	action_drop(&a, reason);
	count(HOOK_POD, reason, skb->len);
	event_tell(p, &a, HOOK_POD, skb->len);
	return POD_DROP;
}

/* Whether a device is one where what leaves has its address changed, if that has to be. By others the stack sends,
 * and gets what comes back too. */
static __always_inline bool pod_is_served(__u32 ifindex)
{
	return ifindex && bpf_map_lookup_elem(&served, &ifindex);
}

static __always_inline bool pod_fits(struct __sk_buff *skb, __u32 ifindex)
{
	__u32 mtu = 0;

	return !bpf_check_mtu(skb, ifindex, &mtu, 0, BPF_MTU_CHK_SEGS);
}

/* Sends a packet out of the node. What has to be told to its sender, cut up or is for the node itself the stack
 * gets. */
static __always_inline int pod_leave(struct __sk_buff *skb, const struct packet *p)
{
	struct ct_entry way = { .saddr = p->flow.saddr, .daddr = p->flow.daddr };

	route_find(skb, p, &way);
	if (p->ttl <= 1 || !pod_is_served(way.ifindex) || !pod_fits(skb, way.ifindex))
		return POD_NEXT;
	if (!route_is_complete(&way))
		return pods_hop(skb, p, NULL, NULL) ? bpf_redirect_neigh(way.ifindex, NULL, 0, 0) : POD_NEXT;
	return pods_hop(skb, p, way.dmac, way.smac) ? bpf_redirect(way.ifindex, 0) : POD_NEXT;
}

SEC("tc")
int tc_from_pod(struct __sk_buff *skb)
{
	struct packet p = {};
	struct pod *pod;
	int outcome;

	if (!pods_read(skb, &p) || !sender_is_own(skb, &p)) {
		outcome = sender_check(skb, &p);
		if (outcome > 0)
			return pod_drop(skb, &p, outcome);
		if (outcome == SENDER_STAYS)
			return POD_NEXT;
	}
	if (!cfg.bypass)
		return POD_NEXT;
	pod = pods_at(&p.flow.daddr);
	return pod ? pods_send(skb, &p, pod) : pod_leave(skb, &p);
}

char _license[] SEC("license") = "Dual BSD/GPL";
