// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the tc programs once more, for a test in which a rival works on the same flows. CPUs collide
 * too rarely for a test to wait for that, so the rival is a list of steps, some of which happen before a chosen
 * map access. */

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "../../../bpf/lib/count.h"
#include "../../../bpf/lib/maps.h"

enum race_kind {
	RACE_NONE,
	RACE_CLAIM,  /* inserts into ct_pending unless there is a row */
	RACE_FORGET, /* deletes from ct_pending */
	RACE_OPEN,   /* inserts into ct unless there is a row */
	RACE_YIELD,  /* gives up a claim on a reply's row that is also in ct */
	RACE_WIN,    /* goes on with a claim */
	RACE_LOOK,   /* gives up a reply's row in ct that another flow has claimed */
};

/* Where the rival must hold the reply's row to take a step. */
enum race_needs {
	RACE_NOTHING,
	RACE_HALF,
	RACE_OPENED,
};

/* What the rival does to a row. */
struct race_step {
	struct flow flow;
	struct flow back; /* of the reply */
	struct ct_entry row;
	enum race_kind kind;
	enum race_needs needs;
	__be16 port; /* of the client; it shows that the reply's row is the rival's */
	__u16 pad[3];
};

#define RACE_STEPS 16

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RACE_STEPS);
	__type(key, __u32);
	__type(value, struct race_step);
} race_steps SEC(".maps");

__u32 race_at;	  /* the access before which steps happen */
__u32 race_first; /* the first of these steps */
__u32 race_last;  /* the one after them */

__u32 race_accesses;
__u32 race_won; /* the rival went on with its claim */

static __always_inline bool race_owns(void *map, const struct race_step *step)
{
	struct ct_entry *row = bpf_map_lookup_elem(map, &step->back);

	return row && row->dport == step->port;
}

static __always_inline int race_claim(const struct race_step *step)
{
	if (!bpf_map_update_elem(&ct_pending, &step->flow, &step->row, BPF_NOEXIST))
		count_lru_made(LRU_CT_PENDING);
	return 0;
}

static __always_inline int race_forget(const struct race_step *step)
{
	if (!bpf_map_delete_elem(&ct_pending, &step->flow))
		count_lru_deleted(LRU_CT_PENDING, 1);
	return 0;
}

static __always_inline int race_do(const struct race_step *step)
{
	if (step->needs == RACE_HALF && !race_owns(&ct_pending, step))
		return 0;
	if (step->needs == RACE_OPENED && !race_owns(&ct, step))
		return 0;
	switch (step->kind) {
	case RACE_CLAIM:
		return race_claim(step);
	case RACE_FORGET:
		return race_forget(step);
	case RACE_OPEN:
		return bpf_map_update_elem(&ct, &step->flow, &step->row, BPF_NOEXIST);
	case RACE_YIELD:
		return bpf_map_lookup_elem(&ct, &step->flow) ? race_forget(step) : 0;
	case RACE_WIN:
		race_won = true;
		return race_claim(step);
	case RACE_LOOK:
		return bpf_map_lookup_elem(&ct_pending, &step->flow) && !race_owns(&ct_pending, step)
			       ? bpf_map_delete_elem(&ct, &step->flow)
			       : 0;
	case RACE_NONE:
		break;
	}
	return 0;
}

/* Not static, so that the verifier walks it only once. */
__noinline int race_run(void)
{
	for (__u32 i = 0; i < RACE_STEPS; i++) {
		__u32 row = i;
		struct race_step *step = bpf_map_lookup_elem(&race_steps, &row);

		if (step && i >= race_first && i < race_last)
			race_do(step);
	}
	return 0;
}

__noinline int race_point(void)
{
	if (++race_accesses == race_at)
		race_run();
	return 0;
}

static __always_inline void *race_lookup(void *map, const void *key)
{
	race_point();
	return bpf_map_lookup_elem(map, key);
}

static __always_inline long race_update(void *map, const void *key, const void *value, __u64 flags)
{
	race_point();
	return bpf_map_update_elem(map, key, value, flags);
}

static __always_inline long race_delete(void *map, const void *key)
{
	race_point();
	return bpf_map_delete_elem(map, key);
}

#define bpf_map_lookup_elem race_lookup
#define bpf_map_update_elem race_update
#define bpf_map_delete_elem race_delete
#include "../../../bpf/tc.c"

/* clang emits types of which only the name is known in no fixed order, so there is only one such type. */
const struct bpf_sock *sock_type __attribute__((unused));

/* The rest of the rival's steps. */
SEC("tc")
int race_end(struct __sk_buff *skb __attribute__((unused)))
{
	return race_run();
}
