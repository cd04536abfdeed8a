/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what happens to the first packet of a flow: finding its service, choosing its
 * backend, and claiming both of its rows. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "admit.h"
#include "cluster.h"
#include "config.h"
#include "count.h"
#include "dsr.h"
#include "event.h"
#include "flow.h"
#include "lb.h"
#include "maps.h"
#include "packet.h"
#include "reason.h"
#include "route.h"
#include "seq.h"
#include "snat.h"
#include "types.h"

/* Ports below this are privileged, and servers may require the client to have one. */
#define FIRST_USUAL_PORT 1024

/* Reports whether the backend should see the client's own port, if that is free. Flows of pods to
 * the outside and of the node to services share the node's address with the node's sockets, which
 * may talk to the same backend, so they get none of those sockets' ports. */
static __always_inline bool new_flow_keeps_port(const struct packet *p, const struct ct_entry *there)
{
	if (flow_kind(there) == FLOW_HOST && bpf_ntohs(p->flow.sport) < FIRST_USUAL_PORT)
		return true;
	return !flow_is(there, FLOW_LENDS_PORT);
}

/* Claims a key for the reply. Returns an enum snat_outcome. */
static __always_inline int new_flow_claim_any(void *ctx, const struct packet *p, struct ct_entry *there)
{
	struct flow reply = flow_reverse(&p->flow, there);
	int outcome = SNAT_NONE;
	struct ct_entry row;

	flow_reply_row(&p->flow, there, &row);
	route_find(ctx, p, &row);
	if (new_flow_keeps_port(p, there)) {
		flow_finish(&reply, &row);
		outcome = flow_claim(&reply, &row) ? SNAT_FREE : SNAT_NONE;
	}
	if (!outcome)
		outcome = snat_claim(&p->flow, &reply, &row);
	there->sport = reply.dport;
	return outcome;
}

/* Gives a flow to a backend on another node an address of this node as its source, so that replies
 * pass here. An address that was read while it was being written is a mix of two, which node_addrs
 * does not contain. */
static __always_inline bool new_flow_masquerade(__u32 which, struct ct_entry *there)
{
	struct addr *known = bpf_map_lookup_elem(&snat_addrs, &which);
	struct addr own;

	if (!known)
		return false;
	own = *known;
	if (!bpf_map_lookup_elem(&node_addrs, &own))
		return false;
	there->saddr = own;
	return true;
}

/* Gives a flow that is routed into the tunnel the tunnel's own address, if it has one. A reply to
 * the node's address would bypass the tunnel, with a pod's address as its source, and networks that
 * check sources drop it. */
static __noinline int new_flow_use_tunnel(const struct packet *p, struct ct_entry *there)
{
	__u32 first = 0, *ifindex = bpf_map_lookup_elem(&tunnel, &first);

	if (p && there && ifindex && *ifindex == there->ifindex)
		new_flow_masquerade(p->is_v4 ? SNAT_TUNNEL4 : SNAT_TUNNEL6, there);
	return 0;
}

/* Writes the row of a request over an existing one. Linux 6.1 does not accept map arguments in the
 * stack frame of a caller that it does not know, hence the copies. */
static __always_inline int new_flow_write(const struct packet *p, const struct ct_entry *to)
{
	struct flow flow = p->flow;
	struct ct_entry row = *to;

	if (bpf_map_update_elem(&ct_pending, &flow, &row, BPF_NOEXIST))
		return bpf_map_update_elem(&ct_pending, &flow, &row, BPF_ANY);
	count_lru_made(LRU_CT_PENDING);
	return 0;
}

/* Reports whether the backend should see another source address than the client's. */
static __always_inline bool new_flow_is_masqueraded(const struct ct_entry *there)
{
	return flow_is(there, FLOW_LENDS_PORT) && flow_kind(there) != FLOW_HOST;
}

/* Where a flow begins. */
static __always_inline enum hook new_flow_hook(const struct packet *p, const struct action *a)
{
	if (flow_is_of_pod(&a->to))
		return HOOK_POD;
	return p->bounces ? HOOK_XDP : HOOK_TC;
}

/* The reply to a client that is refused. */
static __always_inline enum reject new_flow_reject(const struct packet *p)
{
	return p->flow.proto == IPPROTO_TCP ? REJECT_RESET : REJECT_UNREACHABLE;
}

