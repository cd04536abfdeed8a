// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains a test's reader: it looks up a backend for a key as the socket programs do, over and over, and
 * counts the results. Every backend has its frontend in word 1 of its address. */

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../../../bpf/lib/maps.h"

/* Programs are interrupted anywhere, but too rarely for a test, so every lookup of this one is slowed down. */
static __always_inline void dawdle(void)
{
	__u32 turns = bpf_get_prandom_u32() & 2047;

	for (__u32 i = 0; i < turns; i++)
		asm volatile("" ::: "memory");
}

static __always_inline void *slow_lookup(void *map, const void *key)
{
	dawdle();
	return bpf_map_lookup_elem(map, key);
}

#define bpf_map_lookup_elem slow_lookup
#include "../../../bpf/lib/lb.h"

const volatile __u32 frontends = 1;

__u64 chosen;
__u64 absent;
__u64 foreign;
__u64 raced;
__u64 broken;

SEC("tc")
int select_backend(struct __sk_buff *skb __attribute__((unused)))
{
	__u32 random = bpf_get_prandom_u32();
	struct svc_key key = { .port = random % frontends, .proto = IPPROTO_TCP };
	struct choice choice = {};
	struct service *service;
	struct svc *svc;
	__u32 index;

	svc = bpf_map_lookup_elem(&svcs, &key);
	if (!svc) {
		absent++;
		return 0;
	}
	dawdle();
	index = *(volatile __u32 *)&svc->service;
	service = bpf_map_lookup_elem(&services, &index);
	if (!service) {
		broken++;
		return 0;
	}
	switch (lb_select(service, index, lb_inside_scope(service, svc->kind), random >> 8, &choice)) {
	case REASON_NONE:
		dawdle();
		if (choice.backend->addr.word[1] == key.port)
			chosen++;
		else
			foreign++;
		return 0;
	case REASON_TABLE_RACE:
		raced++;
		return 0;
	default:
		broken++;
		return 0;
	}
}

char _license[] SEC("license") = "Dual BSD/GPL";
