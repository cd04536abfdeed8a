/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how what a pod sends and gets is kept to a rate: each packet is given the time at which it may
 * leave, and the queue of the device that it leaves by (fq) has it wait until then. The time is given where the pod
 * is known, at its own device; it goes with the packet through the stack, past it, and into a tunnel. What leaves
 * by no device of the node's has one made for it to wait at (pair.h). */
#pragma once

#include "jumbo.h"
#include "maps.h"
#include "packet.h"
#include "window.h"

#define EDT_SECOND 1000000000ULL
#define EDT_HORIZON (2 * EDT_SECOND)  /* what a pod sends is dropped if it would wait for longer */
#define EDT_PATIENCE (EDT_SECOND / 2) /* what it gets is: its sender is elsewhere, and not held up by that */
#define EDT_JAM (EDT_SECOND / 40)     /* senders that ask to be told of a jam are told of one as long as this */
#define EDT_SHARES 2		      /* a pod is in, one within the other: its namespace's and the node's */
#define EDT_BURST (EDT_SECOND / 50)   /* of the time in which it sent nothing, a pod may make up for so much */

/* Departures are counted in sixteenths of a nanosecond: a small packet takes 51.2 ns of 10 Gbit/s. */
#define EDT_SHIFT 4

/* Where the header after that of IP is, and of what. Options of IPv6 may be before it, such as what says the length
 * of a packet that is larger than its header can say (jumbo.h). Zero: the packet has no such header. */
static __always_inline __u32 edt_transport(struct __sk_buff *skb, bool is_v4, __u8 *proto)
{
	__u32 off = sizeof(struct ethhdr);
	__u8 byte, hop[2];

	if (bpf_skb_load_bytes(skb, off + (is_v4 ? 9 : 6), proto, sizeof(*proto)) ||
	    bpf_skb_load_bytes(skb, off, &byte, sizeof(byte)))
		return 0;
	if (is_v4)
		return off + (byte & 0xf) * 4;
	off += sizeof(struct ipv6hdr);
	if (*proto != IPPROTO_HOPOPTS)
		return off;
	if (bpf_skb_load_bytes(skb, off, hop, sizeof(hop)))
		return 0;
	*proto = hop[0];
	return off + (hop[1] + 1) * 8;
}

/* The bytes on the wire of a packet, or of the pieces that it will be cut into, of which each has the headers. What
 * says the length of one that is larger than the header of IPv6 can say is on no wire. */
