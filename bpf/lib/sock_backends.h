/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the memory of an unconnected socket: which backend it has for each service, so
 * that it keeps that backend, and so that replies appear to come from the address it sent to. */
#pragma once

#include "addr.h"
#include "maps.h"

/* If services share a backend, their replies cannot be told apart: the flow that was sent to last
 * answers, and the others are marked. If the socket sends to the backend itself, the backend
 * answers as itself. */
static __always_inline void sock_backends_silence(struct sock_backends *flows, const struct addr *backend,
						  __be16 port)
{
	for (int i = 0; i < SOCK_BACKENDS; i++) {
		struct sock_backend *flow = &flows->flow[i];

		if (flow->backend_port == port && addr_equal(&flow->backend, backend))
			flow->answers = 0;
	}
}

/* Returns the index of the flow to a service, or SOCK_BACKENDS. Not static, so that the verifier walks
 * it once and does not walk what follows for every index. */
__noinline __u32 sock_backends_place(const struct sock_backends *flows, const struct addr *vip, __u32 port)
{
	if (!flows || !vip)
		return SOCK_BACKENDS;
	for (int i = 0; i < SOCK_BACKENDS; i++) {
		const struct sock_backend *flow = &flows->flow[i];

		if (flow->vip_port == port && addr_equal(&flow->vip, vip))
			return i;
	}
	return SOCK_BACKENDS;
}

static __always_inline struct sock_backend *sock_backends_find(struct sock_backends *flows, const struct addr *vip,
							       __be16 port)
{
	__u32 place = sock_backends_place(flows, vip, port);

	return place < SOCK_BACKENDS ? &flows->flow[place] : NULL;
}

/* Makes a flow the one that answers for its backend. */
static __always_inline void sock_backends_answer(struct sock_backends *flows, struct sock_backend *flow)
{
	if (flow->answers)
		return;
	sock_backends_silence(flows, &flow->backend, flow->backend_port);
	flow->answers = 1;
}

/* Writes a flow over the one to the same service, or over the oldest. */
static __always_inline void sock_backends_remember(struct sock_backends *flows, const struct sock_backend *flow)
{
	struct sock_backend *at = sock_backends_find(flows, &flow->vip, flow->vip_port);

	if (!at)
		at = &flows->flow[flows->next++ & (SOCK_BACKENDS - 1)];
	*at = *flow;
	sock_backends_answer(flows, at);
}

/* Replaces the source of a datagram with the address that was sent to. */
static __always_inline bool sock_backends_receive(struct sock_backends *flows, struct svc_key *from)
{
	for (int i = 0; i < SOCK_BACKENDS; i++) {
		const struct sock_backend *flow = &flows->flow[i];

		if (flow->backend_port != from->port || !flow->answers || !addr_equal(&flow->backend, &from->addr))
			continue;
		from->addr = flow->vip;
		from->port = flow->vip_port;
		return true;
	}
	return false;
}
