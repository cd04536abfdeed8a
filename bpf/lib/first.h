/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what becomes of the first packet of a flow: its service, its backend, and the claims on both
 * of its rows. */
#pragma once

#include "action.h"
#include "affinity.h"
#include "ct.h"
#include "event.h"
#include "hosted.h"
#include "number.h"
#include "option.h"
#include "ranges.h"
#include "route.h"

/* So many ports are tried towards a backend. They are drawn by a hash, so with nine of ten in use one flow in
 * thirty finds none. */
#define SNAT_TRIES 32

/* A row for the way back, which undoes the one for the way there. It has to be finished. Its route is in the other
 * one for the moment. */
static __always_inline void first_reply(const struct packet *p, const struct ct_entry *there, struct ct_entry *row)
{
	*row = (struct ct_entry) {
		.saddr = p->flow.daddr,
		.daddr = p->flow.saddr,
		.sport = p->flow.dport,
		.dport = p->flow.sport,
		.ifindex = there->ifindex,
		.flags = CT_REPLY | there->flags,
		.seen = ct_now(),
	};
	__builtin_memcpy(row->dmac, there->dmac, sizeof(row->dmac));
	__builtin_memcpy(row->smac, there->smac, sizeof(row->smac));
}

/* Draws ports for a reply until one is free, and claims it. The function is not static, so the verifier walks it
 * once and not for every way that leads here; and it makes its rows itself, since Linux 6.1 gives maps nothing from
 * the stack of a caller that it does not know. */
__noinline int first_port(const struct packet *p, struct ct_entry *there)
{
	__u32 ports = cfg.snat_last - cfg.snat_first + 1;
	struct ct_entry row;
	struct flow reply;
	__u64 hash;

	if (!p || !there)
		return false;
	reply = ct_back(&p->flow, there);
	first_reply(p, there, &row);
	hash = ct_hash(&p->flow);
	for (int i = 0; i < SNAT_TRIES; i++) {
		hash = ct_mix(hash, i);
		reply.dport = bpf_htons(cfg.snat_first + (__u32)(hash >> 32) % ports);
		ct_finish(&reply, &row);
		if (!ct_claim(&reply, &row))
			continue;
		there->sport = reply.dport;
		return true;
	}
	return false;
}

/* Asks for the way of the reply, in the row of the request for the moment. */
static __noinline int first_way_back(void *ctx, const struct packet *p, struct ct_entry *there)
{
	route_find(ctx, p, &p->flow.daddr, &p->flow.saddr, there);
	return 0;
}

/* Gives a flow another source port, which is the reply's destination. The source address is there. */
static __always_inline int first_snat(void *ctx, const struct packet *p, struct ct_entry *there)
{
	first_way_back(ctx, p, there);
	return first_port(p, there) ? REASON_NONE : REASON_NO_PORT;
}

/* Claims the reply's flow as it is. */
static __noinline int first_claim(void *ctx, const struct packet *p, const struct ct_entry *there)
{
	struct flow reply = ct_back(&p->flow, there);
	struct ct_entry back;

	first_reply(p, there, &back);
	route_find(ctx, p, &p->flow.daddr, &p->flow.saddr, &back);
	ct_finish(&reply, &back);
	return ct_claim(&reply, &back);
}

static __always_inline struct svc *first_frontend(const struct packet *p)
{
	struct svc_key key = { .addr = p->flow.daddr, .port = p->flow.dport, .proto = p->flow.proto };
	struct svc *svc = bpf_map_lookup_elem(&svcs, &key);
	struct node_addr *own;

	if (svc)
		return svc;
	own = bpf_map_lookup_elem(&node_addrs, &key.addr);
	if (!own)
		return NULL;
	key.addr = addr_any(&key.addr);
	svc = bpf_map_lookup_elem(&svcs, &key);
	return svc && svc->kind == SVC_NODE_PORT && !(own->flags & NODE_ADDR_PORTS) ? NULL : svc;
}

/* The scope that applies. A pod's packet may come this way too, when its pod is no client of the socket programs;
 * to an external address it would be due every backend, whatever the external policy says, once pods are known. */
