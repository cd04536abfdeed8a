/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how policies apply to the packets of pods: where a flow begins they decide, and its
 * row remembers what they decided until they change. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "count.h"
#include "event.h"
#include "flow.h"
#include "flow_hash.h"
#include "fragment.h"
#include "maps.h"
#include "packet.h"
#include "policy.h"
#include "policy_fastpath.h"
#include "policy_maps.h"
#include "policy_share.h"
#include "reason.h"
#include "types.h"

/* Which pod's policies a packet is asked about, and where it is seen. */
enum policy_flow_way {
	POLICY_FLOW_TO_POD,   /* as the pod receives it */
	POLICY_FLOW_FROM_POD, /* as the pod sends it, after translation */
	/* as the pod sends it to a service whose backend it is itself: the packet has the node's
	 * address */
	POLICY_FLOW_ITSELF,
	POLICY_FLOW_TO_NEXT, /* as a pod receives it from another one of its node */
	/* with POLICY_FLOW_TO_NEXT: policy_flow_admits was just asked about its sender */
	POLICY_FLOW_IS_READ = 8,
};

/* A packet, as the policies of one pod see it. */
struct policy_packet {
	struct flow flow; /* the key of its row */
	struct addr peer; /* the other end of the packet itself */
	struct policy_question question;
	struct policy_subject subject;
	__u32 version;
	__u32 adopts;	 /* see struct policy_pod */
	__u32 answers;	 /* likewise */
	__u32 direction; /* of the packet, enum policy_direction */
	__u8 tcp_flags;
	bool shakes_hands; /* TCP or SCTP */
	bool is_syn;
	bool is_error; /* about a packet of the flow, which it neither begins nor extends, sent by or to `peer` */
	bool by_node;  /* sent by a process of the pod's node */
	bool itself;   /* the pod is both client and backend */
	__u8 pad[2];
};

/* The packet at hand. The stack has no room for it. */
struct policy_work {
	struct packet packet;
	struct packet quote; /* by an ICMP error */
	struct policy_packet as;
	struct action report;
	bool is_read; /* the packet that the sender's policies were asked about has ports, which `packet` has */
	__u8 pad[7];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct policy_work);
} policy_work SEC(".maps");

static __always_inline __u64 policy_flow_tag(const struct flow *flow, __u32 generation, __u32 flags)
{
	return flow_hash_mix(flow_hash_sum(flow), (__u64)generation << 8 | (__u8)flags);
}

/* Asks what policies say about the flow, if it was begun in this direction. */
static __always_inline int policy_flow_ask(struct policy_packet *c, __u32 direction)
{
	bool to_other = direction == POLICY_EGRESS && !c->itself;

	c->question.peer = c->itself ? c->flow.saddr : c->flow.daddr;
	c->question.direction = direction;
	c->question.port = policy_port_key(c->flow.proto, to_other ? c->flow.dport : c->flow.sport);
	return policy_decide(&c->subject, &c->question, c->version);
}

/* Asks about an error that concerns no flow known here. */
static __always_inline int policy_flow_ask_error(struct policy_packet *c)
{
	c->question.peer = c->peer;
	c->question.direction = c->direction;
	c->question.port = POLICY_OTHER;
	return policy_decide(&c->subject, &c->question, c->version);
}

/* Asks about a flow that a packet begins; by a service to itself a pod must be allowed both directions. */
static __always_inline int policy_flow_begin(struct policy_packet *c, __u32 direction)
{
	int verdict;

	if (c->by_node)
		return POLICY_ACCEPTED | POLICY_RULE_NODE;
	verdict = policy_flow_ask(c, direction);
	return c->itself && verdict & POLICY_ACCEPTED ? policy_flow_ask(c, POLICY_EGRESS) : verdict;
}

/* The direction in which a flow probably began of which only a later packet was seen: to the lower port.
 * Clients have higher ports than servers. */
static __always_inline __u32 policy_flow_origin(const struct policy_packet *c)
{
	__u16 own = bpf_ntohs(c->flow.sport), other = bpf_ntohs(c->flow.dport);

	if (own == other)
		return c->direction;
	return own < other ? POLICY_INGRESS : POLICY_EGRESS;
}

static __always_inline bool policy_flow_until(__u32 tick)
{
	return tick && (__s32)(tick - flow_now()) >= 0;
}

