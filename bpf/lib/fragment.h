/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains fragmented datagrams, of which only the first fragment has ports. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "count.h"
#include "flow.h"
#include "flow_hash.h"
#include "lb.h"
#include "maps.h"
#include "packet.h"
#include "reason.h"
#include "types.h"

/* After this many ticks a datagram can no longer become complete, and its id may be reused. */
#define FRAGMENT_TICKS 30

static __always_inline struct datagram fragment_key(const struct packet *p)
{
	return (struct datagram) {
		.saddr = p->flow.saddr,
		.daddr = p->flow.daddr,
		.id = p->id,
		.proto = p->is_v4 ? p->flow.proto : IPPROTO_FRAGMENT,
	};
}

static __always_inline __u32 fragment_checksum(const struct datagram *key, const struct datagram_flow *value)
{
	const __u64 *word = (const __u64 *)value;
	__u64 hash = flow_hash((const struct flow *)key);

	return flow_hash_mix(flow_hash_mix(hash, word[0]), value->proto) >> 32;
}

/* Stores the ports of a first fragment for the later ones. Not static, so that the verifier walks it only
 * once. */
__noinline int fragment_store(const struct packet *p)
{
	struct datagram_flow value = { .seen = flow_now() };
	struct datagram key;

	if (!p)
		return false;
	key = fragment_key(p);
	value.sport = p->flow.sport;
	value.dport = p->flow.dport;
	value.proto = p->flow.proto;
	value.checksum = fragment_checksum(&key, &value);
	if (!bpf_map_update_elem(&frags, &key, &value, BPF_NOEXIST))
		count_lru_made(LRU_FRAGS);
	else if (bpf_map_update_elem(&frags, &key, &value, BPF_ANY))
		return false;
	return true;
}

/* The same for one that is translated. If that fails the first fragment is useless, and is dropped. */
__noinline int fragment_remember(const struct packet *p, struct action *a)
{
	if (!p || !a)
		return 0;
	/* the checksum's change depends on how much is still to come */
	if (p->flow.proto == IPPROTO_SCTP && (p->flow.sport != a->to.sport || p->flow.dport != a->to.dport))
		return flow_drop(a, REASON_FRAGMENT);
	return fragment_store(p) ? 0 : flow_drop(a, REASON_FRAGMENT);
}

/* Returns the mark of a datagram, which a few others share. */
static __always_inline struct early_mark *fragment_mark(__u64 hash)
{
	__u32 row = (__u32)hash % EARLY_MARKS;

	return bpf_map_lookup_elem(&early_marks, &row);
}

/* Reports whether fragments of a datagram may be waiting for this first one, which has stored its
 * ports: then tc sends them again. fragment_early_keep sets the mark and then looks for the ports again, so
 * at least one of the two sees the other. That takes an operation that neither compiler nor CPU
 * reorders. A packet that ends a flow is excluded: it comes in a second time, and would not find
 * the flow then. No honest sender fragments a RST, or a packet that begins and ends a flow at
 * once. */
__noinline int fragment_is_awaited(const struct packet *p)
{
	struct early_mark *mark;
	struct datagram key;
	__u32 kept;

	if (!p || p->tcp_flags & TCP_RST || (packet_is_syn(p) && p->tcp_flags & TCP_FIN))
		return false;
	key = fragment_key(p);
	mark = fragment_mark(flow_hash((const struct flow *)&key));
	if (!mark)
		return false;
	kept = __sync_fetch_and_add(&mark->kept, 0);
	return kept && flow_now() + 1 - kept <= FRAGMENT_TICKS;
}

/* Gives a later fragment the flow of the first. False: the first was not ours, or has not
 * arrived. */
static __always_inline bool fragment_complete(struct packet *p)
{
	struct datagram key = fragment_key(p);
	struct datagram_flow *row = bpf_map_lookup_elem(&frags, &key), known;

	if (!row)
		return false;
	known = *(volatile struct datagram_flow *)row;
	if (known.checksum != fragment_checksum(&key, &known) || flow_now() - known.seen > FRAGMENT_TICKS)
		return false;
	p->flow.sport = known.sport;
	p->flow.dport = known.dport;
	p->flow.proto = known.proto;
	return true;
}