static __always_inline __u32 first_scope(const struct service *service, const struct svc *svc)
{
	if (svc->kind == SVC_CLUSTER_IP)
		return lb_inside_scope(service, svc->kind);
	return lb_outside_scope(service);
}

static __always_inline enum reason first_backend(const struct packet *p, const struct svc *svc,
						 struct choice *choice)
{
	__u32 index = svc->service;
	struct service *service = bpf_map_lookup_elem(&services, &index);
	struct affinity_key key = { .client = p->flow.saddr, .service = index };
	enum affinity_state state = AFFINITY_NONE;
	enum reason reason;
	__u32 scope;

	if (!service)
		return REASON_BAD_TABLE;
	if (svc->kind == SVC_LOAD_BALANCER && !ranges_allow(service, index, &p->flow.saddr))
		return REASON_SOURCE_RANGE;
	scope = first_scope(service, svc);
	choice->direct = option_mode(p, service->flags & SERVICE_DIRECT);
	if (service->affinity_seconds)
		state = affinity_find(&key, service, scope, choice);
	if (state == AFFINITY_HOLDS)
		return REASON_NONE;
	reason = lb_select(service, index, scope, number_of(&p->flow, service, state), choice);
	if (reason == REASON_NONE && service->affinity_seconds)
		affinity_remember(&key, choice);
	return reason;
}

/* Who is refused is told so, unless there are backends that only the policy keeps from here: then the client or its
 * load balancer tries another node, as kube-proxy has it. */
static __always_inline enum answer first_refusal(const struct packet *p, __u32 index)
{
	struct service *service = bpf_map_lookup_elem(&services, &index);

	if (!service || word_len(*(volatile __u64 *)&service->words[SCOPE_ALL]))
		return ANSWER_NONE;
	return p->flow.proto == IPPROTO_TCP ? ANSWER_RESET : ANSWER_UNREACHABLE;
}

/* Points the first packet of a flow at a backend, or leaves it if it is none of ours. */
static __noinline int first_target(const struct packet *p, struct action *a)
{
	struct svc *svc = first_frontend(p);
	struct choice choice = {};
	enum reason reason;

	if (p->is_unwrapped)
		return hosted_target(p, svc, a);
	if (!svc)
		return 0;
	if (svc->kind == SVC_CLUSTER_IP && !cfg.external_clusterip)
		return action_drop(a, REASON_CLUSTER_IP);
	if (p->tcp_flags & TCP_RST) /* of a flow that nobody knows any more */
		return 0;
	reason = first_backend(p, svc, &choice);
	if (reason == REASON_NO_BACKEND)
		a->answer = first_refusal(p, svc->service);
	if (reason != REASON_NONE || !choice.backend)
		return action_drop(a, reason);
	a->verdict = VERDICT_REWRITE;
	a->to = (struct ct_entry) {
		.saddr = p->flow.saddr,
		.daddr = choice.backend->addr,
		.sport = p->flow.sport,
		.dport = choice.backend->port,
		.flags = (svc->kind == SVC_LOAD_BALANCER ? CT_GUARDED : 0) |
			 (choice.backend->flags & BACKEND_LOCAL ? CT_STACK : choice.direct),
	};
	return 0;
}

/* Makes the row of a flow whose reply has its own. */
static __noinline int first_enter(void *ctx, const struct packet *p, struct action *a)
{
	route_find(ctx, p, &a->to.saddr, &a->to.daddr, &a->to);
	ct_finish(&p->flow, &a->to);
	a->to.seen = packet_shakes_hands(p) ? 0 : ct_now();
	if (bpf_map_update_elem(&ct_half, &p->flow, &a->to, BPF_NOEXIST))
		return bpf_map_update_elem(&ct_half, &p->flow, &a->to, BPF_ANY);
	turnover_made(LRU_CT_HALF);
	return 0;
}

/* Gives a flow to a backend on another node this node's address, so that its replies pass here. One that is read
 * while it is written is a mix, and nobody's. */
