/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how a program overwrites a packet with the next one of many flows: the headers
 * come from a constant, and the source port and the last half word of the source address identify
 * the flow. */
#pragma once

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum {
	SHAPE_WORDS = 10,      /* Ethernet, IPv6 and TCP, in whole words */
	SHAPE_SHORT_WORDS = 8, /* everything but those three together */
	SHAPE_PORT_BITS = 12,  /* the low bits of a flow's number are in its port, the others in its address */
};

struct shape {
	__u64 header[SHAPE_WORDS]; /* without checksums and varying fields */
	__u32 flows;
	__u32 stride; /* from one flow to the next, coprime to the number of flows */
	__u16 first_port;
	__u16 first_host;
	__u16 host_at;
	__u16 port_at;
	__u16 l4_check_at;
	__u16 l4_sum;	   /* of everything that does not vary */
	__u16 ip_check_at; /* 0 = IPv6, whose header has none */
	__u16 ip_sum;
	__u16 words; /* of the header in use */
	__u16 pad[3];
};

const volatile struct shape shape = {};

/* A program runs on one CPU at a time. */
static __u32 shape_flow;

static __always_inline __u16 shape_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Visits all flows in an order that neither caches nor prefetchers can predict, without a division.
 */
static __always_inline __u32 shape_next(void)
{
	__u32 flow = shape_flow, next = flow + shape.stride;

	shape_flow = next >= shape.flows ? next - shape.flows : next;
	return flow;
}

/* Rewrites the whole packet, since whatever processed it before has changed it. */
static __always_inline bool shape_write(void *data, void *end)
{
	__u32 flow = shape_next();
	__u16 port = bpf_htons(shape.first_port + (flow & ((1 << SHAPE_PORT_BITS) - 1)));
	__u16 host = bpf_htons(shape.first_host + (flow >> SHAPE_PORT_BITS));
	__u64 *word = data;
	__u16 check;

	if (data + SHAPE_SHORT_WORDS * 8 > end)
		return false;
	for (int i = 0; i < SHAPE_SHORT_WORDS; i++)
		word[i] = shape.header[i];
	if (shape.words > SHAPE_SHORT_WORDS) {
		if (data + SHAPE_WORDS * 8 > end)
			return false;
		for (int i = SHAPE_SHORT_WORDS; i < SHAPE_WORDS; i++)
			word[i] = shape.header[i];
	}
	*(__u16 *)(data + (shape.host_at & 63)) = host;
	*(__u16 *)(data + (shape.port_at & 63)) = port;
	if (shape.ip_check_at)
		*(__u16 *)(data + (shape.ip_check_at & 63)) = ~shape_fold((__u32)shape.ip_sum + host);
	if (data + (shape.l4_check_at & 127) + 2 > end)
		return false;
	check = ~shape_fold((__u32)shape.l4_sum + host + port);
	/* TCP treats both values alike, and in UDP 0 means that there is no checksum. */
	*(__u16 *)(data + (shape.l4_check_at & 127)) = check ?: 0xffff;
	return true;
}
