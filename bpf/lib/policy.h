/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the lookup by which policies decide about two addresses, a protocol and a port. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "pod_maps.h"
#include "policy_maps.h"
#include "types.h"

/* A decision has at most 2^18 runs. */
#define POLICY_HALVINGS 18

static __always_inline __u32 policy_class_of(const struct addr *peer, __u32 version)
{
	struct prefix_key region = { .prefix_len = PREFIX_BITS, .addr = *peer };
	struct policy_class *class = bpf_map_lookup_elem(&policy_peers, &region.addr);

	if (!class)
		class = bpf_map_lookup_elem(&policy_regions, &region);
	return class ? class->class[version % POLICY_VERSIONS] : 0;
}

/* Returns the key of a protocol and port among runs. */
static __always_inline __u32 policy_port_key(__u8 proto, __be16 port)
{
	switch (proto) {
	case IPPROTO_TCP:
		return POLICY_TCP << POLICY_PROTOCOL_SHIFT | bpf_ntohs(port);
	case IPPROTO_UDP:
		return POLICY_UDP << POLICY_PROTOCOL_SHIFT | bpf_ntohs(port);
	case IPPROTO_SCTP:
		return POLICY_SCTP << POLICY_PROTOCOL_SHIFT | bpf_ntohs(port);
	}
	return POLICY_OTHER;
}

/* Returns the verdict of the run that a key is in, or POLICY_RULE_UNKNOWN if there is none. */
static __always_inline __u32 policy_find_run(const struct policy_ports *ports, __u32 key)
{
	__u32 first = ports->first, count = ports->count, verdict = POLICY_RULE_UNKNOWN;

	for (int i = 0; i < POLICY_HALVINGS && count; i++) {
		__u32 half = count / 2, at = first + half;
		struct policy_run *run = bpf_map_lookup_elem(&policy_runs, &at);

		if (!run)
			return POLICY_RULE_UNKNOWN;
		if (run->from > key) {
			count = half;
			continue;
		}
		verdict = run->verdict;
		first = at + 1;
		count -= half + 1;
	}
	return verdict;
}

/* What is asked about. */
struct policy_question {
	struct addr peer;
	__u32 direction; /* enum policy_direction */
	__u32 port;	 /* of policy_port_key */
};

/* Returns POLICY_ACCEPTED, if it is, and the number of the rule that decides. What is not known is not
 * accepted. Not static, so that the verifier walks it only once. */
__noinline int policy_decide(const struct policy_subject *s, const struct policy_question *q, __u32 version)
{
	struct policy_decision *decision;
	struct policy_decision_key key;
	struct policy_class *class;
	struct policy_view view;

	if (!s || !q)
		return POLICY_RULE_UNKNOWN;
	version %= POLICY_VERSIONS;
	view.scope = s->scope;
	view.class = policy_class_of(&q->peer, version);
	class = bpf_map_lookup_elem(&policy_views, &view);
	key.subject = s->subject;
	key.class = class ? class->class[version] : 0;
	key.direction = q->direction;
	decision = bpf_map_lookup_elem(&policy_decisions, &key);
	if (!decision || !decision->ports[version].count) {
		key.class = 0;
		decision = bpf_map_lookup_elem(&policy_decisions, &key);
	}
	return decision ? policy_find_run(&decision->ports[version], q->port) : POLICY_RULE_UNKNOWN;
}
