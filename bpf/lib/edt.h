/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how what a pod sends and gets is kept to a rate: each packet is given the time at which it may
 * leave, and the queue of the device that it leaves by (fq) has it wait until then. The time is given where the pod
 * is known, at its own device; it goes with the packet through the stack, past it, and into a tunnel. What leaves
 * by no device of the node's has one made for it to wait at (pair.h). */
#pragma once

#include "maps.h"
#include "packet.h"

#define EDT_SECOND 1000000000ULL
#define EDT_HORIZON (2 * EDT_SECOND)  /* what a pod sends is dropped if it would wait for longer */
#define EDT_PATIENCE (EDT_SECOND / 2) /* what it gets is: its sender is elsewhere, and not held up by that */
#define EDT_JAM (EDT_SECOND / 200)    /* senders that ask to be told of a jam are told of one as long as this */
#define EDT_BURST (EDT_SECOND / 50)   /* of the time in which it sent nothing, a pod may make up for so much */

/* Departures are counted in sixteenths of a nanosecond: a small packet takes 51.2 ns of 10 Gbit/s. */
#define EDT_SHIFT 4

/* The bytes on the wire of a packet, or of the pieces that it will be cut into, of which each has the headers. What
 * says the length of a packet that is larger than the header of IPv6 can say (jumbo.h) is on no wire. */
static __always_inline __u32 edt_wire_len(struct __sk_buff *skb, bool is_v4)
{
	__u32 size = skb->gso_size, len = skb->len, off = sizeof(struct ethhdr), jumbo = 0, headers;
	__u8 proto, byte = 0;

	if (!size)
		return len;
	if (bpf_skb_load_bytes(skb, off + (is_v4 ? 9 : 6), &proto, sizeof(proto)) ||
	    bpf_skb_load_bytes(skb, off, &byte, sizeof(byte)))
		return len;
	off += is_v4 ? (byte & 0xf) * 4 : sizeof(struct ipv6hdr);
	if (!is_v4 && proto == IPPROTO_HOPOPTS) {
		if (bpf_skb_load_bytes(skb, off, &proto, sizeof(proto)))
			return len;
		jumbo = 8;
	}
	byte = sizeof(struct udphdr) << 2;
	if (proto == IPPROTO_TCP && bpf_skb_load_bytes(skb, off + jumbo + 12, &byte, sizeof(byte)))
		return len;
	headers = off + (byte >> 4) * 4;
	len -= jumbo;
	return len > headers ? len + (len - headers - 1) / size * headers : len;
}

/* Takes so many bytes of a pod's time, and returns from when that was: zero if it is too far ahead. Nobody waits
 * for anybody: of two processors that find a pod idle for long one says from when its time counts again, and the
 * other's bytes come after those of the first, or as long before them as their clocks differ. */
static __always_inline __u64 edt_take(struct pod_pace *pace, __u64 rate, __u64 bytes, __u64 now, __u64 longest)
{
	__u64 next = *(volatile __u64 *)&pace->next, least = (now - EDT_BURST) << EDT_SHIFT;

	if (next > (now + longest) << EDT_SHIFT)
		return 0;
	if (next < least)
		__sync_val_compare_and_swap(&pace->next, next, least);
	return __sync_fetch_and_add(&pace->next, (bytes << EDT_SHIFT) * EDT_SECOND / rate) >> EDT_SHIFT;
}

/* What a pod's packet is told beside a time. */
enum {
	EDT_FREE = 0, /* no rate keeps it */
	EDT_LATE = 1, /* it would have to wait for too long */
};

static __always_inline bool edt_limits(__u32 ifindex)
{
	return bpf_map_lookup_elem(&pod_rates, &ifindex);
}

/* Takes a packet's time from a pod's, in one direction, and returns when that is. */
static __noinline __u64 edt_book(struct __sk_buff *skb, __u32 ifindex, __u32 kind, bool is_v4)
{
	struct pod_rate *limit = bpf_map_lookup_elem(&pod_rates, &ifindex);
	struct pace_key key = { .ifindex = ifindex, .kind = kind };
	struct pod_pace *pace;
	__u64 rate, now, at;

	if (!limit)
		return EDT_FREE;
	rate = kind == PACE_OUT ? *(volatile __u64 *)&limit->out : *(volatile __u64 *)&limit->in;
	pace = rate ? bpf_map_lookup_elem(&pod_paces, &key) : NULL;
	if (!pace)
		return EDT_FREE;
	now = bpf_ktime_get_ns();
	at = edt_take(pace, rate, edt_wire_len(skb, is_v4), now, kind == PACE_OUT ? EDT_HORIZON : EDT_PATIENCE);
	if (!at) {
		__sync_fetch_and_add(&pace->dropped, 1);
		return EDT_LATE;
	}
	__sync_fetch_and_add(&pace->sent, skb->len);
	if (kind == PACE_IN && at > now + EDT_JAM && bpf_skb_ecn_set_ce(skb) > 0)
		__sync_fetch_and_add(&pace->marked, 1);
	return at;
}

/* Gives a packet the time at which it may leave by a device, if that is yet to come. */
static __always_inline void edt_stamp(struct __sk_buff *skb, __u64 at)
{
	if (at > bpf_ktime_get_ns())
		bpf_skb_set_tstamp(skb, at, BPF_SKB_TSTAMP_DELIVERY_MONO);
}