/* Decides about a packet that has no row and need not be the first of its flow. There may be flows from
 * before a policy was about the pod, for a while: these are decided as their first packet would have been.
 * Later, a datagram begins one, and a packet of a connection that nobody opened must be allowed in both
 * directions: so nobody gets by an ACK what he would not get by a SYN. */
static __always_inline int policy_flow_adopt(struct policy_packet *c, __u32 *direction)
{
	bool adopts = policy_flow_until(c->shakes_hands ? c->adopts : c->answers);
	__u32 origin = !c->itself && (adopts || c->shakes_hands) ? policy_flow_origin(c) : c->direction;
	int verdict = policy_flow_begin(c, origin);

	*direction = origin;
	if (!(verdict & POLICY_ACCEPTED) || origin == c->direction || adopts)
		return verdict;
	return policy_flow_ask(c, c->direction);
}

/* Writes the row of a flow. */
static __always_inline void policy_flow_write(void *map, const struct policy_packet *c, __u32 flags, __u32 ends,
					      __u32 denied, __u32 owner)
{
	struct policy_flow row = {
		.tag = policy_flow_tag(&c->flow, c->subject.generation, flags),
		.generation = c->subject.generation,
		.seen = flow_now(),
		.denied = denied,
		.flags = flags,
		.ends = ends,
		.owner = owner,
	};

	bpf_map_update_elem(map, &c->flow, &row, BPF_ANY);
}

/* Notes what a packet says about its flow, once a tick and at its end. */
static __always_inline void policy_flow_touch(struct policy_flow *row, const struct policy_packet *c)
{
	__u32 ends = row->ends, now = flow_now();

	if (c->is_error)
		return;
	if (c->shakes_hands) {
		ends &= c->is_syn ? 0 : ~(POLICY_RST << c->direction);
		if (c->tcp_flags & TCP_RST)
			ends |= POLICY_RST << c->direction;
		if (c->tcp_flags & TCP_FIN)
			ends |= POLICY_FIN << c->direction;
		if (ends != row->ends)
			row->ends = ends;
	}
	if (row->seen != now && !c->is_syn)
		row->seen = now;
}

/* Moves the row of a flow to where nothing evicts it, once the other end has sent something too. False:
 * there its pod, which has the device with this index, has no room left. */
static __noinline bool policy_flow_promote(const struct policy_packet *c, __u32 owner)
{
	struct policy_flow row, *known = bpf_map_lookup_elem(&policy_pending, &c->flow);

	if (!known)
		return true;
	row = *known;
	row.owner = owner;
	if (row.tag != policy_flow_tag(&c->flow, row.generation, row.flags))
		return true;
	if (!policy_share_insert(&c->flow, &row))
		return false;
	bpf_map_delete_elem(&policy_pending, &c->flow);
	return true;
}

/* Decides again about a flow, in the direction in which it began: in both, if a pod began it to itself. */
static __always_inline int policy_flow_again(void *map, struct policy_packet *c, const struct policy_flow *row,
					     __u32 flags)
{
	__u32 ends = row->ends, denied = flags & POLICY_FLOW_DENIED ? row->denied : flow_now();
	__u32 owner = *(volatile __u32 *)&row->owner;
	int verdict = POLICY_ACCEPTED | POLICY_RULE_NODE;

	if (flags & POLICY_FLOW_NODE && !addr_is_local6(&c->flow.daddr) && !addr_is_any(&c->flow.daddr) &&
	    !bpf_map_lookup_elem(&node_addrs, &c->flow.daddr))
		flags &= ~POLICY_FLOW_NODE; /* somebody else may have the address by now */
	if (!(flags & POLICY_FLOW_NODE))
		verdict = policy_flow_ask(c, flags & POLICY_FLOW_EGRESS ? POLICY_EGRESS : POLICY_INGRESS);
	if (c->itself && verdict & POLICY_ACCEPTED)
		verdict = policy_flow_ask(c, POLICY_EGRESS); /* as in policy_flow_begin */
	flags &= ~POLICY_FLOW_DENIED;
	if (!(verdict & POLICY_ACCEPTED) && !(c->subject.flags & POLICY_AUDIT))
		flags |= POLICY_FLOW_DENIED;
	if (!c->is_error)
		policy_flow_write(map, c, flags, ends, denied, owner);
	return verdict;
}

