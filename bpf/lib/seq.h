/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how a real RST or FIN is told from a forged one. Whoever knows the addresses and
 * ports of a connection can send either, and an idle flow would soon be forgotten because of it.
 * But only who sees the connection knows its sequence numbers. So a packet changes the state of its
 * direction only if it is near the end of what this direction has sent (RFC 5961 asks the same of
 * receivers, which discard it otherwise). Any packet goes on all the same: that is for its receiver
 * to judge.
 *
 * A row has only the upper half of the highest sequence number. It changes once in 64 KiB, so an
 * established packet nearly always has nothing to write. For SCTP it is the upper half of the
 * verification tag, which never changes.
 *
 * A packet too far away to belong there is believed if it acknowledges what the other direction has
 * sent, and the row follows it: the packets in between may have been lost before they came here.
 * Nine of ten thousand guesses get past that, for a single connection. */
#pragma once

#include <linux/in.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "config.h"
#include "flow.h"
#include "packet.h"
#include "types.h"

/* In units of 64 KiB. A merged packet may be 512 KiB long. A RST may answer something that its
 * sender's last packets have overtaken. */
enum {
	SEQ_AHEAD = 8,
	SEQ_BEHIND = 1,
	SEQ_AGAIN = 1024, /* how far back a retransmission may be: the size of a window */
};

/* What a row stores: never zero, which stands for nothing. */
static __always_inline __u16 seq_high(__be32 number)
{
	__u16 half = bpf_ntohl(number) >> 16;

	return half ? half : 1;
}

/* Where a packet is in its direction. */
static __always_inline __u16 seq_of(const struct packet *p)
{
	return seq_high(p->flow.proto == IPPROTO_SCTP ? p->ack : p->seq);
}

static __always_inline bool seq_is_near(__u16 half, __u16 known)
{
	return (__u16)(half - known + SEQ_BEHIND) <= SEQ_BEHIND + SEQ_AHEAD;
}

/* Reports whether a packet acknowledges what the other direction has sent. */
static __noinline int seq_acknowledges(const struct packet *p, const struct ct_entry *to)
{
	struct flow back = flow_reverse(&p->flow, to);
	struct ct_entry *other = flow_table_lookup(&back);
	__u16 half = seq_high(p->ack), known;

	if (!other || !flow_leads(other, &p->flow))
		return false;
	known = other->seq_hi;
	return known && (seq_is_near(half, known) || seq_is_near(known, half));
}

/* Both ends may lose a connection without a word, and the client may begin another one from the same port.
 * So where a connection goes on, the number of a client's SYN is noted, and that of an answer that
 * acknowledges it. */
static __noinline int seq_note_syn(const struct packet *p, struct ct_entry *row, struct ct_entry *to)
{
	struct flow back = flow_reverse(&p->flow, to);
	struct ct_entry *client;

	if (to->kind & FLOW_REPLY) {
		client = flow_table_lookup(&back);
		if (!client || !flow_leads(client, &p->flow) || !client->syn_hi ||
		    (__u16)(seq_high(p->ack) - client->syn_hi) > 1)
			return 0;
	}
	to->syn_hi = row->syn_hi = seq_high(p->seq);
	if (cfg.growing)
		flow_touch_growing(&p->flow, to);
	return 0;
}

/* Reports whether the client goes on from such an answer: then both directions are where its SYN and the
 * answer are. The SYN may be forged, and a server of SCTP answers even where it has the association, but
 * only the client gets that answer. */
static __noinline int seq_is_anew(const struct packet *p, struct ct_entry *row, struct ct_entry *to)
{
	struct flow back = flow_reverse(&p->flow, to);
	struct ct_entry *reply;
	bool is_tcp = p->flow.proto == IPPROTO_TCP;

	if (!to->syn_hi || to->kind & FLOW_REPLY || p->tcp_flags & TCP_RST)
		return false;
	reply = flow_table_lookup(&back);
	if (!reply || !flow_leads(reply, &p->flow) || !reply->syn_hi)
		return false;
	if (is_tcp ? !(p->tcp_flags & TCP_ACK) || !seq_is_near(seq_high(p->seq), to->syn_hi) ||
			     !seq_is_near(seq_high(p->ack), reply->syn_hi)
		   : seq_high(p->ack) != reply->syn_hi)
		return false;
	/* a packet of SCTP has the tag that the other end asked for */
	to->seq_hi = row->seq_hi = is_tcp ? to->syn_hi : reply->syn_hi;
	reply->seq_hi = is_tcp ? reply->syn_hi : to->syn_hi;
	to->syn_hi = row->syn_hi = reply->syn_hi = 0;
	if (cfg.growing) {
		flow_touch_growing(&p->flow, to);
		flow_touch_growing(&back, reply);
	}
	return true;
}

/* Reports whether a packet belongs where its direction is, and notes how far it has brought it. A
 * RST brings it nowhere, nor does a packet that was sent before. */
static __noinline int seq_judge(const struct packet *p, struct ct_entry *row, struct ct_entry *to)
{
	__u16 half = seq_of(p), known = to->seq_hi;

	if (known && p->flow.proto == IPPROTO_SCTP)
		return seq_is_anew(p, row, to);
	if (known && !seq_is_near(half, known) && !(p->tcp_flags & TCP_ACK && seq_acknowledges(p, to)))
		return seq_is_anew(p, row, to);
	if (p->tcp_flags & TCP_RST || (known && (__u16)(known - half) <= SEQ_AGAIN))
		return true;
	to->seq_hi = half;
	row->seq_hi = half;
	if (cfg.growing)
		flow_touch_growing(&p->flow, to);
	return true;
}

/* Reports whether a RST is the client's of a connection that is being opened, or may be: it continues its
 * SYN, whose number the row has. */
static __always_inline bool seq_gives_up(const struct packet *p, const struct ct_entry *row)
{
	return !row->seq_hi || p->flow.proto != IPPROTO_TCP || seq_is_near(seq_high(p->seq), row->seq_hi);
}

/* The same for the server's, which acknowledges the SYN, or follows a SYN-ACK. `row` is the client's. */
static __always_inline bool seq_refuses(const struct packet *p, const struct ct_entry *row)
{
	if (!row->seq_hi || p->flow.proto != IPPROTO_TCP)
		return true;
	if (p->tcp_flags & TCP_ACK && seq_is_near(seq_high(p->ack), row->seq_hi))
		return true;
	return row->state == CT_ANSWERED && bpf_ntohl(p->seq) - row->expected_ack < CT_PROOF_WINDOW;
}

/* The same for any packet, of which nearly all are where the one before was. */
static __always_inline bool seq_fits(const struct packet *p, struct ct_entry *row, struct ct_entry *to)
{
	return !packet_shakes_hands(p) || seq_of(p) == to->seq_hi || seq_judge(p, row, to);
}
