/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the reading of a packet that the stack has: not all of it need be linear, and generic XDP may
 * have left it without the header of its link. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet.h"

enum {
	READ_PULL = PACKET_L4_MOST + sizeof(struct tcphdr),
};

/* Since Linux 6.9 generic XDP forgets how long the header of the link is when it copies a packet for a program that
 * takes packets in parts, whoever's it is; so tc is given the packet without. The header is still in front, which
 * shows in that there is more than can be seen from here. False: it is where it belongs, or there is none. */
__noinline int read_restore_link(struct __sk_buff *skb)
{
	struct ethhdr eth;

	if (bpf_skb_load_bytes_relative(skb, skb->data_end - skb->data, &eth, sizeof(eth), BPF_HDR_START_MAC) ||
	    bpf_skb_load_bytes_relative(skb, 0, &eth, sizeof(eth), BPF_HDR_START_MAC))
		return false;
	return !bpf_skb_change_head(skb, sizeof(eth), 0) && !bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0);
}

/* Whether a packet may be read better once more. What has lost the header of its link makes no sense, but for what
 * is from a few addresses of which the middle looks like the end of such a header. */
static __always_inline bool read_mend(struct __sk_buff *skb, const struct packet *p, enum parsed parsed)
{
	if (parsed == PARSED_SHORT || parsed == PARSED_CUT)
		return !bpf_skb_pull_data(skb, skb->len < READ_PULL ? skb->len : READ_PULL);
	return (parsed == PARSED_OTHER || p->is_tagged) && read_restore_link(skb);
}

/* Headers beyond what is linear are made so, once. Not static: what follows is then walked once, and not for every
 * packet that there is, nor for all that is known of it from before. */
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
