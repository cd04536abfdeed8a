/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains local backends as other nodes refer to them: those nodes forward to them what
 * clients dialed, and leave the reply to this node. Such packets may be forged, like any other, so
 * everything that they name is checked against this node's own rows: a backend gets only what was
 * sent to a service that has it. */
#pragma once

#include "action.h"
#include "packet.h"
#include "ranges.h"

/* Reports whether a service has a backend on this node. */
static __always_inline bool dsr_ingress_serves(const struct dsr_hint *hint, __u32 service)
{
	struct svc_key key = {
		.addr = hint->backend, .port = hint->port, .hosted = HOSTED_BACKEND, .service = service
	};

	return bpf_map_lookup_elem(&svcs, &key);
}

/* Looks up a NodePort of another node, whose address is not known here. */
static __always_inline struct svc *dsr_ingress_node_port(struct svc_key *key)
{
	struct svc *svc;

	key->addr = addr_any(&key->addr);
	svc = bpf_map_lookup_elem(&svcs, key);
	return svc && svc->kind == SVC_NODE_PORT ? svc : NULL;
}

/* Finds the frontend of a packet from another node, unless this node has it as well: a frontend
 * that is closed here, because the node is drained, is still one on other nodes until they
 * finish. */
static __always_inline struct svc *dsr_ingress_frontend(const struct flow *flow)
{
	struct svc_key key = { .addr = flow->daddr, .port = flow->dport, .proto = flow->proto };
	struct svc *svc = dsr_ingress_node_port(&key);

	if (svc)
		return svc;
	key.hosted = HOSTED_BACKEND;
	key.addr = flow->daddr;
	svc = bpf_map_lookup_elem(&svcs, &key);
	return svc ? svc : dsr_ingress_node_port(&key);
}

/* What another node said about the current packet. It is in a map because functions on the way
 * there have no stack to spare. */
static __always_inline struct dsr_hint *dsr_ingress_hint(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&dsr_hints, &zero);
}

/* Points the first packet of a flow at the backend that another node chose. If the service has no
 * such backend here, as far as this node knows, the packet is to be given back (see dsr_return.h), since
 * nodes learn of endpoints at different times. An option does not tell whom to give it back to, and
 * anybody can write one. False: this node serves the packet as if its client had dialed here. */
static __noinline int dsr_ingress_target(const struct packet *p, struct svc *svc, struct action *a)
{
	struct dsr_hint *hint = dsr_ingress_hint();
	__u32 index = svc->service;
	struct service *service = bpf_map_lookup_elem(&services, &index);

	if (!service)
		return !action_drop(a, REASON_BAD_TABLE);
	if (!hint || !hint->port)
		return !action_drop(a, REASON_STRAY);
	if (svc->kind == SVC_LOAD_BALANCER && !ranges_allow(service, index, &p->flow.saddr))
		return !action_drop(a, REASON_SOURCE_RANGE);
	hint->is_known = dsr_ingress_serves(hint, index);
	if (hint->direct == DSR_OFF && (!hint->is_known || service->flags & SERVICE_SOURCE_RANGES))
		return false;
	a->verdict = VERDICT_REWRITE;
	__builtin_memset(&a->to, 0, sizeof(a->to));
	a->to.saddr = p->flow.saddr;
	a->to.daddr = hint->backend;
	a->to.sport = p->flow.sport;
	a->to.dport = hint->port;
	a->to.flags = CT_STACK | (svc->kind == SVC_LOAD_BALANCER ? CT_GUARDED : 0);
	return true;
}