/* Refuses a client for whom there is no port. Another node's packet is its client's to that node. */
static __always_inline int new_flow_refuse(const struct packet *p, struct action *a)
{
	if (!p->is_forwarded && !p->is_returned)
		a->reject = new_flow_reject(p);
	return flow_drop(a, REASON_NO_PORT);
}

/* Creates both rows of a flow, that of the reply first. A backend on this node sees the client's
 * own address. */
static __always_inline int new_flow_enter(void *ctx, const struct packet *p, struct action *a)
{
	int outcome;

	if (new_flow_is_masqueraded(&a->to) && !new_flow_masquerade(p->is_v4 ? SNAT_NODE4 : SNAT_NODE6, &a->to))
		return flow_drop(a, REASON_NO_ADDRESS);
	route_find(ctx, p, &a->to);
	if (a->to.ifindex && !route_is_complete(&a->to))
		new_flow_use_tunnel(p, &a->to);
	outcome = new_flow_claim_any(ctx, p, &a->to);
	if (outcome == SNAT_NONE)
		return new_flow_refuse(p, a);
	if (outcome == SNAT_TAKEN)
		count(new_flow_hook(p, a), REASON_PORT_TAKEN, 0);
	flow_finish(&p->flow, &a->to);
	a->to.seen = packet_shakes_hands(p) ? 0 : flow_now();
	a->to.seq_hi = p->flow.proto == IPPROTO_TCP ? seq_high(p->seq) : 0;
	return new_flow_write(p, &a->to);
}

static __always_inline enum reason new_flow_backend(const struct packet *p, const struct svc *svc,
						    struct choice *choice, bool from_pod)
{
	__u32 index = svc->service;
	struct service *service = bpf_map_lookup_elem(&services, &index);
	struct affinity_key key = { .client = p->flow.saddr, .service = index };
	enum affinity_state state = AFFINITY_NONE;
	enum reason reason;
	__u32 scope;

	if (!service)
		return REASON_BAD_TABLE;
	if (svc->kind == SVC_LOAD_BALANCER && !cluster_ranges_allow(service, index, &p->flow.saddr))
		return REASON_SOURCE_RANGE;
	scope = lb_scope(service, svc, from_pod);
	choice->kind = from_pod || p->is_forwarded ? FLOW_REMOTE : dsr_kind(p, service);
	if (service->affinity_seconds)
		state = lb_affinity_find(&key, service, scope, choice);
	if (state == AFFINITY_HOLDS)
		return REASON_NONE;
	reason = lb_select(service, index, scope, lb_hash_of(&p->flow, service, state), choice);
	if (reason == REASON_NONE && service->affinity_seconds)
		lb_affinity_remember(&key, service, choice);
	return reason;
}

/* A refused client gets a reply, unless the service has backends that only the traffic policy
 * excludes here: then silence makes the client or its load balancer try another node, as with
 * kube-proxy. */
static __always_inline enum reject new_flow_refusal(const struct packet *p, __u32 index)
{
	struct service *service = bpf_map_lookup_elem(&services, &index);

	if (!service || lb_word_len(*(volatile __u64 *)&service->words[SCOPE_ALL]))
		return REJECT_NONE;
	return new_flow_reject(p);
}

/* Returns the kind of a flow. A pod keeps its address wherever the backend is, unless it is its
 * own backend: then its reply would not leave it. */
static __always_inline __u8 new_flow_kind(const struct packet *p, const struct svc *svc,
					  const struct choice *choice, bool from_pod)
{
	__u8 ranges = svc->kind == SVC_LOAD_BALANCER ? FLOW_HAS_RANGES : 0;

	if (!from_pod)
		return ranges | (choice->backend->flags & BACKEND_LOCAL ? FLOW_LOCAL : choice->kind);
	return ranges | (addr_equal(&choice->backend->addr, &p->flow.saddr) ? FLOW_POD_SELF : FLOW_POD);
}

/* Points the first packet of a flow at a backend of a service. */
static __always_inline int new_flow_choose(const struct packet *p, struct svc *svc, struct action *a, bool from_pod)
{
	struct choice choice = {};
	enum reason reason;

	/* a RST for a flow that is no longer known */
	if (p->tcp_flags & TCP_RST || admit_may_be_imported(p))
		return 0;
	reason = new_flow_backend(p, svc, &choice, from_pod);
	if (reason == REASON_NO_BACKEND)
		a->reject = new_flow_refusal(p, svc->service);
	if (reason != REASON_NONE || !choice.backend)
		return flow_drop(a, reason);
	a->verdict = VERDICT_REWRITE;
	__builtin_memset(&a->to, 0, sizeof(a->to));
	a->to.saddr = p->flow.saddr;
	a->to.daddr = choice.backend->addr;
	a->to.sport = p->flow.sport;
	a->to.dport = choice.backend->port;
	a->to.kind = new_flow_kind(p, svc, &choice, from_pod);
	return choice.backend->flags & BACKEND_LOCAL;
}