enum {
	POLICY_FLOW_NEW = 0x7fffffff,	   /* no verdict: the packet has no row, or begins another flow */
	POLICY_FLOW_ANSWERED = 0x7ffffffe, /* accepted, and now both ends have sent something */
	/* for so many ticks after a denial, what comes from the other end may be an answer to what was
	 * accepted before it */
	POLICY_FLOW_ANSWERS = 10,
};

/* Decides by a row. What began in one direction is over when the same ports are opened in the other. After a
 * denial a datagram in the other begins a flow, but not right away: answers to what came before would make
 * all that follows look like answers to them. */
static __always_inline int policy_flow_by(void *map, struct policy_packet *c, struct policy_flow *row)
{
	__u32 flags = *(volatile __u16 *)&row->flags, generation = *(volatile __u32 *)&row->generation;
	__u64 tag = *(volatile __u64 *)&row->tag;
	bool turned = !(flags & POLICY_FLOW_EGRESS) != !(c->direction == POLICY_EGRESS);

	if (tag != policy_flow_tag(&c->flow, generation, flags))
		return POLICY_FLOW_NEW;
	if (turned && c->is_syn)
		return POLICY_FLOW_NEW;
	if (turned && !c->is_error && flags & POLICY_FLOW_DENIED && !c->shakes_hands)
		return policy_flow_until(row->denied + POLICY_FLOW_ANSWERS) ? policy_flow_ask(c, c->direction)
									    : POLICY_FLOW_NEW;
	if (generation != c->subject.generation || flags & POLICY_FLOW_DENIED)
		return policy_flow_again(map, c, row, flags);
	policy_flow_touch(row, c);
	/* what only answers a SYN proves nothing: the row would take its place in the pod's share for a day */
	if (turned && map == &policy_pending && !c->is_error && !(c->tcp_flags & (TCP_SYN | TCP_RST)))
		return POLICY_FLOW_ANSWERED;
	return POLICY_ACCEPTED | POLICY_RULE_NONE;
}

/* Decides about the first packet of a flow that is seen here. */
static __noinline int policy_flow_new(struct policy_packet *c)
{
	__u32 direction = c->direction, flags = c->by_node ? POLICY_FLOW_NODE : 0;
	int verdict;

	if (c->is_syn || c->by_node)
		verdict = policy_flow_begin(c, direction);
	else
		verdict = policy_flow_adopt(c, &direction);
	/* an answer to what came before a policy: of no further one */
	if (direction != c->direction && !c->shakes_hands)
		return verdict;
	if (direction == POLICY_EGRESS)
		flags |= POLICY_FLOW_EGRESS;
	if (verdict & POLICY_ACCEPTED || c->subject.flags & POLICY_AUDIT) {
		policy_share_delete(&c->flow); /* a flow by the same ports in the other direction */
		policy_flow_write(&policy_pending, c, flags, 0, 0, 0);
	}
	return verdict;
}

/* Decides by the row of a flow, if there is one. */
static __noinline int policy_flow_known(struct policy_packet *c)
{
	int verdict = POLICY_FLOW_NEW;
	struct policy_flow *row;

	row = bpf_map_lookup_elem(&policy_flows, &c->flow);
	if (row)
		verdict = policy_flow_by(&policy_flows, c, row);
	if (verdict != POLICY_FLOW_NEW)
		return verdict;
	row = bpf_map_lookup_elem(&policy_pending, &c->flow);
	if (row)
		verdict = policy_flow_by(&policy_pending, c, row);
	return verdict;
}

/* Gives an echo its identifier, which takes the place of the requester's port, as in masquerade.h. */
static __always_inline bool policy_flow_read_echo(struct __sk_buff *skb, const struct packet *p, struct flow *flow)
{
	struct icmp icmp;
	__be16 id;

	if (bpf_skb_load_bytes(skb, p->l4, &icmp, sizeof(icmp)))
		return false;
	__builtin_memcpy(&id, &icmp.rest, sizeof(id));
	if (icmp.type == (p->is_v4 ? ICMP4_ECHO : ICMP6_ECHO))
		flow_set_ports(flow, id, 0, flow->proto);
	else if (icmp.type == (p->is_v4 ? ICMP4_ECHO_REPLY : ICMP6_ECHO_REPLY))
		flow_set_ports(flow, 0, id, flow->proto);
	return true;
}

/* Reads the flow of the packet that an error quotes. False: it quotes none that has been sent to where
 * the error comes from. */
