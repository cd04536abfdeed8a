/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how pods of this node reach the outside, where their addresses are unknown: their
 * packets get an address of the node as they leave by a device. It is the NAT for incoming flows in
 * reverse: the same rows, ports and proofs, but requests leave and replies come in (FLOW_MASQUERADED).
 *
 * Destinations in the cluster, and those that the agent was told have routes to pods, see the pod's
 * own address. So does a client that contacted a pod first, by the pod's own address: its packets
 * leave rows by which the replies are recognized. Whatever else a pod sends to the outside is
 * masqueraded, also from the middle of a connection whose rows are gone: its first port is drawn by
 * a hash of its ends, so it gets the same port again unless another flow has taken it. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "cluster.h"
#include "config.h"
#include "count.h"
#include "flow.h"
#include "maps.h"
#include "packet.h"
#include "pod_maps.h"
#include "rewrite.h"
#include "seq.h"
#include "types.h"

/* Reports whether a destination has routes to pods. */
static __always_inline bool masquerade_is_native(const struct addr *addr)
{
	struct prefix_key key = { .prefix_len = PREFIX_BITS, .addr = *addr };

	return bpf_map_lookup_elem(&masq_skip, &key);
}

/* Reads the identifier of an echo, which takes the place of the requester's port. False: the packet
 * is not an echo in this direction. */
static __always_inline bool masquerade_reads_echo(struct __sk_buff *skb, struct packet *p, bool leaving)
{
	__u8 type =
		p->is_v4 ? (leaving ? ICMP4_ECHO : ICMP4_ECHO_REPLY) : (leaving ? ICMP6_ECHO : ICMP6_ECHO_REPLY);
	struct icmp icmp;
	__be16 number;

	if (!cfg.masquerade || bpf_skb_load_bytes(skb, p->l4, &icmp, sizeof(icmp)) || icmp.type != type ||
	    icmp.code)
		return false;
	__builtin_memcpy(&number, &icmp.rest, sizeof(number));
	flow_set_ports(&p->flow, leaving ? number : 0, leaving ? 0 : number, p->flow.proto);
	return true;
}

/* Reports whether a packet's addresses require it to be masqueraded. */
static __always_inline bool masquerade_is_due(const struct packet *p)
{
	return cfg.masquerade && cluster_pod_at(&p->flow.saddr) && !masquerade_is_native(&p->flow.daddr);
}

/* Reports whether the node itself sends a packet from a port that has a flow of ours with the same
 * host. The node's sockets use other ports, but netfilter moves a connection to any port if it
 * remembers another one with its own. */
static __always_inline bool masquerade_clashes(struct __sk_buff *skb, const struct packet *p)
{
	__u16 port = bpf_ntohs(p->flow.sport);
	struct flow back = { .saddr = p->flow.daddr, .daddr = p->flow.saddr };

	if (skb->ingress_ifindex || port < cfg.snat_first || port > cfg.snat_last)
		return false;
	flow_set_ports(&back, p->flow.dport, p->flow.sport, p->flow.proto);
	return flow_table_lookup(&back) || bpf_map_lookup_elem(&ct_pending, &back);
}

/* Gives a leaving packet of an unknown flow an address and a port of the node, if that is
 * required. */
static __always_inline void masquerade_target(struct __sk_buff *skb, const struct packet *p, struct action *a)
{
	if (!masquerade_is_due(p) && !(packet_begins_flow(p) && masquerade_clashes(skb, p)))
		return;
	a->verdict = VERDICT_REWRITE;
	__builtin_memset(&a->to, 0, sizeof(a->to));
	a->to.saddr = p->flow.saddr;
	a->to.daddr = p->flow.daddr;
	a->to.sport = p->flow.sport;
	a->to.dport = p->flow.dport;
	a->to.kind = FLOW_MASQUERADED;
}

/* A packet without ports or an identifier cannot share an address: its replies could be for any
 * pod. */
static __always_inline bool masquerade_refuses(const struct packet *p, enum parsed parsed)
{
	return parsed == PARSED_OTHER && p->l3 && masquerade_is_due(p);
}

/* The same for a packet that belongs to no flow: an ICMP error or a later fragment of one that is
 * unknown. A reply to a ping goes: the outside host has sent that to the pod's own address. */
static __always_inline bool masquerade_refuses_stray(struct __sk_buff *skb, const struct packet *p)
{
	__u8 type;

	if (!masquerade_is_due(p))
		return false;
	return !packet_is_icmp(p) || bpf_skb_load_bytes(skb, p->l4, &type, sizeof(type)) ||
	       type != (p->is_v4 ? ICMP4_ECHO_REPLY : ICMP6_ECHO_REPLY);
}

