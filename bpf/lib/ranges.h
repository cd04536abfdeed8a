/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains who may use a load balancer's address: clients in the source ranges of its
 * service.
 *
 * The ranges also apply to existing flows, as if they were checked before the rows are looked up; but
 * a packet of such a flow can afford only one lookup. So rows of flows to such an address are
 * marked, whether there are ranges or not, and checked again with the first packet of each tick,
 * unless the agent says that nothing has changed since the previous check. So a client that is no
 * longer in any range is cut off within a tick, even without an agent. A flow that is not
 * established is checked with every packet, except one that its backend answers directly, see
 * dsr.h. */
#pragma once

#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "cluster.h"
#include "flow.h"
#include "maps.h"
#include "packet.h"
#include "reason.h"
#include "types.h"

/* The same for a flow that was admitted. A frontend that no longer exists has no ranges. */
static __noinline int ranges_still_allow(const struct svc_key *to, const struct addr *client)
{
	struct svc *svc = bpf_map_lookup_elem(&svcs, to);
	struct service *service;
	__u32 index;

	if (!svc || svc->kind != SVC_LOAD_BALANCER)
		return true;
	index = svc->service;
	service = bpf_map_lookup_elem(&services, &index);
	return !service || cluster_ranges_allow(service, index, client);
}

/* Reports whether the client of a marked flow may keep it. Not static, so that the verifier walks
 * it only once. */
__noinline int ranges_keep(const struct flow *flow, const struct ct_entry *row)
{
	struct svc_key to = {};
	struct addr client;

	if (!flow || !row)
		return false;
	to.proto = flow->proto;
	if (row->kind & FLOW_REPLY) {
		to.addr = row->saddr;
		to.port = row->sport;
		client = row->daddr;
	} else {
		to.addr = flow->daddr;
		to.port = flow->dport;
		client = flow->saddr;
	}
	return ranges_still_allow(&to, &client);
}

/* Reports whether a row that is used now and was last used in the tick `before` has to be checked.
 * The agent announces a change before and after it writes the tables, so the value loaded here is
 * never older than a change that programs can see. */
static __always_inline bool ranges_are_due(const struct ct_entry *row, const __u32 *before)
{
	struct range_epoch *range_epoch;
	__u32 zero = 0;

	if (!(row->kind & FLOW_HAS_RANGES))
		return false;
	range_epoch = bpf_map_lookup_elem(&range_epochs, &zero);
	return !range_epoch || !flow_route_epoch(row) || flow_route_is_old(before, &range_epoch->changed);
}

/* Deletes both rows of a flow, the second only if it has not become another flow's. */
static __always_inline void ranges_forget(const struct flow *flow, const struct flow *back)
{
	struct ct_entry *known = flow_table_lookup(back);

	flow_table_delete(flow);
	if (known && flow_leads(known, flow))
		flow_table_delete(back);
}

static __always_inline void ranges_forget_pending(const struct flow *flow, const struct flow *back)
{
	struct ct_entry *known = bpf_map_lookup_elem(&ct_pending, back);

	flow_pending_delete(flow);
	if (known && flow_leads(known, flow))
		flow_pending_delete(back);
}

static __noinline int ranges_cut(const struct packet *p, struct action *a)
{
	struct flow back = flow_reverse(&p->flow, &a->to);

	ranges_forget(&p->flow, &back);
	ranges_forget_pending(&p->flow, &back);
	return flow_drop(a, REASON_SOURCE_RANGE);
}

/* Drops a packet and ends its flow if the client may no longer have it. */
static __always_inline bool ranges_enforce(const struct packet *p, struct action *a)
{
	if (!(a->to.kind & FLOW_HAS_RANGES) || ranges_keep(&p->flow, &a->to))
		return false;
	ranges_cut(p, a);
	return true;
}

/* The same with the first packet of a tick, for a flow that was last used in the tick `before`. */
static __always_inline bool ranges_enforce_again(const struct packet *p, struct action *a, const __u32 *before)
{
	return ranges_are_due(&a->to, before) && ranges_enforce(p, a);
}
