/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the choice of a backend: service -> word -> slot -> backend. */
#pragma once

#include <stdbool.h>

#include "maps.h"

/* A reader is overtaken when an extent is reused between its two loads. More attempts than this
 * would mean a storm. */
#define LB_TRIES 4

static __always_inline __u32 word_off(__u64 word)
{
	return word;
}

static __always_inline __u32 word_len(__u64 word)
{
	return (word >> 32) & 0xffff;
}

static __always_inline __u32 word_tag(__u64 word)
{
	return word >> 48;
}

static __always_inline __u32 slot_backend(__u64 slot)
{
	return slot & 0xffffff;
}

/* The bits of a slot that must match the service and the word that led to it. */
static __always_inline __u64 slot_owner(__u64 slot)
{
	return slot >> 24;
}

static __always_inline __u64 lb_owner(__u32 index, __u64 word)
{
	return (index & 0xffffff) | (__u64)word_tag(word) << 24;
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
	/* enum dsr_mode, for the packet programs: how the service forwards its packets */
	__u32 direct;
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
		__u32 len = word_len(word);
		struct slot *slot;
		__u32 row;
		__u64 value;

		if (!len)
			return REASON_NO_BACKEND;
		row = word_off(word) + hash % len;
		slot = bpf_map_lookup_elem(&slots, &row);
		if (!slot)
			return REASON_BAD_TABLE;
		value = *(volatile __u64 *)&slot->value;
		if (slot_owner(value) != lb_owner(index, word))
			continue;
		row = slot_backend(value);
		choice->row = row;
		choice->backend = bpf_map_lookup_elem(&backends, &row);
		return choice->backend ? REASON_NONE : REASON_BAD_TABLE;
	}
	return REASON_TABLE_RACE;
}
