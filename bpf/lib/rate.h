/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how pods' rates are enforced. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/types.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "packet.h"
#include "pod_maps.h"

/* The special case of IPv6 packets merged to more than their length field can express. Linux inserts a
 * jumbogram header between the IPv6 and TCP headers and removes it before segmentation, so no link
 * ever carries it. But bpf_check_mtu counts it when it checks whether the segments fit. */

enum {
	JUMBO_LEN = 8,
	JUMBO_OPTION = 0xc2, /* the option, which is all that the header contains */
	JUMBO_L4 = sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + JUMBO_LEN,
};

/* Reports whether the segments of such a packet fit a link with this MTU. */
static __always_inline bool rate_jumbo_fits(struct __sk_buff *skb, __u32 mtu)
{
	void *data = (void *)(long)skb->data;
	struct ipv6hdr *ip6 = data + sizeof(struct ethhdr);
	__u8 *tcp = data + JUMBO_L4;

	if (skb->protocol != bpf_htons(ETH_P_IPV6) || !skb->gso_size ||
	    (void *)(tcp + sizeof(struct tcphdr)) > (void *)(long)skb->data_end)
		return false;
	return ip6->nexthdr == IPPROTO_HOPOPTS && !ip6->payload_len &&
	       sizeof(*ip6) + (tcp[12] >> 4) * 4 + skb->gso_size <= mtu;
}

/* How much senders to a rate-limited pod may have in flight. Senders that support ECN learn of
 * congestion by a mark on their packets; others would send more and more until packets are
 * lost. So, while much waits, the pod advertises less room to them than it has (receive_window.h):
 * together as much as the rate lets through in a RECEIVE_WINDOW_ALL-th of a second, shared equally. */

#define RECEIVE_WINDOW_SECOND 1000000000ULL
#define RECEIVE_WINDOW_ALL 5 /* parts of a second */
/* length of a round; a sender that sends nothing for two rounds no longer counts */
#define RECEIVE_WINDOW_TURN (RECEIVE_WINDOW_SECOND / 4)
/* if no packet came for this long, everything starts over */
#define RECEIVE_WINDOW_PAUSE (2 * RECEIVE_WINDOW_SECOND)
#define RECEIVE_WINDOW_LONG (RECEIVE_WINDOW_SECOND / 7) /* senders are limited if packets have to wait longer */
/* and released gradually if less, as otherwise the rate would not be reached */
#define RECEIVE_WINDOW_SHORT (RECEIVE_WINDOW_SECOND / 20)
/* bytes: an acknowledgment, whose sender cannot be limited */
#define RECEIVE_WINDOW_SMALL 120

/* How much of an equal part each sender may have, in sixteenths. Distant senders need more than one
 * part, and if much traffic comes from senders that cannot be limited (UDP), less is left for the
 * others. */
enum {
	RECEIVE_WINDOW_LEAST = 4,
	RECEIVE_WINDOW_PART = 16,
	RECEIVE_WINDOW_FREE = 1024, /* unlimited */
};