/* Decides about a fragment without ports. It neither begins nor extends a flow: the first fragment
 * has done that. False: nothing is known of its datagram. */
static __noinline int fragment_decide(struct packet *p, struct action *a)
{
	if (!fragment_complete(p))
		return false;
	flow_apply_known(a, &p->flow);
	return true;
}

/* A first fragment that ends within the TCP or SCTP header cannot be translated, since its checksum
 * is in another fragment. It is dropped if it is for one of our flows or frontends; only an
 * attacker sends such fragments. */
__noinline int fragment_decide_cut(const struct packet *p, struct action *a)
{
	if (!p || !a || !p->is_fragment)
		return 0;
	if (flow_known(&p->flow, &a->to) != CT_UNKNOWN || lb_frontend(&p->flow, false))
		flow_drop(a, REASON_FRAGMENT);
	return 0;
}

/* Later fragments that overtake the first one. They go on to the stack, because their flow is not yet
 * known, and a copy is kept. If the first fragment then turns out to be ours, the copies come in
 * once more by the device they came by, and find the ports.
 *
 * A tc program cannot create a packet, but it can clone one and then overwrite the original: the first
 * fragment is sent to where it came in, then takes the bytes of a waiting one, is sent again, and
 * so on. */

/* No checksum covers the link header. */
#define EARLY_LINK sizeof(struct ethhdr)

static __always_inline struct early_tally *fragment_early_count(void)
{
	__u32 row = 0;

	return bpf_map_lookup_elem(&early_tally, &row);
}

/* Notes that the first fragment of a datagram is not ours: later ones need not be kept. */
__noinline int fragment_early_ignore(const struct packet *p)
{
	struct early_mark *mark;
	struct datagram key;
	__u64 hash;

	if (!p)
		return 0;
	key = fragment_key(p);
	hash = flow_hash((const struct flow *)&key);
	mark = fragment_mark(hash);
	if (mark)
		*(volatile __u64 *)&mark->stranger = (hash >> 32 << 32) | flow_now();
	return 0;
}

static __always_inline bool fragment_early_is_stranger(const struct early_mark *mark, __u64 hash)
{
	__u64 stranger = *(volatile const __u64 *)&mark->stranger;

	return stranger >> 32 == hash >> 32 && flow_now() - (__u32)stranger <= FRAGMENT_TICKS;
}

static __always_inline bool fragment_early_take(struct early_slot *row)
{
	return !__sync_val_compare_and_swap(&row->busy, 0, 1);
}

static __always_inline void fragment_early_release(struct early_slot *row)
{
	__sync_lock_test_and_set(&row->busy, 0);
}

/* Reports whether a frame of this length can be kept. The asm keeps the length in one register;
 * otherwise the verifier forgets the check. */
static __always_inline bool fragment_early_fits(__u32 *len)
{
	__u64 n = *len;

	asm volatile("" : "+r"(n));
	if (n <= EARLY_LINK || n > EARLY_BYTES)
		return false;
	asm volatile("" : "+r"(n));
	*len = n;
	return true;
}

/* Copies a fragment into the next row, over the oldest one. */
static __always_inline bool fragment_early_copy(struct __sk_buff *skb, const struct datagram *key,
						struct early_tally *tally)
{
	__u32 turn = __sync_fetch_and_add(&tally->kept, 1) % EARLY_FRAMES, len = skb->len;
	struct early_frame *frame = bpf_map_lookup_elem(&early_frames, &turn);
	struct early_slot *row = bpf_map_lookup_elem(&early_slots, &turn);

	if (!row || !frame || !fragment_early_fits(&len) || !fragment_early_take(row))
		return false;
	if (row->len && flow_now() - row->seen <= FRAGMENT_TICKS)
		__sync_fetch_and_add(&tally->lost, 1);
	row->datagram = *key;
	row->ifindex = skb->ifindex;
	row->seen = flow_now();
	row->len = bpf_skb_load_bytes(skb, 0, frame->bytes, len) ? 0 : len;
	fragment_early_release(row);
	return true;
}

/* Keeps a copy of a later fragment of which nothing is known. True: the first may have arrived
 * meanwhile. */