/* Refuses a pod's packet that begins a flow to where no service is. */
static __always_inline int new_flow_refuse_nowhere(const struct packet *p, struct action *a)
{
	struct svc_key key = { .addr = p->flow.daddr, .port = p->flow.dport, .proto = p->flow.proto };

	if (!packet_begins_flow(p) || !cluster_ip_leads_nowhere(&key))
		return 0;
	a->reject = p->flow.proto == IPPROTO_TCP ? REJECT_RESET : REJECT_UNREACHABLE;
	return flow_drop(a, REASON_NO_SERVICE);
}

/* The same for a packet that may be for no service; such a packet passes. */
static __always_inline int new_flow_target(const struct packet *p, struct action *a, bool from_pod)
{
	struct svc *svc = lb_frontend(&p->flow, from_pod);

	if (!svc && !from_pod && p->is_forwarded)
		svc = dsr_ingress_frontend(&p->flow);
	if (!svc)
		return from_pod ? new_flow_refuse_nowhere(p, a) : 0;
	if (!from_pod && svc->kind == SVC_CLUSTER_IP && !cfg.external_clusterip)
		return flow_drop(a, REASON_CLUSTER_IP);
	if (!from_pod && p->is_forwarded && dsr_ingress_target(p, svc, a))
		return 0;
	return new_flow_choose(p, svc, a, from_pod);
}

/* Reports whether another packet has established the flow since this one looked for its rows; if
 * so, this one uses the new row. A SYN cannot be too late: before a second packet no flow is
 * established. */
static __always_inline bool new_flow_raced(const struct packet *p, struct action *a)
{
	struct flow flow = p->flow; /* as in flow_known */
	bool torn = false;

	if (packet_is_syn(p) || !flow_table_lookup(&flow))
		return false;
	if (flow_find(&ct, &flow, &a->to, &torn))
		return true;
	if (torn)
		flow_drop(a, REASON_FLOW_RACE);
	return torn;
}

/* Creates the only row of a flow that its backend answers directly, see dsr.h. The packet may be
 * from the middle of the flow. */
static __always_inline int new_flow_enter_dsr(void *ctx, const struct packet *p, struct action *a)
{
	if (!dsr_option_is_mode(a) && !new_flow_masquerade(p->is_v4 ? SNAT_NODE4 : SNAT_NODE6, &a->to))
		return flow_drop(a, REASON_NO_ADDRESS);
	route_find(ctx, p, &a->to);
	flow_finish(&p->flow, &a->to);
	a->to.seen = flow_now();
	if (!dsr_option_is_mode(a)) {
		a->to.created = a->to.seen;
		a->to.checksum = flow_checksum(&p->flow, &a->to);
	}
	a->to.state = dsr_client_state(p, CT_ANSWERED);
	a->to.seq_hi = packet_shakes_hands(p) ? seq_of(p) : 0;
	a->is_first = packet_begins_flow(p);
	if (route_is_elsewhere(p, &a->to))
		a->to.state = CT_ANSWERED;
	return new_flow_write(p, &a->to);
}

/* Handles the first packet of a flow, from outside or from a pod. Packets that another node
 * forwarded are not finished here, see dsr_tc.h. All of it is inlined into one function, because
 * calls would cost more than the code between them. */
static __always_inline int new_flow_decide(void *ctx, const struct packet *p, struct action *a, bool from_pod)
{
	new_flow_target(p, a, from_pod);
	if (a->verdict != VERDICT_REWRITE || new_flow_raced(p, a))
		return 0;
	if (p->is_forwarded) {
		a->is_first = true;
		return 0;
	}
	if (!from_pod && a->to.kind & FLOW_DSR)
		new_flow_enter_dsr(ctx, p, a);
	else
		new_flow_enter(ctx, p, a);
	if (a->verdict != VERDICT_REWRITE || !event_is_watched())
		return 0;
	return event_tell(p, a, new_flow_hook(p, a), 0);
}
