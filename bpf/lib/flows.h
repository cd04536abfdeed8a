/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the memory of a socket that is not connected: which backend it has of which service, so that
 * it keeps to it, and that a reply comes from what was sent to. */
#pragma once

#include "addr.h"
#include "maps.h"

/* Where services share a backend nobody can tell their replies apart: then the flow that was sent to last answers,
 * and the others are marked. What is sent to the backend itself is answered by the backend itself. The lock is
 * held. */
static __always_inline void flows_silence(struct sock_flows *flows, const struct addr *backend, __be16 port)
{
	for (int i = 0; i < SOCK_FLOWS; i++) {
		struct sock_flow *flow = &flows->flow[i];

		if (flow->backend_port == port && addr_equal(&flow->backend, backend))
			flow->answers = 0;
	}
}

/* Copies out the flow to a service. */
static __always_inline bool flows_find(struct sock_flows *flows, const struct svc_key *to, struct sock_flow *out)
{
	bool found = false;

	bpf_spin_lock(&flows->lock);
	for (int i = 0; i < SOCK_FLOWS; i++) {
		struct sock_flow *flow = &flows->flow[i];

		if (flow->vip_port != to->port || !addr_equal(&flow->vip, &to->addr))
			continue;
		*out = *flow;
		found = true;
		break;
	}
	bpf_spin_unlock(&flows->lock);
	return found;
}

/* Writes a flow over the one to the same service, or over the oldest, and makes it the one that answers. */
static __always_inline void flows_remember(struct sock_flows *flows, const struct sock_flow *flow)
{
	__u32 at = SOCK_FLOWS;

	bpf_spin_lock(&flows->lock);
	flows_silence(flows, &flow->backend, flow->backend_port);
	for (int i = 0; i < SOCK_FLOWS; i++) {
		const struct sock_flow *other = &flows->flow[i];

		if (other->vip_port != flow->vip_port || !addr_equal(&other->vip, &flow->vip))
			continue;
		at = i;
		break;
	}
	if (at == SOCK_FLOWS)
		at = flows->next++;
	at &= SOCK_FLOWS - 1;
	flows->flow[at] = *flow;
	flows->flow[at].answers = 1;
	bpf_spin_unlock(&flows->lock);
}

/* Turns the source of a datagram into what was sent to. */
static __always_inline bool flows_receive(struct sock_flows *flows, struct svc_key *from)
{
	bool found = false;

	bpf_spin_lock(&flows->lock);
	for (int i = 0; i < SOCK_FLOWS; i++) {
		const struct sock_flow *flow = &flows->flow[i];

		if (flow->backend_port != from->port || !flow->answers || !addr_equal(&flow->backend, &from->addr))
			continue;
		from->addr = flow->vip;
		from->port = flow->vip_port;
		found = true;
		break;
	}
	bpf_spin_unlock(&flows->lock);
	return found;
}

static __always_inline void flows_forget(struct sock_flows *flows, const struct svc_key *to)
{
	bpf_spin_lock(&flows->lock);
	flows_silence(flows, &to->addr, to->port);
	bpf_spin_unlock(&flows->lock);
}