static __noinline bool policy_flow_read_quote(struct __sk_buff *skb, struct policy_work *work)
{
	struct packet *p = &work->packet, *quote = &work->quote;
	int parsed;

	if (bpf_skb_pull_data(skb, skb->len < READ_PULL ? skb->len : READ_PULL))
		return false;
	parsed = packet_quote(quote, p, (void *)(long)skb->data, (void *)(long)skb->data_end);
	if (parsed != PARSED_FLOW && parsed != PARSED_CUT && parsed != PARSED_ICMP)
		return false;
	if (!addr_equal(&quote->flow.saddr, &p->flow.daddr) ||
	    (parsed == PARSED_ICMP && !policy_flow_read_echo(skb, quote, &quote->flow)))
		return false;
	flow_turn(&p->flow, &quote->flow);
	return true;
}

/* Gives a later fragment the flow of the first. Not inlined, to have a stack frame of its own. */
static __noinline bool policy_flow_read_later(struct packet *p)
{
	return fragment_complete(p);
}

/* Reads which flow a packet belongs to, in the packet's own direction. False: it does not tell. */
static __always_inline bool policy_flow_read(struct __sk_buff *skb, struct policy_work *work, enum parsed parsed)
{
	struct policy_packet *c = &work->as;
	struct packet *p = &work->packet;

	switch (parsed) {
	case PARSED_FLOW:
		if (p->is_fragment && fragment_is_cut(skb, p))
			return false;
		break;
	case PARSED_ICMP:
		if (policy_flow_read_quote(skb, work))
			c->is_error = true;
		else if (!policy_flow_read_echo(skb, p, &p->flow))
			return false;
		break;
	case PARSED_LATER:
		if (!policy_flow_read_later(p))
			return false;
		break;
	case PARSED_OTHER:
		/* a packet of IPv6 behind more extension headers than are read may be anything */
		if (!p->is_v4 && packet_is_extension(p->flow.proto))
			return false;
		break;
	default:
		return false;
	}
	c->shakes_hands = packet_shakes_hands(p);
	/* a later fragment has no flags, and neither begins nor ends anything */
	c->is_syn = parsed == PARSED_FLOW && packet_is_syn(p);
	c->tcp_flags = p->tcp_flags;
	return true;
}

/* Reports whether a process of the pod's node sent a packet, and the node does not just send it on. */
static __always_inline bool policy_flow_is_by_node(struct __sk_buff *skb, const struct packet *p)
{
	struct addr from = p->flow.saddr; /* as in cluster_pod_at */

	return !skb->ingress_ifindex && (bpf_map_lookup_elem(&node_addrs, &from) ||
					 (!p->is_v4 && (addr_is_local6(&from) || addr_is_any(&from))));
}

/* Reports whether a pod speaks with its link: without neighbor discovery it would reach nobody. What has
 * another destination would be forwarded. Not inlined, to have a stack frame of its own. */
static __noinline bool policy_flow_is_link(struct __sk_buff *skb, const struct packet *p)
{
	struct addr to = p->flow.daddr; /* as in cluster_pod_at */
	struct icmp icmp;

	return !p->is_v4 && !bpf_skb_load_bytes(skb, p->l4, &icmp, sizeof(icmp)) && icmp.type >= ICMP6_LINK_FIRST &&
	       icmp.type <= ICMP6_LINK_LAST && (addr_stays6(&to) || bpf_map_lookup_elem(&node_addrs, &to));
}

/* Counts what policies deny, and reports it. */
static __noinline void policy_flow_report(struct __sk_buff *skb, struct policy_work *work, __u32 verdict)
{
	const struct policy_packet *c = &work->as;
	struct policy_denial denial = { .rule = verdict & ~POLICY_ACCEPTED, .direction = c->direction };
	bool audits = c->subject.flags & POLICY_AUDIT;
	struct action *a = &work->report;
	__u64 one = 1, *count_of = bpf_map_lookup_elem(&policy_denials, &denial);

	if (count_of)
		__sync_fetch_and_add(count_of, 1);
	else
		bpf_map_update_elem(&policy_denials, &denial, &one, BPF_ANY);
	*a = (struct action) {
		.verdict = audits ? VERDICT_PASS : VERDICT_DROP,
		.reason = audits ? REASON_POLICY_AUDIT : REASON_POLICY,
		.rule = denial.rule,
	};
	count(HOOK_POD, a->reason, skb->len);
	event_tell(&work->packet, a, c->direction == POLICY_INGRESS ? HOOK_POD | EVENT_LEAVING : HOOK_POD,
		   skb->len);
}

