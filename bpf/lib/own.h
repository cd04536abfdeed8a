/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what this node itself sends to a service as packets, which no program of sockets pointed at a
 * backend (CT_NODE): that of raw sockets and the kernel's, of SCTP, of processes outside of the cgroup. The kernel
 * sends it where it sends what it knows no better way for, so it is met as it leaves by a device to the outside.
 *
 * From there it goes to its backend: by the same device, another one or the tunnel, or to a pod of this node. The
 * backend sees the node's address, and its answers are translated where they come in, by a device or from the pod.
 * A backend on this node that is none of our pods, such as a process of the node, would answer past all programs:
 * it sees the service's address, to which answers leave as the requests did, and both come in again as if somebody
 * outside had sent them. The stack takes nothing from there that has one of the node's own addresses. */
#pragma once

#include "first.h"
#include "inside.h"

/* Whether a packet is of a socket of this machine, and not forwarded. It may be a pod's all the same. */
static __always_inline bool own_may_be(struct __sk_buff *skb)
{
	return cfg.own && !skb->ingress_ifindex && skb->sk;
}

/* Whether a flow of which nothing is known, and that leaves this node, may begin with a packet. A connection to an
 * address that is known outside may be older than what we know, and go by another load balancer. */
static __always_inline bool own_begins(const struct packet *p, const struct svc *svc)
{
	struct addr from = p->flow.saddr; /* as in ct_known */

	if (svc->kind == SVC_EXTERNAL_ONLY)
		return false;
	if (svc->kind != SVC_CLUSTER_IP && packet_shakes_hands(p) && !first_is_syn(p))
		return false;
	return bpf_map_lookup_elem(&node_addrs, &from);
}

/* What kind of flow it is: to a backend of which an answer meets a program, or through the stack. */
static __always_inline void own_route(const struct packet *p, struct action *a, bool is_here)
{
	struct addr to = a->to.daddr; /* as in ct_known */

	a->to.flags = (a->to.flags & CT_GUARDED) | CT_NODE;
	if (!is_here || bpf_map_lookup_elem(&pods, &to)) {
		a->to.flags |= CT_POD;
		return;
	}
	a->to.flags |= CT_STACK;
	a->to.saddr = p->flow.daddr;
}

/* Points a packet at a backend, if it is to a service. */
static __always_inline void own_target(const struct packet *p, struct action *a)
{
	struct svc_key key = { .addr = p->flow.daddr, .port = p->flow.dport, .proto = p->flow.proto };
	struct svc *svc = bpf_map_lookup_elem(&svcs, &key);
	bool is_here;

	if (!svc || !own_begins(p, svc))
		return;
	is_here = first_point(p, svc, a, true);
	if (a->verdict != VERDICT_REWRITE)
		return;
	own_route(p, a, is_here);
	inside_use(INSIDE_NODE);
}

/* Has a packet come in by the device that it leaves by. */
static __always_inline int own_enter(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return TC_ACT_SHOT;
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}