/* Notes that an outside host has sent a datagram to a pod, so that the pod's replies leave
 * unchanged. */
static __always_inline int masquerade_expect(const struct flow *back, struct ct_entry *row)
{
	struct ct_entry *known = bpf_map_lookup_elem(&ct_pending, back);

	if (known) {
		if (known->seen != row->seen)
			known->seen = row->seen;
		return 0;
	}
	flow_finish(back, row);
	if (!bpf_map_update_elem(&ct_pending, back, row, BPF_NOEXIST))
		count_lru_made(LRU_CT_PENDING);
	return 0;
}

/* The same for a connection. It has both rows, and moves to `ct` like any other, where no flood
 * evicts it. `flow` is that of the replies at first. */
static __always_inline int masquerade_admit(const struct packet *p, struct flow *flow, struct ct_entry *row)
{
	flow_finish(flow, row);
	if (!flow_claim(flow, row))
		return 0;
	*flow = p->flow;
	row->saddr = flow->saddr;
	row->daddr = flow->daddr;
	row->sport = flow->sport;
	row->dport = flow->dport;
	row->kind = FLOW_LOCAL;
	row->seen = 0;
	row->seq_hi = p->flow.proto == IPPROTO_TCP && p->seq ? seq_high(p->seq) : 0;
	flow_finish(flow, row);
	if (!bpf_map_update_elem(&ct_pending, flow, row, BPF_NOEXIST))
		count_lru_made(LRU_CT_PENDING);
	return 0;
}

/* Notes that an outside host has sent to a pod by the pod's own address. */
static __noinline int masquerade_note(const struct packet *p)
{
	struct ct_entry row = {
		.saddr = p->flow.daddr,
		.daddr = p->flow.saddr,
		.sport = p->flow.dport,
		.dport = p->flow.sport,
		.kind = FLOW_LOCAL | FLOW_REPLY,
		.seen = flow_now(),
	};
	struct flow back = { .saddr = row.saddr, .daddr = row.daddr };

	flow_set_ports(&back, row.sport, row.dport, p->flow.proto);
	return packet_shakes_hands(p) ? masquerade_admit(p, &back, &row) : masquerade_expect(&back, &row);
}

/* Reports whether an outside host that sends to a pod is to get replies from the pod's address. Whoever
 * poses as a service is not: what the pod sends there is no reply, and has to be balanced. Nor does a
 * RST get a reply; one at a guess would keep a client's next connection from its port. */
static __always_inline bool masquerade_is_host(const struct packet *p)
{
	struct svc_key from = { .addr = p->flow.saddr, .port = p->flow.sport, .proto = p->flow.proto };

	return (p->flow.proto == IPPROTO_UDP || (packet_shakes_hands(p) && !(p->tcp_flags & TCP_RST))) &&
	       !masquerade_is_native(&from.addr) && !bpf_map_lookup_elem(&svcs, &from);
}

/* Reports whether an incoming packet of an unknown flow is for a pod of this node, by its own
 * address. No frontend has a pod's address. */
__noinline int masquerade_is_for_pod(const struct packet *p)
{
	if (!p || !(cfg.bypass || cfg.masquerade) || !cluster_pod_at(&p->flow.daddr))
		return false;
	if (cfg.masquerade && masquerade_is_host(p))
		masquerade_note(p);
	return true;
}

/* Translates an echo as it leaves, or its reply as it comes in. */
__noinline int masquerade_echo(struct __sk_buff *skb, const struct packet *p, const struct action *a)
{
	struct icmp *icmp;
	__u32 check;

	if (!p || !a || !rewrite_fragment((void *)(long)skb->data, (void *)(long)skb->data_end, p, a))
		return false;
	icmp = packet_at((void *)(long)skb->data, (void *)(long)skb->data_end, p->l4, sizeof(*icmp));
	if (!icmp)
		return false;
	*(__be16 *)&icmp->rest = a->to.sport | a->to.dport;
	check = p->l4 + offsetof(struct icmp, check);
	if (!p->is_v4 && bpf_l4_csum_replace(skb, check, 0, a->to.addr_diff, BPF_F_PSEUDO_HDR))
		return false;
	if (bpf_l4_csum_replace(skb, check, 0, a->to.port_diff, 0))
		return false;
	if (!p->is_v4)
		rewrite_skb_sum_ip6(skb, &a->to, false);
	return true;
}
