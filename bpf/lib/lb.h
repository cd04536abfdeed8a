/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the choice of a backend: frontend -> service -> word -> slot -> backend. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "config.h"
#include "count.h"
#include "flow_hash.h"
#include "maps.h"
#include "reason.h"
#include "types.h"

/* A reader is overtaken when an extent is reused between its two loads. More attempts than this
 * would mean a storm. */
#define LB_TRIES 4

static __always_inline __u32 lb_word_off(__u64 word)
{
	return word;
}

static __always_inline __u32 lb_word_len(__u64 word)
{
	return (word >> 32) & 0xffff;
}

static __always_inline __u32 lb_word_tag(__u64 word)
{
	return word >> 48;
}

static __always_inline __u32 lb_slot_backend(__u64 slot)
{
	return slot & 0xffffff;
}

/* The bits of a slot that must match the service and the word that led to it. */
static __always_inline __u64 lb_slot_owner(__u64 slot)
{
	return slot >> 24;
}

static __always_inline __u64 lb_owner(__u32 index, __u64 word)
{
	return (index & 0xffffff) | (__u64)lb_word_tag(word) << 24;
}

/* The scope of a connection that starts on this node. From here an external address short-circuits
 * to all backends, whatever the external policy; only a ClusterIP follows the internal policy. */
static __always_inline __u32 lb_inside_scope(const struct service *service, __u32 kind)
{
	return kind == SVC_CLUSTER_IP && service->flags & SERVICE_INTERNAL_LOCAL ? SCOPE_LOCAL : SCOPE_ALL;
}

/* The scope of a connection from outside. */
static __always_inline __u32 lb_outside_scope(const struct service *service)
{
	return service->flags & SERVICE_EXTERNAL_LOCAL ? SCOPE_LOCAL : SCOPE_ALL;
}

/* A backend and its row. */
struct choice {
	struct backend *backend;
	__u32 row;
	__u32 kind; /* enum flow_kind, for the packet programs: of the flow, if the backend is on another node */
};

/* Reports whether a remembered row still belongs to a scope of the service. */
static __always_inline bool lb_owns(const struct backend *backend, __u32 index, __u32 scope)
{
	__u32 owner = *(volatile const __u32 *)&backend->owner;

	return (owner & 0xffffff) == index && owner >> 24 & (1 << (scope & SCOPE_LOCAL));
}

/*
 * Chooses slot hash % len of the scope's table. The word is loaded once and used whole; READ_ONCE
 * is spelled as a volatile access so that the compiler cannot load it twice. The slot and the
 * backend are reached through values loaded before, so the order of loads needs no barrier.
 */
static __always_inline enum reason lb_select(const struct service *service, __u32 index, __u32 scope, __u32 hash,
					     struct choice *choice)
{
	for (int i = 0; i < LB_TRIES; i++) {
		__u64 word = *(volatile const __u64 *)&service->words[scope & SCOPE_LOCAL];
		__u32 len = lb_word_len(word);
		struct slot *slot;
		__u32 row;
		__u64 value;

		if (!len)
			return REASON_NO_BACKEND;
		row = lb_word_off(word) + hash % len;
		slot = bpf_map_lookup_elem(&slots, &row);
		if (!slot)
			return REASON_BAD_TABLE;
		value = *(volatile __u64 *)&slot->value;
		if (lb_slot_owner(value) != lb_owner(index, word))
			continue;
		row = lb_slot_backend(value);
		choice->row = row;
		choice->backend = bpf_map_lookup_elem(&backends, &row);
		return choice->backend ? REASON_NONE : REASON_BAD_TABLE;
	}
	return REASON_TABLE_RACE;
}

/* Session affinity: a client keeps its backend as long as the service has that backend and the timeout
 * has not passed since the client's last new connection. */

#define NSEC_PER_SEC 1000000000ULL

/* What the map says about a client. */
enum affinity_state {
	AFFINITY_NONE,	 /* nothing, or a backend that the service no longer has */
	AFFINITY_LAPSED, /* the timeout has passed: the next choice should be free to differ */
	AFFINITY_HOLDS,
};

/* The next choice overwrites the entry of an expired or lost backend, so entries need no
 * collection. The value is written in place although its element may have become another client's.
 * A wrong time or row only makes that client keep or lose its backend early, since the row is
 * checked before it is used. */
