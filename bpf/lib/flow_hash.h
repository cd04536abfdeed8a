/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the numbers of new flows. The table maps a number to a backend. A number
 * depends only on the packet, the service, and keys that all nodes share, so that every node with
 * the same backends makes the same choice. */
#pragma once

#include "affinity.h"
#include "ct.h"

static __always_inline __u64 flow_hash_word(__u32 word, __u64 key, __u64 factor)
{
	return word * (key ^ factor);
}

/* A hash of a client's address, and of its ports if they count. The address that the client dialed
 * is left out: a NodePort has another one on each node, and a load balancer that moves a flow
 * between nodes changes it. The sum is a multilinear hash: without the keys and without observing
 * the choice, nobody can construct flows that collide more often than others. The constants make it
 * a good hash even without keys. */
static __always_inline __u32 flow_hash_hash(const struct addr *client, __u32 ports)
{
	__u64 sum = flow_hash_word(client->word[0], cfg.hash_key0, ct_factor[0]) +
		    flow_hash_word(client->word[1], cfg.hash_key1, ct_factor[1]) +
		    flow_hash_word(client->word[2], cfg.hash_key2, ct_factor[2]) +
		    flow_hash_word(client->word[3], cfg.hash_key3, ct_factor[3]) +
		    flow_hash_word(ports, cfg.hash_key4, ct_factor[4]);

	return ct_mix(sum ^ sum >> 32, 0) >> 32;
}

/* Reports whether the number depends on the client's address alone, whatever path its flows take.
 * It does with session affinity, because nodes do not share what they remember. Once affinity has
 * lapsed the choice may change; but only one node knows that it has, so with Maglev this has no
 * effect. */
static __always_inline bool flow_hash_is_of_client(const struct service *service, enum affinity_state state)
{
	if (service->algorithm == ALGORITHM_SOURCE_HASH)
		return true;
	return service->affinity_seconds && (state != AFFINITY_LAPSED || service->algorithm == ALGORITHM_MAGLEV);
}

/* Returns the number of a flow by its first packet, or the same number by a later packet of a flow
 * that another node knew. */
static __always_inline __u32 flow_hash_of(const struct flow *flow, struct service *service,
					  enum affinity_state state)
{
	if (flow_hash_is_of_client(service, state))
		return flow_hash_hash(&flow->saddr, 0);
	if (service->algorithm == ALGORITHM_ROUND_ROBIN)
		return __sync_fetch_and_add(&service->turn, 1);
	return flow_hash_hash(&flow->saddr, (__u32)flow->dport << 16 | flow->sport);
}
