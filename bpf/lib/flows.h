/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the memory of a socket that is not connected: which backend it has of which service, so that
 * it keeps to it, and that a reply comes from what was sent to. */
#pragma once

#include "addr.h"
#include "maps.h"

/* Where services share a backend nobody can tell their replies apart: then the flow that was sent to last answers,
 * and the others are marked. What is sent to the backend itself is answered by the backend itself. */
static __always_inline void flows_silence(struct sock_flows *flows, const struct addr *backend, __be16 port)
{
	for (int i = 0; i < SOCK_FLOWS; i++) {
		struct sock_flow *flow = &flows->flow[i];

		if (flow->backend_port == port && addr_equal(&flow->backend, backend))
			flow->answers = 0;
	}
}

/* Returns where the flow to a service is, or SOCK_FLOWS. The function is not static, so the verifier walks it once,
 * and what follows not for every place. */
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

/* Turns the source of a datagram into what was sent to. */
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