/* Counts a packet of a flow whose pod has no room left for it, and reports it. */
static __noinline void policy_flow_report_full(struct __sk_buff *skb, struct policy_work *work)
{
	struct action *a = &work->report;

	*a = (struct action) { .verdict = VERDICT_PASS, .reason = REASON_FLOWS_FULL };
	count(HOOK_POD, a->reason, skb->len);
	event_tell(&work->packet, a, work->as.direction == POLICY_INGRESS ? HOOK_POD | EVENT_LEAVING : HOOK_POD,
		   skb->len);
}

/* Decides about an IP packet that was read, of the pod at the device with this index. */
static __always_inline int policy_flow_verdict(struct __sk_buff *skb, struct policy_work *work, enum parsed parsed,
					       __u32 ifindex)
{
	struct policy_packet *c = &work->as;
	struct flow *flow = &work->packet.flow;
	int verdict;

	c->peer = c->direction == POLICY_EGRESS ? flow->daddr : flow->saddr;
	if (!policy_flow_read(skb, work, parsed))
		return POLICY_RULE_PACKET;
	if (c->direction == POLICY_EGRESS)
		c->flow = *flow;
	else
		flow_turn(&c->flow, flow);
	verdict = policy_flow_known(c);
	if (verdict < POLICY_FLOW_ANSWERED)
		return verdict;
	if (verdict == POLICY_FLOW_ANSWERED) {
		if (!policy_flow_promote(c, ifindex))
			policy_flow_report_full(skb, work);
		return POLICY_ACCEPTED | POLICY_RULE_NONE;
	}
	return c->is_error ? policy_flow_ask_error(c) : policy_flow_new(c);
}

/* Reports whether policies let a packet of a pod that has POD_POLICY pass, which is seen on the way to or
 * from the device with this index. Drops are counted. */
__noinline int policy_flow_admits(struct __sk_buff *skb, __u32 ifindex, __u32 way)
{
	struct policy_pod *pod = bpf_map_lookup_elem(&policy_pods, &ifindex);
	__u32 zero = 0, version = policy_maps_version();
	struct policy_work *work = bpf_map_lookup_elem(&policy_work, &zero);
	int verdict = POLICY_RULE_UNKNOWN;
	enum parsed parsed = PARSED_FLOW;
	struct policy_packet *c;
	bool is_read;

	if (!work)
		return false;
	is_read = work->is_read && way & POLICY_FLOW_IS_READ;
	work->is_read = false;
	if (pod && !pod->subject[version % POLICY_VERSIONS].subject)
		return true;
	if (!is_read)
		parsed = packet_read(skb, &work->packet, 0);
	if (!work->packet.l3) /* ARP, for example; the check at the pod's device drops what is not IP */
		return true;
	if (way == POLICY_FLOW_FROM_POD && parsed == PARSED_ICMP && policy_flow_is_link(skb, &work->packet))
		return true;
	work->is_read = way == POLICY_FLOW_FROM_POD && parsed == PARSED_FLOW;
	c = &work->as;
	__builtin_memset(c, 0, sizeof(*c));
	c->version = version;
	c->direction = way == POLICY_FLOW_FROM_POD ? POLICY_EGRESS : POLICY_INGRESS;
	c->itself = way == POLICY_FLOW_ITSELF;
	c->by_node = way == POLICY_FLOW_TO_POD && policy_flow_is_by_node(skb, &work->packet);
	if (!pod && c->by_node)
		return true;
	if (pod) {
		c->subject = pod->subject[version % POLICY_VERSIONS];
		c->adopts = pod->adopts;
		c->answers = pod->answers;
		verdict = policy_flow_verdict(skb, work, parsed, ifindex);
	}
	if (verdict & POLICY_ACCEPTED && work->packet.is_fragment && !fragment_store(&work->packet))
		verdict = POLICY_RULE_PACKET;
	if (verdict & POLICY_ACCEPTED) {
		if (is_read && verdict == (int)(POLICY_ACCEPTED | POLICY_RULE_NONE))
			policy_fastpath_note(&work->packet, c->subject.generation);
		return true;
	}
	policy_flow_report(skb, work, verdict);
	return c->subject.flags & POLICY_AUDIT;
}
