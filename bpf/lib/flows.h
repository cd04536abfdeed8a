/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the memory of an unconnected socket: which backend it has for each service, so
 * that it keeps that backend, and so that replies appear to come from the address it sent to. */
#pragma once

#include "addr.h"
#include "maps.h"

/* If services share a backend, their replies cannot be told apart: the flow that was sent to last
 * answers, and the others are marked. If the socket sends to the backend itself, the backend
 * answers as itself. */
static __always_inline void flows_silence(struct sock_flows *flows, const struct addr *backend, __be16 port)
{
	for (int i = 0; i < SOCK_FLOWS; i++) {
		struct sock_flow *flow = &flows->flow[i];

		if (flow->backend_port == port && addr_equal(&flow->backend, backend))
			flow->answers = 0;
	}
}

/* Returns the index of the flow to a service, or SOCK_FLOWS. Not static, so that the verifier walks
 * it once and does not walk what follows for every index. */
__noinline __u32 flows_place(const struct sock_flows *flows, const struct addr *vip, __u32 port)
{
	if (!flows || !vip)
		return SOCK_FLOWS;
	for (int i = 0; i < SOCK_FLOWS; i++) {
		const struct sock_flow *flow = &flows->flow[i];

		if (flow->vip_port == port && addr_equal(&flow->vip, vip))
			return i;
	}
	return SOCK_FLOWS;
}

static __always_inline struct sock_flow *flows_find(struct sock_flows *flows, const struct addr *vip, __be16 port)
{
	__u32 place = flows_place(flows, vip, port);

	return place < SOCK_FLOWS ? &flows->flow[place] : NULL;
}

/* Makes a flow the one that answers for its backend. */
static __always_inline void flows_answer(struct sock_flows *flows, struct sock_flow *flow)
{
	if (flow->answers)
		return;
	flows_silence(flows, &flow->backend, flow->backend_port);
	flow->answers = 1;
}

/* Writes a flow over the one to the same service, or over the oldest. */
static __always_inline void flows_remember(struct sock_flows *flows, const struct sock_flow *flow)
{
	struct sock_flow *at = flows_find(flows, &flow->vip, flow->vip_port);

	if (!at)
		at = &flows->flow[flows->next++ & (SOCK_FLOWS - 1)];
	*at = *flow;
	flows_answer(flows, at);
}

/* Replaces the source of a datagram with the address that was sent to. */
static __always_inline bool flows_receive(struct sock_flows *flows, struct svc_key *from)
{
	for (int i = 0; i < SOCK_FLOWS; i++) {
		const struct sock_flow *flow = &flows->flow[i];

		if (flow->backend_port != from->port || !flow->answers || !addr_equal(&flow->backend, &from->addr))
			continue;
		from->addr = flow->vip;
		from->port = flow->vip_port;
		return true;
	}
	return false;
}
