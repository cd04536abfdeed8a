/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how tc reads a packet: it need not be linear, and generic XDP may have left it
 * without its link header. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet.h"

enum {
	READ_PULL = PACKET_L4_MOST + sizeof(struct tcphdr),
};

/* Since Linux 6.9, generic XDP loses the length of the link header when it copies a packet for a
 * program that supports fragments, whoever owns that program; tc then gets the packet without the
 * header. The header is still in front of the data, which shows in that more bytes can be loaded
 * from the MAC header than there are after `data`. False: the header is where it belongs, or there
 * is none. */
__noinline int read_restore_link(struct __sk_buff *skb)
{
	struct ethhdr eth;

	if (bpf_skb_load_bytes_relative(skb, skb->data_end - skb->data, &eth, sizeof(eth), BPF_HDR_START_MAC) ||
	    bpf_skb_load_bytes_relative(skb, 0, &eth, sizeof(eth), BPF_HDR_START_MAC))
		return false;
	return !bpf_skb_change_head(skb, sizeof(eth), 0) && !bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0);
}

/* Reports whether parsing a packet again may give a better result. A packet that lost its link
 * header parses as nonsense, except from the few addresses whose middle looks like the end of an
 * Ethernet header. */
static __always_inline bool read_mend(struct __sk_buff *skb, const struct packet *p, enum parsed parsed)
{
	if (parsed == PARSED_SHORT || parsed == PARSED_CUT)
		return !bpf_skb_pull_data(skb, skb->len < READ_PULL ? skb->len : READ_PULL);
	return (parsed == PARSED_OTHER || p->is_tagged) && read_restore_link(skb);
}

/* Parses a packet; if headers are not linear, makes them so and parses again. Not static, so that
 * the verifier walks what follows once and not for every kind of packet and every value of
 * `lacks`. */
__noinline int read_packet(struct __sk_buff *skb, struct packet *p, __u32 lacks)
{
	enum parsed parsed = PARSED_OTHER;

	if (!p)
		return PARSED_OTHER;
	for (int i = 0; i < 2; i++) {
		__builtin_memset(p, 0, sizeof(*p));
		p->ifindex = skb->ifindex;
		p->lacks = lacks;
		parsed = packet_parse(p, (void *)(long)skb->data, (void *)(long)skb->data_end);
		if (!read_mend(skb, p, parsed))
			break;
	}
	return parsed;
}
