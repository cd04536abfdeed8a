// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the programs by which the agent deletes expired rows from LRU maps. The maps
 * would evict them in time, but until then a map full of them looks like one that is too small.
 * They are attached to nothing. */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lib/count.h"
#include "lib/maps.h"
#include "lib/types.h"

/* How long a client stays known after its affinity has lapsed: a lapsed client is free to get
 * another backend, an unknown one gets its old one. */
#define SWEEP_CLIENT_NS (600 * 1000000000ULL)

/* After this many ticks no fragment is completed by a row. */
#define SWEEP_DATAGRAM_TICKS 60

/* A client remembered in another epoch has no time left. The row may become another client's before
 * it is deleted; that client then gets a new choice. */
static long sweep_client(void *map, const struct affinity_key *key, const struct affinity *known, __u64 *now)
{
	struct affinity_key client = *key;
	__u32 index = client.service;
	struct service *service = bpf_map_lookup_elem(&services, &index);
	__u64 keep = SWEEP_CLIENT_NS;

	(void)map;
	if (service && service->affinity_epoch == known->epoch)
		keep += service->affinity_seconds * 1000000000ULL;
	if ((__s64)(*now - known->last) > (__s64)keep && !bpf_map_delete_elem(&affinity, &client))
		count_lru_deleted_atomic(LRU_AFFINITY, 1);
	return 0;
}

SEC("syscall")
int sweep_affinity(void *ctx)
{
	__u64 now = bpf_ktime_get_ns(); /* at most a jiffy ahead of the coarse clock */

	(void)ctx;
	bpf_for_each_map_elem(&affinity, sweep_client, &now, 0);
	return 0;
}

static long sweep_datagram(void *map, const struct datagram *key, const struct datagram_flow *known, __u32 *now)
{
	struct datagram datagram = *key;

	(void)map;
	if ((__s32)(*now - known->seen) > SWEEP_DATAGRAM_TICKS && !bpf_map_delete_elem(&frags, &datagram))
		count_lru_deleted_atomic(LRU_FRAGS, 1);
	return 0;
}

SEC("syscall")
int sweep_frags(struct sweep_run *r)
{
	__u32 now = bpf_jiffies64() >> (r->tick_shift & 31);

	bpf_for_each_map_elem(&frags, sweep_datagram, &now, 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
