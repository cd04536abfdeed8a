/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the numbers of new flows. The table says which backend a number stands for, so a number is
 * made of nothing but the packet and the service, and of keys that all nodes share: then any node that has the same
 * backends chooses alike. */
#pragma once

#include "affinity.h"
#include "ct.h"

static __always_inline __u64 number_word(__u32 word, __u64 key, __u64 factor)
{
	return word * (key ^ factor);
}

/* The hash of a client, and of its port if that counts. The address that the client sent to is not in it: a
 * NodePort has another one on each node, and whoever moves a flow from node to node sends it there. The sum is a
 * multilinear hash: who does not know the keys, and hears nothing of the choice, cannot make up flows that meet
 * more often than others. The constants make it a good one without keys. */
static __always_inline __u32 number_hash(const struct addr *client, __u32 ports)
{
	__u64 sum = number_word(client->word[0], cfg.hash_key0, ct_factor[0]) +
		    number_word(client->word[1], cfg.hash_key1, ct_factor[1]) +
		    number_word(client->word[2], cfg.hash_key2, ct_factor[2]) +
		    number_word(client->word[3], cfg.hash_key3, ct_factor[3]) +
		    number_word(ports, cfg.hash_key4, ct_factor[4]);

	return ct_mix(sum ^ sum >> 32, 0) >> 32;
}

/* Whether the client decides alone, whichever way its flows come. With affinity it does, since nodes do not tell
 * each other what they remember. When that lapses, the choice has had its time; but that it did is what one node
 * knows, so with Maglev it changes nothing. */
static __always_inline bool number_is_of_client(const struct service *service, enum affinity_state state)
{
	if (service->algorithm == ALGORITHM_SOURCE_HASH)
		return true;
	return service->affinity_seconds && (state != AFFINITY_LAPSED || service->algorithm == ALGORITHM_MAGLEV);
}

/* The number of a flow by its first packet; by a packet of a flow that another node knew, the same. */
static __always_inline __u32 number_of(const struct flow *flow, struct service *service, enum affinity_state state)
{
	if (number_is_of_client(service, state))
		return number_hash(&flow->saddr, 0);
	if (service->algorithm == ALGORITHM_ROUND_ROBIN)
		return __sync_fetch_and_add(&service->turn, 1);
	return number_hash(&flow->saddr, (__u32)flow->dport << 16 | flow->sport);
}
