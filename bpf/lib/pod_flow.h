/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how packets of flows are recognized that a pod began by sending packets to a service. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/types.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "cluster.h"
#include "flow.h"
#include "fragment.h"
#include "maps.h"
#include "packet.h"
#include "types.h"

/* How a packet is recognized as part of a flow that a pod began by sending packets to a service, and
 * not through a socket that a socket program pointed at a backend (FLOW_POD).
 *
 * Such a flow is translated only at its client's device: requests as they leave the client, replies as
 * they enter it. Everything between, the stack, other programs and other nodes, sees the pod and
 * its backend. */

/* Reads the ports of a packet whose addresses and protocol are known. False: they are not where
 * nearly all packets have them. */
static __always_inline bool pod_flow_read(struct __sk_buff *skb, struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct iphdr *ip4 = data + sizeof(struct ethhdr);
	struct ipv6hdr *ip6 = (void *)ip4;
	struct udphdr *udp = p->is_v4 ? (void *)(ip4 + 1) : (void *)(ip6 + 1);

	if ((void *)(udp + 1) > end || (p->flow.proto != IPPROTO_TCP && p->flow.proto != IPPROTO_UDP))
		return false;
	if (p->is_v4 ? *(__u8 *)ip4 != 0x45 || ip4->frag_off & bpf_htons(IP4_MORE | IP4_OFFSET)
		     : ip6->nexthdr != p->flow.proto)
		return false;
	flow_set_ports(&p->flow, udp->source, udp->dest, p->flow.proto);
	return true;
}

/* Reports whether a packet may begin a flow. Of TCP only a SYN does, so that packets of connections
 * that go elsewhere cost nothing more. */
static __always_inline bool pod_flow_begins(struct __sk_buff *skb, const struct packet *p)
{
	__u32 l4 = sizeof(struct ethhdr) + (p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	struct tcphdr *tcp = (void *)(long)skb->data + l4;

	if (p->flow.proto != IPPROTO_TCP)
		return true;
	return (void *)(tcp + 1) <= (void *)(long)skb->data_end && tcp->syn && !tcp->ack;
}

/* Reports whether a flow has a row, in either direction. The row may become another flow's before
 * it is read; then this flow no longer has one. Not static, to have a stack frame of its own. */
__noinline int pod_flow_is_known(const struct flow *flow)
{
	struct ct_entry *row;
	struct flow key; /* as in flow_known */

	if (!flow)
		return false;
	key = *flow;
	row = flow_table_lookup(&key);
	if (!row)
		row = bpf_map_lookup_elem(&ct_pending, &key);
	return row && (flow_is_of_pod(row) || flow_is_of_host(row));
}

/* The same for a packet without ports or with them in an unusual place. Any ICMP packet may be. */
__noinline int pod_flow_is_odd(struct __sk_buff *skb, struct packet *p)
{
	if (!p)
		return false;
	switch (packet_read(skb, p, 0)) {
	case PARSED_FLOW:
		return pod_flow_is_known(&p->flow);
	case PARSED_LATER:
		return fragment_complete(p) && pod_flow_is_known(&p->flow);
	case PARSED_ICMP:
		return true;
	}
	return false;
}

/* Reports whether a packet of a pod answers what this node sent to a service by packets, so that it is
 * translated as the pod sends it. Not inlined, to have a stack frame of its own. */
static __noinline int pod_flow_answers_host(struct __sk_buff *skb, struct packet *p)
{
	struct ct_entry row;
	int parsed;

	if (!p)
		return false;
	parsed = packet_read(skb, p, 0);
	if (parsed != PARSED_FLOW && !(parsed == PARSED_LATER && fragment_complete(p)))
		return false;
	return flow_known(&p->flow, &row) == CT_KNOWN && flow_is_of_host(&row) && row.kind & FLOW_REPLY;
}

/* Reports whether a packet for a pod replies to what the pod sent to a service. */
static __always_inline bool pod_flow_is_reply(struct __sk_buff *skb, struct packet *p)
{
	if (!cluster_packet_clients_have(PACKET_CLIENT_POD))
		return false;
	return pod_flow_read(skb, p) ? pod_flow_is_known(&p->flow) : pod_flow_is_odd(skb, p);
}
