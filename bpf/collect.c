// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the programs by which the agent forgets flows. The agent scans the maps and
 * lists the flows; the programs check both rows of each flow again just before they delete them.
 * They are attached to nothing. */

#include <linux/bpf.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "lib/count.h"
#include "lib/flow.h"
#include "lib/maps.h"
#include "lib/types.h"

/* The number of flows handled in one run. */
#define DOOMED_MOST 4096

/* The agent's own maps, which it has mmapped: nothing is copied or pinned. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, DOOMED_MOST);
	__type(key, __u32);
	__type(value, struct doomed);
} doomed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct collect_run);
} run SEC(".maps");

/* Both rows of a flow: pointers into the map, and copies from the time of the check. */
struct collect_pair {
	struct ct_entry *request;
	struct ct_entry *reply;
	struct ct_entry request_was;
	struct ct_entry reply_was;
};

/* How long ago a row was last used. A packet may have come after `now` was read. */
static __always_inline __u32 collect_idle(const struct ct_entry *row, __u32 now)
{
	__s32 idle = now - row->seen;

	return idle < 0 ? 0 : idle;
}

static __always_inline __u32 collect_limit(const struct collect_run *r, __u8 proto, __u32 phase)
{
	if (phase >= CT_PHASES)
		return 0;
	if (proto == IPPROTO_TCP)
		return r->limits[CT_CLASS_TCP][phase];
	if (proto == IPPROTO_SCTP)
		return r->limits[CT_CLASS_SCTP][phase];
	return r->limits[CT_CLASS_UDP][phase];
}

/* The phase of an established flow: a direction without a row counts as ended. */
static __always_inline __u32 collect_phase(const struct collect_pair *pair)
{
	__u32 phase = CT_PHASE_OPEN;

	if ((pair->request && pair->request_was.state == CT_RESET) ||
	    (pair->reply && pair->reply_was.state == CT_RESET))
		return CT_PHASE_RESET;
	if (!pair->request || pair->request_was.state == CT_CLOSING)
		phase++;
	if (!pair->reply || pair->reply_was.state == CT_CLOSING)
		phase++;
	return phase;
}

/* Reports whether an established flow has timed out. */
static __always_inline bool collect_over(const struct collect_run *r, __u8 proto, const struct collect_pair *pair)
{
	__u32 now = r->jiffies >> r->tick_shift, idle = ~0U;

	if (pair->request)
		idle = collect_idle(&pair->request_was, now);
	if (pair->reply && collect_idle(&pair->reply_was, now) < idle)
		idle = collect_idle(&pair->reply_was, now);
	return idle >= collect_limit(r, proto, collect_phase(pair));
}

/* The phase of a flow of which only the client's packets pass here. */
static __always_inline __u32 collect_dsr_phase(const struct ct_entry *request)
{
	if (request->state == CT_NEW)
		return CT_PHASE_HALF_OPEN;
	if (request->state == CT_RESET)
		return CT_PHASE_RESET;
	return request->state == CT_CLOSING ? CT_PHASE_HALF_CLOSED : CT_PHASE_OPEN;
}

/* The same for a flow that is not established. `seen` in a TCP request's row is no time; if its
 * reply was evicted, the row may go. */
static __always_inline bool collect_pending_over(const struct collect_run *r, __u8 proto,
						 const struct collect_pair *pair)
{
	__u32 now = r->jiffies >> r->tick_shift;
	__u32 limit = collect_limit(r, proto, CT_PHASE_HALF_OPEN);

	if (pair->request && pair->request_was.kind & FLOW_DSR)
		return collect_idle(&pair->request_was, now) >=
		       collect_limit(r, proto, collect_dsr_phase(&pair->request_was));
	if (proto == IPPROTO_UDP && pair->request && collect_idle(&pair->request_was, now) < limit)
		return false;
	return !pair->reply || collect_idle(&pair->reply_was, now) >= limit;
}

/* Finds the rows of a flow. False: nothing is left of what the agent has seen. */
static __always_inline bool collect_find(void *map, const struct doomed *d, struct collect_pair *pair)
{
	pair->request = bpf_map_lookup_elem(map, &d->request);
	pair->reply = bpf_map_lookup_elem(map, &d->reply);
	if (pair->request) {
		pair->request_was = *pair->request;
		if (!flow_leads(&pair->request_was, &d->reply))
			pair->request = NULL;
	}
	if (pair->reply) {
		pair->reply_was = *pair->reply;
		if (!flow_leads(&pair->reply_was, &d->request))
			pair->reply = NULL;
	}
	return pair->request || pair->reply;
}

/* The request goes first: without it the client's next packet begins a new flow, which finds the
 * key of the old reply taken and uses another port. If the reply went first, such a packet would
 * still be forwarded, and its reply could not come back. */
static __always_inline __u32 collect_delete(void *map, const struct doomed *d, const struct collect_pair *pair)
{
	__u32 gone = 0;

	if (pair->request)
		gone += !bpf_map_delete_elem(map, &d->request);
	if (pair->reply)
		gone += !bpf_map_delete_elem(map, &d->reply);
	return gone;
}

static long collect_open(__u32 index, struct collect_run **r)
{
	struct doomed *d = bpf_map_lookup_elem(&doomed, &index);
	struct collect_pair pair = {};

	if (!d || !collect_find(&ct, d, &pair))
		return 0;
	if (d->why == DOOM_IDLE && !collect_over(*r, d->request.proto, &pair))
		return 0;
	collect_delete(&ct, d, &pair);
	d->outcome = DOOM_DELETED;
	return 0;
}

static long collect_pending(__u32 index, struct collect_run **r)
{
	struct doomed *d = bpf_map_lookup_elem(&doomed, &index);
	struct collect_pair pair = {};

	if (!d || !collect_find(&ct_pending, d, &pair))
		return 0;
	if (d->why == DOOM_IDLE && !collect_pending_over(*r, d->request.proto, &pair))
		return 0;
	count_lru_deleted_atomic(LRU_CT_PENDING, collect_delete(&ct_pending, d, &pair));
	d->outcome = DOOM_DELETED;
	return 0;
}

static __always_inline struct collect_run *collect_begin(void)
{
	__u32 zero = 0;
	struct collect_run *r = bpf_map_lookup_elem(&run, &zero);

	if (r)
		r->jiffies = bpf_jiffies64();
	return r;
}

/* Forgets flows of `ct`. With an empty list it only reports the time. */
SEC("syscall")
int collect_from_ct(void)
{
	struct collect_run *r = collect_begin();

	if (r)
		bpf_loop(r->count, collect_open, &r, 0);
	return 0;
}

SEC("syscall")
int collect_from_pending(void)
{
	struct collect_run *r = collect_begin();

	if (r)
		bpf_loop(r->count, collect_pending, &r, 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
