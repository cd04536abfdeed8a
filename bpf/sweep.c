// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the programs by which the agent deletes expired rows. LRU maps would evict them in
 * time, but until then a map full of them looks like one that is too small. They are attached to
 * nothing. */

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "lib/count.h"
#include "lib/maps.h"
#include "lib/policy_maps.h"
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

/* How many ticks, of about a second, a flow of a pod that a policy is about is remembered after its last
 * packet. Its next packet would be decided anew, as the first of a flow. */
enum {
	SWEEP_POLICY_OPEN = 24 * 3600, /* TCP and SCTP */
	SWEEP_POLICY_HALF = 3600,      /* one end has sent FIN */
	SWEEP_POLICY_OVER = 60,
	SWEEP_POLICY_OTHER = 180,
};

static __always_inline __u32 sweep_policy_ticks(__u8 proto, __u32 ends)
{
	__u32 both = POLICY_FIN << POLICY_INGRESS | POLICY_FIN << POLICY_EGRESS;

	if (proto != IPPROTO_TCP && proto != IPPROTO_SCTP)
		return SWEEP_POLICY_OTHER;
	if ((ends & both) == both || ends & ~both)
		return SWEEP_POLICY_OVER;
	return ends ? SWEEP_POLICY_HALF : SWEEP_POLICY_OPEN;
}

/* What a sweep of the flows of pods has seen. */
struct sweep_policy {
	__u32 now;
	__s32 rows;
};

static long sweep_share_begin(void *map, const __u32 *owner, struct policy_share *share, void *ctx)
{
	(void)map;
	(void)owner;
	(void)ctx;
	share->counted = 0;
	share->begun = share->since;
	return 0;
}

/* Deletes the row of a flow that is over, or whose pod is gone, and counts it otherwise. */
static long sweep_policy_flow(void *map, const struct flow *flow, const struct policy_flow *row,
			      struct sweep_policy *s)
{
	struct policy_share *share;
	struct flow key = *flow;
	__u32 owner = row->owner;

	(void)map;
	if ((__s32)(s->now - row->seen) > (__s32)sweep_policy_ticks(key.proto, row->ends) ||
	    (owner && !bpf_map_lookup_elem(&policy_pods, &owner))) {
		bpf_map_delete_elem(&policy_flows, &key);
		return 0;
	}
	s->rows++;
	share = owner ? bpf_map_lookup_elem(&policy_shares, &owner) : NULL;
	if (share)
		share->counted++;
	return 0;
}

/* Notes what was counted. What came or went meanwhile may be missing, or be counted twice, until the
 * next sweep. */
static long sweep_share_end(void *map, const __u32 *owner, struct policy_share *share, struct sweep_policy *s)
{
	__u32 of = *owner;

	(void)map;
	share->rows = of == POLICY_SHARE_OF_ALL ? s->rows : share->counted;
	__sync_fetch_and_sub(&share->since, share->begun);
	if (of != POLICY_SHARE_OF_ALL && !share->rows && !share->since && !bpf_map_lookup_elem(&policy_pods, &of))
		bpf_map_delete_elem(&policy_shares, &of);
	return 0;
}

SEC("syscall")
int sweep_policy_flows(struct sweep_run *r)
{
	struct sweep_policy s = { .now = bpf_jiffies64() >> (r->tick_shift & 31) };

	bpf_for_each_map_elem(&policy_shares, sweep_share_begin, &s, 0);
	bpf_for_each_map_elem(&policy_flows, sweep_policy_flow, &s, 0);
	bpf_for_each_map_elem(&policy_shares, sweep_share_end, &s, 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
