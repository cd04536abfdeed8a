/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains packets that this node itself sends to a service without a socket program having
 * pointed their socket at a backend: from raw and kernel sockets, SCTP, and processes
 * outside the cgroup. The kernel sends them by the default route, so they are caught as they leave
 * by a device to the outside, and redirected to their backend: by the same device, another one or
 * the tunnel, or to a pod of this node. The backend sees the node's address, and its replies are
 * translated where they come in, from a device or from the pod.
 *
 * A local backend that is not one of our pods, such as a process of the node, would reply past all
 * programs. So it sees the service's address as the source. Replies to that leave as the requests
 * did, and both are made to come in again as if an outside host had sent them: the stack accepts no
 * packet from there whose source is one of the node's own addresses. */
#pragma once

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "cluster.h"
#include "config.h"
#include "flow.h"
#include "maps.h"
#include "new_flow.h"
#include "packet.h"
#include "pod_maps.h"
#include "types.h"

/* Reports whether a packet is from a local socket and not forwarded. The socket may still be a
 * pod's. */
static __always_inline bool host_flow_may_be(struct __sk_buff *skb)
{
	return cfg.host_flows && !skb->ingress_ifindex && skb->sk;
}

/* Reports whether a leaving packet of an unknown flow may begin one. A connection to an address
 * that is known outside the cluster may be older than our state and go through another load
 * balancer. */
static __always_inline bool host_flow_begins(const struct packet *p, const struct svc *svc)
{
	struct addr from = p->flow.saddr; /* as in flow_known */

	if (svc->kind == SVC_EXTERNAL_ONLY)
		return false;
	if (svc->kind != SVC_CLUSTER_IP && packet_shakes_hands(p) && !packet_is_syn(p))
		return false;
	return bpf_map_lookup_elem(&node_addrs, &from);
}

/* Sets the kind of flow: to a backend whose replies pass a program of ours, or through the
 * stack. */
static __always_inline void host_flow_set_kind(const struct packet *p, struct action *a, bool is_here)
{
	struct addr to = a->to.daddr; /* as in flow_known */

	a->to.kind &= ~FLOW_KIND;
	if (!is_here || bpf_map_lookup_elem(&pods, &to)) {
		a->to.kind |= FLOW_HOST;
		return;
	}
	a->to.kind |= FLOW_HOST_LOCAL;
	a->to.saddr = p->flow.daddr;
}

/* Points a packet at a backend, if it is for a service. */
static __always_inline void host_flow_target(const struct packet *p, struct action *a)
{
	struct svc_key key = { .addr = p->flow.daddr, .port = p->flow.dport, .proto = p->flow.proto };
	struct svc *svc = bpf_map_lookup_elem(&svcs, &key);
	bool is_here;

	if (!svc || !host_flow_begins(p, svc))
		return;
	is_here = new_flow_choose(p, svc, a, true);
	if (a->verdict != VERDICT_REWRITE)
		return;
	host_flow_set_kind(p, a, is_here);
	cluster_packet_clients_note(PACKET_CLIENT_NODE);
}
