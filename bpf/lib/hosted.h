/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains backends on this node as other nodes mean them, that forward to them what clients dialled and
 * leave the answer to this node. Such packets may be forged, as all may: what they name has to be known here. */
#pragma once

#include "action.h"
#include "packet.h"
#include "ranges.h"

/* Whether there is a backend at a port of an address of this node, or at any port if it is zero. */
static __always_inline bool hosted_is(const struct addr *addr, __be16 port)
{
	struct svc_key key = { .addr = *addr, .port = port, .hosted = 1 };

	return bpf_map_lookup_elem(&svcs, &key);
}

/* A NodePort of another node, which has an address that is not known here. */
static __always_inline struct svc *hosted_node_port(struct svc_key *key)
{
	struct svc *svc;

	key->addr = addr_any(&key->addr);
	svc = bpf_map_lookup_elem(&svcs, key);
	return svc && svc->kind == SVC_NODE_PORT ? svc : NULL;
}

/* The frontend that a packet from another node is for, unless it is this node's as well: one that is closed here,
 * while this node is drained, is another's for as long as that is at work. */
static __always_inline struct svc *hosted_frontend(const struct flow *flow)
{
	struct svc_key key = { .addr = flow->daddr, .port = flow->dport, .proto = flow->proto };
	struct svc *svc = hosted_node_port(&key);

	if (svc)
		return svc;
	key.hosted = 1;
	key.addr = flow->daddr;
	svc = bpf_map_lookup_elem(&svcs, &key);
	return svc ? svc : hosted_node_port(&key);
}

/* What was said of the packet at hand: on the stack of what is called on the way there is no room for it. */
static __always_inline struct hint *hosted_hint(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&hints, &zero);
}

/* Points the first packet of a flow at the backend that another node chose. */
static __noinline int hosted_target(const struct packet *p, struct svc *svc, struct action *a)
{
	struct hint *hint = hosted_hint();
	struct service *service;
	__u32 index;

	if (!svc)
		svc = hosted_frontend(&p->flow);
	if (!svc || !hint || !hint->port || !hosted_is(&hint->backend, hint->port))
		return action_drop(a, REASON_STRAY);
	if (svc->kind == SVC_CLUSTER_IP && !cfg.external_clusterip)
		return action_drop(a, REASON_CLUSTER_IP);
	index = svc->service;
	service = bpf_map_lookup_elem(&services, &index);
	if (!service)
		return action_drop(a, REASON_BAD_TABLE);
	if (svc->kind == SVC_LOAD_BALANCER && !ranges_allow(service, index, &p->flow.saddr))
		return action_drop(a, REASON_SOURCE_RANGE);
	a->verdict = VERDICT_REWRITE;
	a->to = (struct ct_entry) {
		.saddr = p->flow.saddr,
		.daddr = hint->backend,
		.sport = p->flow.sport,
		.dport = hint->port,
		.flags = CT_STACK | (svc->kind == SVC_LOAD_BALANCER ? CT_GUARDED : 0),
	};
	return 0;
}