static __always_inline __u32 edt_wire_len(struct __sk_buff *skb, bool is_v4)
{
	__u32 size = skb->gso_size, len = skb->len, off, headers;
	__u8 proto, byte = sizeof(struct udphdr) << 2;

	if (!size)
		return len;
	off = edt_transport(skb, is_v4, &proto);
	if (!off || (proto == IPPROTO_TCP && bpf_skb_load_bytes(skb, off + 12, &byte, sizeof(byte))))
		return len;
	headers = off + (byte >> 4) * 4;
	if (!is_v4 && off == JUMBO_L4 && !bpf_skb_load_bytes(skb, JUMBO_L4 - JUMBO_LEN + 2, &byte, sizeof(byte)) &&
	    byte == JUMBO_OPTION) {
		headers -= JUMBO_LEN;
		len -= JUMBO_LEN;
	}
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

/* Where it is what a pod with a rate has sent, or got, so far: one row for all of its devices. */
static __always_inline struct pod_pace *edt_pace(const struct pod_rate *limit, __u32 ifindex, __u32 kind)
{
	__u32 of = *(volatile __u32 *)&limit->pace;
	struct pace_key key = { .ifindex = of ? of : ifindex, .kind = kind };

	return bpf_map_lookup_elem(&pod_paces, &key);
}

static __always_inline bool edt_limits(__u32 ifindex)
{
	return bpf_map_lookup_elem(&pod_rates, &ifindex);
}

/* Takes a packet's time from what has so many bytes a second, and counts it. */
static __always_inline __u64 edt_pay(struct pod_pace *pace, __u64 rate, __u64 bytes, __u64 now, __u64 longest)
{
	__u64 at;

	if (!rate || !pace)
		return EDT_FREE;
	at = edt_take(pace, rate, bytes, now, longest);
	if (!at) {
		__sync_fetch_and_add(&pace->dropped, 1);
		return EDT_LATE;
	}
	__sync_fetch_and_add(&pace->sent, bytes);
	return at;
}

/* How long a packet may wait for what its pod shares with others. The more they have waiting, the fewer of them are
 * let in, and those who come first the last. */
static __always_inline __u64 edt_patience(__u32 class)
{
	return class == CLASS_GUARANTEED   ? EDT_HORIZON
	       : class == CLASS_BESTEFFORT ? EDT_SECOND / 20
					   : EDT_SECOND / 4;
}

/* Takes a packet's time from all that its pod shares with others, and returns the latest, or `at`. */
static __always_inline __u64 edt_share(const struct pod_rate *limit, __u64 bytes, __u64 now, __u64 at)
{
	__u64 id = limit->share, then;
	struct share_rate *share;

	for (int i = 0; i < EDT_SHARES && id && at != EDT_LATE; i++) {
		share = bpf_map_lookup_elem(&share_rates, &id);
		if (!share)
			break;
		then = edt_pay(bpf_map_lookup_elem(&share_paces, &id), *(volatile __u64 *)&share->out, bytes, now,
			       edt_patience(limit->class));
		if (then == EDT_LATE || then > at)
			at = then;
		id = share->within;
	}
	return at;
}

/* Has fq prefer the packets of some pods to those of others: it has three bands, by these numbers if nobody has
 * changed that. */
static __always_inline void edt_prefer(struct __sk_buff *skb, __u32 class)
{
	if (class != CLASS_BURSTABLE)
		skb->priority = class == CLASS_GUARANTEED ? 6 : 2;
}

/* Takes a packet's time from a pod's, in one direction, and returns when that is. */
static __noinline __u64 edt_book(struct __sk_buff *skb, __u32 ifindex, __u32 kind, bool is_v4)
{
	struct pod_rate *limit = bpf_map_lookup_elem(&pod_rates, &ifindex);
	__u64 rate, now, at, bytes;
	struct pod_pace *pace;

	if (!limit)
		return EDT_FREE;
	if (kind == PACE_OUT)
		edt_prefer(skb, limit->class);
	rate = kind == PACE_OUT ? *(volatile __u64 *)&limit->out : *(volatile __u64 *)&limit->in;
	if (!rate && (kind == PACE_IN || !limit->share))
		return EDT_FREE;
	now = bpf_ktime_get_ns();
	bytes = edt_wire_len(skb, is_v4);
	pace = edt_pace(limit, ifindex, kind);
	at = edt_pay(pace, rate, bytes, now, kind == PACE_OUT ? EDT_HORIZON : EDT_PATIENCE);
	if (kind == PACE_OUT)
		return edt_share(limit, bytes, now, at);
	if (!pace)
		return at;
	if (at > now + EDT_JAM && bpf_skb_ecn_set_ce(skb) > 0)
		__sync_fetch_and_add(&pace->marked, 1);
	window_note(skb, &pace->window, rate, now, at == EDT_LATE ? EDT_PATIENCE : at > now ? at - now : 0);
	return at;
}

/* Gives a packet the time at which it may leave by a device, if that is yet to come. A socket that paces itself has
 * given it one that may be later. */
static __always_inline void edt_stamp(struct __sk_buff *skb, __u64 at)
{
	if (skb->tstamp_type == BPF_SKB_TSTAMP_DELIVERY_MONO && skb->tstamp > at)
		return;
	if (at > bpf_ktime_get_ns())
		bpf_skb_set_tstamp(skb, at, BPF_SKB_TSTAMP_DELIVERY_MONO);
}