/* The number of set bits. */
static __always_inline __u64 rate_window_count(__u64 bits)
{
	bits -= bits >> 1 & 0x5555555555555555ULL;
	bits = (bits & 0x3333333333333333ULL) + (bits >> 2 & 0x3333333333333333ULL);
	return ((bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fULL) * 0x0101010101010101ULL >> 56;
}

/* Begins the next round if this one is over, and returns the part. Another CPU may have begun a
 * round that is still in the future by our clock, or the very first one, whose part is not set
 * yet. */
static __always_inline __u64 rate_window_turn(struct receive_window *w, __u64 now, __u64 wait)
{
	__u64 began = *(volatile __u64 *)&w->began, part = w->part;
	__s64 since = now - began;
	bool idle = since > (__s64)(2 * RECEIVE_WINDOW_TURN);

	if (part < RECEIVE_WINDOW_LEAST)
		part = RECEIVE_WINDOW_FREE;
	if (since <= (__s64)RECEIVE_WINDOW_TURN || __sync_val_compare_and_swap(&w->began, began, now) != began)
		return part;
	w->flows_before = idle ? 0 : w->flows;
	w->flows = 0;
	if (since > (__s64)RECEIVE_WINDOW_PAUSE || part >= RECEIVE_WINDOW_FREE)
		return RECEIVE_WINDOW_FREE;
	if (wait < RECEIVE_WINDOW_SHORT)
		return part + part / 4;
	return wait > 2 * RECEIVE_WINDOW_LONG && part > RECEIVE_WINDOW_LEAST ? part - part / 4 : part;
}

/* Reports whether a packet is for a group, such as the node's own reports of its IPv6 groups. No
 * sender of those reads the pod's window. */
static __always_inline bool rate_window_is_group(struct __sk_buff *skb)
{
	__u8 first;

	return !bpf_skb_load_bytes(skb, 0, &first, sizeof(first)) && first & 1;
}

/* Notes that a packet for a pod has to wait for `wait` ns. CPUs that do this at the same time may
 * overwrite each other's notes; the next packet repeats them. */
static __always_inline void rate_window_note(struct __sk_buff *skb, struct receive_window *w, __u64 rate, __u64 now,
					     __u64 wait)
{
	__u64 bit = 1ULL << (bpf_get_hash_recalc(skb) & 63), part = rate_window_turn(w, now, wait), bytes, flows;

	if (wait > RECEIVE_WINDOW_LONG && part > RECEIVE_WINDOW_PART)
		part = RECEIVE_WINDOW_PART;
	w->part = part;
	if (skb->len > RECEIVE_WINDOW_SMALL && !(w->flows & bit) && !rate_window_is_group(skb))
		w->flows |= bit;
	flows = rate_window_count(w->flows | w->flows_before);
	bytes = rate / RECEIVE_WINDOW_ALL * part / RECEIVE_WINDOW_PART / (flows ? flows : 1);
	*(volatile __u64 *)&w->bytes = part >= RECEIVE_WINDOW_FREE ? 0 : bytes + 1;
}

/* How pods' rates are enforced: each packet is given its earliest departure time, and the fq queue of
 * the device it leaves by delays it until then. The time is set at the pod's own device, where the
 * pod is known, and stays with the packet through the stack, past it, and into a tunnel. A packet
 * that leaves by no device of the node is delayed at a device made for this (pod.h). */

#define EDT_SECOND 1000000000ULL
#define EDT_HORIZON (2 * EDT_SECOND) /* a sent packet is dropped if it would wait longer */
/* the same for a received packet: its sender is elsewhere and not slowed down by the wait */
#define EDT_PATIENCE (EDT_SECOND / 2)
/* a wait as long as this is signaled to senders that support ECN */
#define EDT_JAM (EDT_SECOND / 40)
/* the shares that contain a pod, nested: its namespace's and the node's */
#define EDT_SHARES 2
#define EDT_BURST (EDT_SECOND / 50) /* how much unused time an idle pod may make up for */

enum {
	EDT_BY_PIECES = 0xffff, /* the gso_size of merged SCTP: its segments have no common size */
	/* Ethernet with two VLAN tags, and IP and TCP with as many options as they can have */
	EDT_HEADERS = 142,
};

/* The queues have room for what may wait in packets of EDT_SMALL bytes (room.go). So where packets are
 * smaller, they may wait for less time; but EDT_FEW may always wait. */
#define EDT_SMALL 256
#define EDT_FEW 8
#define EDT_AVERAGE 5 /* each packet counts for 1/32 in the average of sizes */

/* Departure times are counted in sixteenths of a nanosecond: at 10 Gbit/s a small packet takes 51.2
 * ns. */
#define EDT_SHIFT 4

/* Reports whether IP follows the Ethernet header, with no VLAN tag in between. */
static __always_inline bool rate_is_ip(struct __sk_buff *skb)
{
	return skb->protocol == bpf_htons(ETH_P_IP) || skb->protocol == bpf_htons(ETH_P_IPV6);
}

/* Returns the offset of the header behind the IP header, and its protocol. Options of IPv6 may be
 * before it, such as the length of a jumbogram. Zero: the packet has no such header. */
static __always_inline __u32 rate_transport(struct __sk_buff *skb, bool is_v4, __u8 *proto)
{
	__u32 off = sizeof(struct ethhdr);
	__u8 byte, hop[2];

	if (skb->protocol != (is_v4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6)) ||
	    bpf_skb_load_bytes(skb, off + (is_v4 ? 9 : 6), proto, sizeof(*proto)) ||
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

/* Returns the bytes of a merged packet's headers, or zero if they are not known. `unsent` of them are
 * never on the wire: the jumbogram header. */
static __always_inline __u32 rate_headers(struct __sk_buff *skb, bool is_v4, __u32 *unsent)
{
	__u8 proto, byte;
	__u32 off = rate_transport(skb, is_v4, &proto);

	*unsent = 0;
	if (!off)
		return 0;
	if (!is_v4 && off == JUMBO_L4 && !bpf_skb_load_bytes(skb, JUMBO_L4 - JUMBO_LEN + 2, &byte, sizeof(byte)) &&
	    byte == JUMBO_OPTION)
		*unsent = JUMBO_LEN;
	switch (proto) {
	case IPPROTO_TCP:
		return bpf_skb_load_bytes(skb, off + 12, &byte, sizeof(byte)) ? 0 : off + (byte >> 4) * 4;
	case IPPROTO_UDP:
		return off + sizeof(struct udphdr);
	case IPPROTO_SCTP:
		return off + sizeof(struct sctp);
	}
	return 0;
}

/* Returns the bytes that a packet takes on the wire: if it is merged, each of its segments has all
 * headers. If those are not known, as with a pod's own tunnel or two VLAN tags, it assumes the
 * longest. */
static __always_inline __u32 rate_wire_len(struct __sk_buff *skb, bool is_v4)
{
	__u32 size = skb->gso_size, len = skb->len, unsent, headers, more;

	if (!size)
		return len;
	headers = rate_headers(skb, is_v4, &unsent);
	if (!headers) {
		headers = EDT_HEADERS;
		more = len / size;
	} else {
		headers -= unsent;
		len -= unsent;
		more = len > headers ? (len - headers - 1) / size : 0;
	}
	if (size == EDT_BY_PIECES)
		more = skb->gso_segs ? skb->gso_segs - 1 : 0;
	return len + more * headers;
}

/* Returns the average size of packets, with one of `bytes`. CPUs may overwrite each other's results:
 * the next packets make up for it. */
static __always_inline __u64 rate_size(struct pod_pace *pace, __u64 bytes)
{
	__u64 size = *(volatile __u64 *)&pace->size;

	if (!size)
		size = EDT_SMALL << EDT_SHIFT;
	return size - (size >> EDT_AVERAGE) + (bytes << EDT_SHIFT >> EDT_AVERAGE);
}

/* Returns for how long packets may wait if their average size is `size`, and a packet takes
 * `cost`. */
static __always_inline __u64 rate_longest(__u64 longest, __u64 size, __u64 cost)
{
	__u64 small = (EDT_SMALL << EDT_SHIFT), few = EDT_FEW * cost >> EDT_SHIFT, part;

	if (size >= small)
		return longest;
	part = longest * size / small;
	if (few > longest)
		few = longest;
	return part > few ? part : few;
}

/* What is known of a packet that needs a departure time. */
struct departure {
	__u64 now;
	__u64 bytes;
	__u64 asked; /* when its socket wants it to leave; zero: at once */
};

/* Takes the time for a packet from a pod and returns when it begins, or zero if that is too far
 * ahead, or if its socket wants it to leave too late. No CPU waits for another. Of two CPUs that
 * find a pod idle for long, one advances its time, and the bytes of the other come after those of
 * the first, or before them by as much as their clocks differ. */
static __always_inline __u64 rate_take(struct pod_pace *pace, __u64 rate, const struct departure *d, __u64 longest)
{
	__u64 next = *(volatile __u64 *)&pace->next, least = (d->now - EDT_BURST) << EDT_SHIFT;
	__u64 cost = (d->bytes << EDT_SHIFT) * EDT_SECOND / rate, size = rate_size(pace, d->bytes);

	if (next > (d->now + rate_longest(longest, size, cost)) << EDT_SHIFT ||
	    d->asked > d->now + rate_longest(EDT_HORIZON, size, cost))
		return 0;
	*(volatile __u64 *)&pace->size = size;
	if (next < least)
		__sync_val_compare_and_swap(&pace->next, next, least);
	return __sync_fetch_and_add(&pace->next, cost) >> EDT_SHIFT;
}

/* The departure times with a special meaning. */
enum {
	EDT_FREE = 0,		/* no rate applies */
	EDT_BEYOND_HORIZON = 1, /* it would have to wait too long */
};

/* Returns the account of what a pod with a rate has sent or received so far: one for all of its
 * devices. */
static __always_inline struct pod_pace *rate_pace(const struct pod_rate *limit, __u32 ifindex, __u32 kind)
{
	__u32 of = *(volatile __u32 *)&limit->pace;
	struct pace_key key = { .ifindex = of ? of : ifindex, .kind = kind };

	return bpf_map_lookup_elem(&pod_paces, &key);
}

/* Reports whether what a pod sends may have to wait. */
static __always_inline bool rate_limits(__u32 ifindex)
{
	struct pod_rate *limit = bpf_map_lookup_elem(&pod_rates, &ifindex);

	return limit && (*(volatile __u64 *)&limit->out || limit->share);
}

/* Takes the time for a packet from an account with a rate, and counts the packet. */
static __always_inline __u64 rate_pay(struct pod_pace *pace, __u64 rate, const struct departure *d, __u64 longest)
{
	__u64 at;

	if (!rate || !pace)
		return EDT_FREE;
	at = rate_take(pace, rate, d, longest);
	if (!at) {
		__sync_fetch_and_add(&pace->dropped, 1);
		return EDT_BEYOND_HORIZON;
	}
	__sync_fetch_and_add(&pace->sent, d->bytes);
	return at;
}

/* Counts a packet as dropped that an account had admitted, and another one did not. The account does
 * not get its time back: later packets have taken what follows. */
static __always_inline void rate_deny(struct pod_pace *pace, __u64 bytes)
{
	if (!pace)
		return;
	__sync_fetch_and_add(&pace->sent, -bytes);
	__sync_fetch_and_add(&pace->dropped, 1);
}

/* How long a packet may wait for a share. The fuller the share's queue, the fewer classes it still
 * admits; pods of the highest class are rejected last. */
static __always_inline __u64 rate_patience(__u32 class)
{
	return class == CLASS_GUARANTEED   ? EDT_HORIZON
	       : class == CLASS_BESTEFFORT ? EDT_SECOND / 20
					   : EDT_SECOND / 4;
}

/* Takes the time for a packet from every share of its pod, and returns the latest time, or `at`,
 * which is that of the pod's own account. */
static __always_inline __u64 rate_share(const struct pod_rate *limit, struct pod_pace *own,
					const struct departure *d, __u64 at)
{
	struct pod_pace *inner = NULL, *pace;
	__u64 id = limit->share, then;
	struct share_rate *share;

	for (int i = 0; i < EDT_SHARES && id; i++) {
		share = bpf_map_lookup_elem(&share_rates, &id);
		if (!share)
			break;
		pace = bpf_map_lookup_elem(&share_paces, &id);
		then = rate_pay(pace, *(volatile __u64 *)&share->out, d, rate_patience(limit->class));
		if (then == EDT_BEYOND_HORIZON) {
			rate_deny(own, d->bytes);
			rate_deny(inner, d->bytes);
			return EDT_BEYOND_HORIZON;
		}
		if (then > at)
			at = then;
		inner = pace;
		id = share->within;
	}
	return at;
}

/* Lets fq prefer the packets of some pods: by default it maps these priorities to its three
 * bands. */
static __always_inline void rate_prefer(struct __sk_buff *skb, __u32 class)
{
	if (class != CLASS_BURSTABLE)
		skb->priority = class == CLASS_GUARANTEED ? 6 : 2;
}

/* The same for a packet that came back from another device, where the kernel reset its priority. */
static __always_inline void rate_prefer_again(struct __sk_buff *skb, __u32 ifindex)
{
	struct pod_rate *limit = bpf_map_lookup_elem(&pod_rates, &ifindex);

	if (limit)
		rate_prefer(skb, limit->class);
}

/* Returns when the socket of a packet wants it to leave. A socket that paces itself says so. */
static __always_inline __u64 rate_asked(struct __sk_buff *skb)
{
	return skb->tstamp_type == BPF_SKB_TSTAMP_DELIVERY_MONO ? skb->tstamp : 0;
}

/* Takes the time for a packet from its pod's accounts for what it sends, and returns its departure
 * time. */
static __always_inline __u64 rate_book_out(struct __sk_buff *skb, const struct pod_rate *limit, __u32 ifindex,
					   bool is_v4)
{
	__u64 rate = *(volatile __u64 *)&limit->out, at;
	struct pod_pace *pace = NULL;
	struct departure d;

	rate_prefer(skb, limit->class);
	if (!rate && !limit->share)
		return EDT_FREE;
	d = (struct departure) { bpf_ktime_get_ns(), rate_wire_len(skb, is_v4), rate_asked(skb) };
	if (rate)
		pace = rate_pace(limit, ifindex, PACE_OUT);
	at = rate_pay(pace, rate, &d, EDT_HORIZON);
	return at == EDT_BEYOND_HORIZON ? at : rate_share(limit, pace, &d, at);
}

/* The same for what it receives. */
static __always_inline __u64 rate_book_in(struct __sk_buff *skb, const struct pod_rate *limit, __u32 ifindex,
					  bool is_v4)
{
	__u64 rate = *(volatile __u64 *)&limit->in, at;
	struct pod_pace *pace;
	struct departure d;

	if (!rate)
		return EDT_FREE;
	d = (struct departure) { bpf_ktime_get_ns(), rate_wire_len(skb, is_v4), 0 };
	pace = rate_pace(limit, ifindex, PACE_IN);
	at = rate_pay(pace, rate, &d, EDT_PATIENCE);
	if (!pace)
		return at;
	/* With a VLAN tag before IP, the kernel's helper would change bytes of the tag. */
	if (at > d.now + EDT_JAM && rate_is_ip(skb) && bpf_skb_ecn_set_ce(skb) > 0)
		__sync_fetch_and_add(&pace->marked, 1);
	rate_window_note(skb, &pace->window, rate, d.now,
			 at == EDT_BEYOND_HORIZON ? EDT_PATIENCE
			 : at > d.now		  ? at - d.now
						  : 0);
	return at;
}

static __noinline __u64 rate_book(struct __sk_buff *skb, __u32 ifindex, __u32 kind, bool is_v4)
{
	struct pod_rate *limit = bpf_map_lookup_elem(&pod_rates, &ifindex);

	if (!limit)
		return EDT_FREE;
	return kind == PACE_OUT ? rate_book_out(skb, limit, ifindex, is_v4)
				: rate_book_in(skb, limit, ifindex, is_v4);
}

/* Sets the earliest departure time of a packet, if it is in the future and its socket does not want
 * a later one. */
static __always_inline void rate_stamp(struct __sk_buff *skb, __u64 at)
{
	if (rate_asked(skb) <= at && at > bpf_ktime_get_ns())
		bpf_skb_set_tstamp(skb, at, BPF_SKB_TSTAMP_DELIVERY_MONO);
}
