/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how a real RST or FIN is told from a forged one. Whoever knows the addresses
 * and ports of a connection can send either, and an idle flow would soon be forgotten because of it.
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
 * sent, and the row follows it: the packets in between may have been lost before they came here. Nine
 * of ten thousand guesses get past that, for a single connection. */
#pragma once

#include "ct.h"

/* In units of 64 KiB. A merged packet may be 512 KiB long. A RST may answer something that its
 * sender's last packets have overtaken. */
enum {
	SEQ_AHEAD = 8,
	SEQ_BEHIND = 1,
	SEQ_AGAIN = 1024, /* how far back a retransmission may be: the size of a window */
};

/* What a row stores: never zero, which stands for nothing. */
static __always_inline __u16 seq_half(__be32 number)
{
	__u16 half = bpf_ntohl(number) >> 16;

	return half ? half : 1;
}

/* Where a packet is in its direction. */
static __always_inline __u16 seq_of(const struct packet *p)
{
	return seq_half(p->flow.proto == IPPROTO_SCTP ? p->ack : p->seq);
}

static __always_inline bool seq_is_near(__u16 half, __u16 known)
{
	return (__u16)(half - known + SEQ_BEHIND) <= SEQ_BEHIND + SEQ_AHEAD;
}

/* Reports whether a packet acknowledges what the other direction has sent. */
static __noinline int seq_acknowledges(const struct packet *p, const struct ct_entry *to)
{
	struct flow back = ct_back(&p->flow, to);
	struct ct_entry *other = table_lookup(&back);
	__u16 half = seq_half(p->ack), known;

	if (!other || !ct_leads(other, &p->flow))
		return false;
	known = other->seq_hi;
	return known && (seq_is_near(half, known) || seq_is_near(known, half));
}

/* Reports whether a packet belongs where its direction is, and notes how far it has brought it. A
 * RST brings it nowhere, nor does a packet that was sent before. */
static __noinline int seq_judge(const struct packet *p, struct ct_entry *row, struct ct_entry *to)
{
	__u16 half = seq_of(p), known = to->seq_hi;

	if (known && p->flow.proto == IPPROTO_SCTP)
		return false;
	if (known && !seq_is_near(half, known) && !(p->tcp_flags & TCP_ACK && seq_acknowledges(p, to)))
		return false;
	if (p->tcp_flags & TCP_RST || (known && (__u16)(known - half) <= SEQ_AGAIN))
		return true;
	to->seq_hi = half;
	row->seq_hi = half;
	if (cfg.growing)
		ct_touch_growing(&p->flow, to);
	return true;
}

/* Reports whether a RST is the client's of a connection that is being opened, or may be: it continues its
 * SYN, whose number the row has. */
static __always_inline bool seq_gives_up(const struct packet *p, const struct ct_entry *row)
{
	return !row->seq_hi || p->flow.proto != IPPROTO_TCP || seq_is_near(seq_half(p->seq), row->seq_hi);
}

/* The same for the server's, which acknowledges the SYN, or follows a SYN-ACK. `row` is the client's. */
static __always_inline bool seq_refuses(const struct packet *p, const struct ct_entry *row)
{
	if (!row->seq_hi || p->flow.proto != IPPROTO_TCP)
		return true;
	if (p->tcp_flags & TCP_ACK && seq_is_near(seq_half(p->ack), row->seq_hi))
		return true;
	return row->state == CT_ANSWERED && bpf_ntohl(p->seq) - row->seen < CT_PROOF_WINDOW;
}

/* The same for any packet, of which nearly all are where the one before was. */
static __always_inline bool seq_fits(const struct packet *p, struct ct_entry *row, struct ct_entry *to)
{
	return !packet_shakes_hands(p) || seq_of(p) == to->seq_hi || seq_judge(p, row, to);
}