static __noinline int first_masquerade(const struct packet *p, struct ct_entry *there)
{
	__u32 family = p->is_v4 ? 0 : 1;
	struct addr *own = bpf_map_lookup_elem(&snat_addrs, &family);

	if (!own)
		return REASON_NO_ADDRESS;
	there->saddr = *own;
	return bpf_map_lookup_elem(&node_addrs, &there->saddr) ? REASON_NONE : REASON_NO_ADDRESS;
}

/* A connection that begins. */
static __always_inline bool first_is_syn(const struct packet *p)
{
	return (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
}

/* Whether a packet that nothing is known of begins its flow, as far as it says so itself. */
static __always_inline bool first_is_begun(const struct packet *p)
{
	return first_is_syn(p) || !packet_shakes_hands(p);
}

/* Whether another packet has established the flow while this one looked for its rows, of which it then takes the
 * new one. Before a second packet there is nothing to establish. */
static __noinline int first_is_late(const struct packet *p, struct action *a)
{
	bool torn = false;

	if (first_is_syn(p))
		return false;
	if (ct_find(&ct, &p->flow, &a->to, &torn))
		return true;
	if (torn)
		action_drop(a, REASON_FLOW_RACE);
	return torn;
}

/* How far the client of a flow is that its backend answers itself, after a packet. In CT_ANSWERED that is the first
 * one. XDP may leave a packet to tc after this, so twice has to be the same as once: what begins a connection ends
 * none. */
static __always_inline __u8 first_direct_state(const struct packet *p, __u8 state)
{
	if (p->tcp_flags & TCP_RST)
		return CT_RESET;
	if (first_is_syn(p))
		return state == CT_ANSWERED ? CT_NEW : state;
	return p->tcp_flags & TCP_FIN || state == CT_CLOSING ? CT_CLOSING : CT_OPEN;
}

/* Makes the one row of a flow that its backend answers itself, see direct.h. It may be in the middle of the flow.
 */
static __noinline int first_direct(void *ctx, const struct packet *p, struct action *a)
{
	int reason = option_is_mode(a) ? REASON_NONE : first_masquerade(p, &a->to);

	if (reason != REASON_NONE)
		return action_drop(a, reason);
	route_find(ctx, p, &a->to.saddr, &a->to.daddr, &a->to);
	ct_finish(&p->flow, &a->to);
	a->to.seen = ct_now();
	if (!option_is_mode(a)) {
		a->to.addr_diff = a->to.seen;
		a->to.seal = ct_seal(&p->flow, &a->to);
	}
	a->to.state = first_direct_state(p, CT_ANSWERED);
	a->is_first = first_is_begun(p);
	if (route_is_elsewhere(p, &a->to))
		a->to.state = CT_ANSWERED;
	if (bpf_map_update_elem(&ct_half, &p->flow, &a->to, BPF_NOEXIST))
		return bpf_map_update_elem(&ct_half, &p->flow, &a->to, BPF_ANY);
	turnover_made(LRU_CT_HALF);
	return 0;
}

/* The first packet of a flow; what another node forwarded is not done yet then, see back.h. From one frame to the
 * next, since the frames of nested calls share 512 bytes. A backend on this node sees the client's own address; and
 * its own port, unless a flow between the two has that already. */
static __always_inline void first_packet(void *ctx, const struct packet *p, struct action *a)
{
	int reason = REASON_NONE;
	bool local;

	first_target(p, a);
	if (a->verdict != VERDICT_REWRITE || first_is_late(p, a))
		return;
	if (p->is_unwrapped) {
		a->is_first = true;
		return;
	}
	if (a->to.flags & CT_DIRECT) {
		first_direct(ctx, p, a);
		event_tell(p, a, p->bounces ? HOOK_XDP : HOOK_TC, 0);
		return;
	}
	local = a->to.flags & CT_STACK;
	if (!local)
		reason = first_masquerade(p, &a->to);
	if (reason == REASON_NONE && (!local || !first_claim(ctx, p, &a->to)))
		reason = first_snat(ctx, p, &a->to);
	if (reason != REASON_NONE) {
		action_drop(a, reason);
		return;
	}
	first_enter(ctx, p, a);
	event_tell(p, a, p->bounces ? HOOK_XDP : HOOK_TC, 0);
}