static __always_inline enum affinity_state
lb_affinity_find(const struct affinity_key *key, const struct service *service, __u32 scope, struct choice *choice)
{
	struct affinity *known = bpf_map_lookup_elem(&affinity, key);
	__u64 now = bpf_ktime_get_coarse_ns();
	__u32 row;

	if (!known || known->epoch != service->affinity_epoch)
		return AFFINITY_NONE;
	/* signed: another CPU may have stored a later time since this one read the clock */
	if ((__s64)(now - known->last) > (__s64)(service->affinity_seconds * NSEC_PER_SEC))
		return AFFINITY_LAPSED;
	row = known->row;
	choice->row = row;
	choice->backend = bpf_map_lookup_elem(&backends, &row);
	if (!choice->backend || !lb_owns(choice->backend, key->service, scope))
		return AFFINITY_NONE;
	known->last = now;
	return AFFINITY_HOLDS;
}

static __always_inline void lb_affinity_remember(const struct affinity_key *key, const struct service *service,
						 const struct choice *choice)
{
	struct affinity value = {
		.last = bpf_ktime_get_coarse_ns(),
		.row = choice->row,
		.epoch = service->affinity_epoch,
	};

	if (!bpf_map_update_elem(&affinity, key, &value, BPF_NOEXIST))
		count_lru_made_atomic(LRU_AFFINITY);
	else
		bpf_map_update_elem(&affinity, key, &value, BPF_ANY);
}

/* The numbers of new flows. The table maps a number to a backend. A number depends only on the packet,
 * the service, and keys that all nodes share, so that every node with the same backends makes the
 * same choice. */

static __always_inline __u64 lb_hash_word(__u32 word, __u64 key, __u64 factor)
{
	return word * (key ^ factor);
}

/* A hash of a client's address, and of its ports if they count. The address that the client dialed
 * is left out: a NodePort has another one on each node, and a load balancer that moves a flow
 * between nodes changes it. The sum is a multilinear hash: without the keys and without observing
 * the choice, nobody can construct flows that collide more often than others. The constants make it
 * a good hash even without keys. */
static __always_inline __u32 lb_hash_keyed(const struct addr *client, __u32 ports)
{
	__u64 sum = lb_hash_word(client->word[0], cfg.hash_key0, flow_hash_factor[0]) +
		    lb_hash_word(client->word[1], cfg.hash_key1, flow_hash_factor[1]) +
		    lb_hash_word(client->word[2], cfg.hash_key2, flow_hash_factor[2]) +
		    lb_hash_word(client->word[3], cfg.hash_key3, flow_hash_factor[3]) +
		    lb_hash_word(ports, cfg.hash_key4, flow_hash_factor[4]);

	return flow_hash_mix(sum ^ sum >> 32, 0) >> 32;
}

/* Reports whether the number depends on the client's address alone, whatever path its flows take.
 * It does with session affinity, because nodes do not share what they remember. Once affinity has
 * lapsed the choice may change; but only one node knows that it has, so with Maglev this has no
 * effect. */
static __always_inline bool lb_hash_is_of_client(const struct service *service, enum affinity_state state)
{
	if (service->algorithm == ALGORITHM_SOURCE_HASH)
		return true;
	return service->affinity_seconds && (state != AFFINITY_LAPSED || service->algorithm == ALGORITHM_MAGLEV);
}

/* Returns the number of a flow by its first packet, or the same number by a later packet of a flow
 * that another node knew. */
static __always_inline __u32 lb_hash_of(const struct flow *flow, struct service *service, enum affinity_state state)
{
	if (lb_hash_is_of_client(service, state))
		return lb_hash_keyed(&flow->saddr, 0);
	if (service->algorithm == ALGORITHM_ROUND_ROBIN)
		return __sync_fetch_and_add(&service->turn, 1);
	return lb_hash_keyed(&flow->saddr, (__u32)flow->dport << 16 | flow->sport);
}

/* Finds the frontend that a packet is for. For a pod it follows the rules of the socket programs:
 * NodePorts are at every address of its node. */
static __always_inline struct svc *lb_frontend(const struct flow *flow, bool from_pod)
{
	struct svc_key key = { .addr = flow->daddr, .port = flow->dport, .proto = flow->proto };
	struct svc *svc = bpf_map_lookup_elem(&svcs, &key);
	struct node_addr *own;

	if (svc)
		return from_pod && svc->kind == SVC_EXTERNAL_ONLY ? NULL : svc;
	own = bpf_map_lookup_elem(&node_addrs, &key.addr);
	if (!own)
		return NULL;
	key.addr = addr_any(&key.addr);
	svc = bpf_map_lookup_elem(&svcs, &key);
	return svc && svc->kind == SVC_NODE_PORT && !from_pod && !(own->flags & NODE_ADDR_PORTS) ? NULL : svc;
}

/* Returns the scope that applies. */
static __always_inline __u32 lb_scope(const struct service *service, const struct svc *svc, bool from_pod)
{
	if (from_pod || svc->kind == SVC_CLUSTER_IP)
		return lb_inside_scope(service, svc->kind);
	return lb_outside_scope(service);
}