__noinline int fragment_early_keep(struct __sk_buff *skb, const struct packet *p)
{
	struct early_tally *tally = fragment_early_count();
	struct early_mark *mark;
	struct datagram key;
	__u64 hash;

	if (!p || !tally)
		return false;
	key = fragment_key(p);
	hash = flow_hash((const struct flow *)&key);
	mark = fragment_mark(hash);
	if (!mark || fragment_early_is_stranger(mark, hash))
		return false;
	if (!fragment_early_copy(skb, &key, tally)) {
		__sync_fetch_and_add(&tally->refused, 1);
		return false;
	}
	__sync_lock_test_and_set(&mark->kept, flow_now() + 1);
	return true;
}

/* Turns a packet into the one that waits in a row, and frees the row. */
static __always_inline bool fragment_early_become(struct __sk_buff *skb, struct early_slot *row, __u32 turn)
{
	struct early_frame *frame = bpf_map_lookup_elem(&early_frames, &turn);
	__u32 len = row->len;

	row->len = 0;
	if (!frame || !fragment_early_fits(&len))
		return false;
	/* Growing it first discards a checksum over the whole packet that the device computed. */
	return !bpf_skb_change_tail(skb, skb->len + 1, 0) && !bpf_skb_change_tail(skb, len, 0) &&
	       !bpf_skb_store_bytes(skb, 0, frame->bytes, len, BPF_F_INVALIDATE_HASH);
}

/* The state of sending fragments again. */
struct early_return {
	__u32 from; /* where the current packet came in */
	__u32 count;
};

/* If a row has a fragment of the datagram, sends the current packet to where it came in and turns
 * it into that fragment. False: that failed, and the packet is now neither of them. Not static, so
 * that the verifier walks it only once. */
__noinline int fragment_early_send(struct __sk_buff *skb, const struct packet *p, __u32 turn,
				   struct early_return *r)
{
	struct early_slot *row = bpf_map_lookup_elem(&early_slots, &turn);
	struct datagram key;
	bool whole = true;

	if (!p || !r || !row || !row->len)
		return true;
	key = fragment_key(p);
	if (__builtin_memcmp(&row->datagram, &key, sizeof(key)) || !fragment_early_take(row))
		return true;
	if (row->len && !__builtin_memcmp(&row->datagram, &key, sizeof(key)) &&
	    flow_now() - row->seen <= FRAGMENT_TICKS) {
		bpf_clone_redirect(skb, r->from, BPF_F_INGRESS);
		r->from = row->ifindex;
		r->count++;
		whole = fragment_early_become(skb, row, turn);
	}
	fragment_early_release(row);
	return whole;
}

/* Sends the fragments that wait for a first fragment, which has stored its ports. The others, and
 * the first itself, are then on their way to where they came in, and the packet is the last of
 * them. Returns zero if none waits, otherwise the verdict for the packet. */
static __noinline int fragment_early_serve(struct __sk_buff *skb, const struct packet *p)
{
	struct early_return r = { .from = skb->ifindex };
	struct early_tally *tally = fragment_early_count();

	if (!tally || !fragment_is_awaited(p))
		return 0;
	for (__u32 turn = 0; turn < EARLY_FRAMES; turn++) {
		if (fragment_early_send(skb, p, turn, &r))
			continue;
		__sync_fetch_and_add(&tally->lost, 1);
		return TC_ACT_SHOT;
	}
	if (!r.count)
		return 0;
	__sync_fetch_and_add(&tally->returned, r.count);
	return bpf_redirect(r.from, BPF_F_INGRESS);
}

/* Reports whether the header of TCP or SCTP goes on in the next fragment: what stands behind the end of
 * this one in the frame is not it. */
static __always_inline bool fragment_is_cut(struct __sk_buff *skb, const struct packet *p)
{
	__u32 at = p->is_v4 ? offsetof(struct iphdr, tot_len) : offsetof(struct ipv6hdr, payload_len);
	__be16 len;

	if (!packet_shakes_hands(p))
		return false;
	return bpf_skb_load_bytes(skb, p->l3 + at, &len, sizeof(len)) ||
	       bpf_ntohs(len) + (p->is_v4 ? 0 : sizeof(struct ipv6hdr)) < p->l4 - p->l3 + sizeof(struct tcphdr);
}
