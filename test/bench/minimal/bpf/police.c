// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the simplest way to enforce a rate: packets that arrive while the bucket is
 * empty are dropped. */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define SECOND 1000000000ULL

enum {
	TC_NEXT = -1,
	TC_DROP = 2,
};

const volatile __u64 rate = 1;	/* bytes per second */
const volatile __u64 burst = 1; /* bytes */

struct bucket {
	struct bpf_spin_lock lock;
	__u64 tokens; /* bytes */
	__u64 filled; /* time at which tokens was correct */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bucket);
} buckets SEC(".maps");

SEC("tc")
int tc_police(struct __sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns(), len = skb->len, tokens, since;
	__u32 zero = 0;
	struct bucket *b = bpf_map_lookup_elem(&buckets, &zero);
	int verdict = TC_DROP;

	if (!b)
		return TC_DROP;
	bpf_spin_lock(&b->lock);
	since = now > b->filled ? now - b->filled : 0;
	tokens = since > SECOND ? burst : b->tokens + since * rate / SECOND;
	if (tokens > burst)
		tokens = burst;
	if (tokens >= len) {
		tokens -= len;
		verdict = TC_NEXT;
	}
	b->tokens = tokens;
	b->filled = now;
	bpf_spin_unlock(&b->lock);
	return verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
