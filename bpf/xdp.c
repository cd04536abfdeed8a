// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the XDP program of the node's devices. It writes packets, and decides
 * nothing. */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lib/admit.h"
#include "lib/config.h"
#include "lib/count.h"
#include "lib/csum.h"
#include "lib/decide.h"
#include "lib/dsr.h"
#include "lib/dsr_encap.h"
#include "lib/event.h"
#include "lib/fastpath.h"
#include "lib/flow.h"
#include "lib/fragment.h"
#include "lib/icmp.h"
#include "lib/maps.h"
#include "lib/new_flow.h"
#include "lib/packet.h"
#include "lib/reason.h"
#include "lib/reject.h"
#include "lib/rewrite.h"
#include "lib/route.h"
#include "lib/types.h"

/* The checksum is always complete at XDP: no device has left it to a later one. */
static __always_inline bool xdp_sum(void *data, void *end, const struct packet *p, const struct action *a)
{
	__u32 at = p->l4 + rewrite_check_offset(p);
	__u16 *check = data + at;

	if (p->flow.proto == IPPROTO_SCTP)
		return rewrite_sctp(data, end, p, a->to.sport, a->to.dport);
	if (at > PACKET_L4_MOST + offsetof(struct tcphdr, check) || (void *)(check + 1) > end)
		return false;
	rewrite_check(check, p->flow.proto, &a->to);
	return true;
}

static __always_inline void xdp_count(struct xdp_md *ctx, const struct packet *p, const struct action *a)
{
	__u32 len = ctx->data_end - ctx->data;

	count(HOOK_XDP, a->reason, len);
	event_tell(p, a, HOOK_XDP, len);
}

static __noinline int xdp_drop(struct xdp_md *ctx, const struct packet *p, const struct action *a)
{
	xdp_count(ctx, p, a);
	return XDP_DROP;
}

/* Drops a packet that is not what was parsed before, which cannot happen. */
static __always_inline int xdp_mistake(struct xdp_md *ctx, const struct packet *p, struct action *a)
{
	flow_drop(a, REASON_BAD_TABLE);
	return xdp_drop(ctx, p, a);
}

/* Turns a dropped packet into the reply to it. */
__noinline int xdp_reject(struct xdp_md *ctx, const struct packet *p, const struct action *a)
{
	struct answering r = { .p = p, .len = ctx->data_end - ctx->data };

	if (!p || !a || !reject_plan(&r, a, (void *)(long)ctx->data, (void *)(long)ctx->data_end) ||
	    bpf_xdp_adjust_tail(ctx, r.keep - r.len) || (r.room && bpf_xdp_adjust_head(ctx, -r.room)))
		return XDP_DROP;
	r.link = r.room;
	if (!reject_write(&r, a, (void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return XDP_DROP;
	return XDP_TX;
}

static __always_inline int xdp_refuse(struct xdp_md *ctx, const struct packet *p, const struct action *a)
{
	xdp_count(ctx, p, a);
	return a->reject == REJECT_NONE ? XDP_DROP : xdp_reject(ctx, p, a);
}

/* Reports whether a packet leaves by the device it came from. For the others the stack finds the
 * route, unless tc gets them unchanged. */
static __always_inline bool xdp_forwards(const struct packet *p, const struct action *a)
{
	return a->to.ifindex == p->ifindex;
}

/* Sends on an ICMP error or a later fragment. Nothing replies to these, because no error may be
 * sent about either. */
static __always_inline int xdp_apply_portless(struct xdp_md *ctx, const struct packet *p, struct action *a)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (!xdp_forwards(p, a))
		return XDP_PASS;
	if (p->ttl <= 1) {
		flow_drop(a, REASON_TTL);
		return xdp_drop(ctx, p, a);
	}
	return rewrite_hops(data, end, p) && rewrite_link(data, end, a) ? XDP_TX : xdp_mistake(ctx, p, a);
}

/* Reports whether the device accepts a packet with its encapsulation. */
static __always_inline bool xdp_can_encap(struct xdp_md *ctx, const struct packet *p, struct action *a)
{
	return fastpath_xdp_takes(ctx, a,
				  dsr_encap_mtu((void *)(long)ctx->data, (void *)(long)ctx->data_end, p, a));
}

/* Makes room behind the link header. */
static __always_inline bool xdp_grow(struct xdp_md *ctx, const struct packet *p, const struct action *a)
{
	struct ethhdr *from, *to;
	struct ethhdr eth;

	from = packet_at((void *)(long)ctx->data, (void *)(long)ctx->data_end, 0, sizeof(eth));
	if (!from)
		return false;
	eth = *from;
	if (bpf_xdp_adjust_head(ctx, -(int)dsr_encap_len(p, a)))
		return false;
	to = packet_at((void *)(long)ctx->data, (void *)(long)ctx->data_end, 0, sizeof(eth));
	if (!to)
		return false;
	*to = eth;
	return true;
}

/* Changes a packet's destination, with its checksums. */
__noinline int xdp_point(struct xdp_md *ctx, const struct packet *p, struct action *a)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u16 *check;
	__u32 at;

	if (!p || !a || !rewrite_target(data, end, p, a))
		return false;
	if (dsr_option_has_ports(p))
		return xdp_sum(data, end, p, a);
	at = dsr_option_check(p);
	check = packet_at(data, end, at, sizeof(*check));
	if (at && check)
		*check = csum_change(*check, a->to.addr_diff);
	return !at || check;
}

/* Moves the first `front` bytes of a frame forward by `by` bytes, to its new start. */
static __always_inline bool xdp_move(void *data, void *end, __u32 front, __u32 by)
{
	void *from = packet_at(data, end, by, front), *to = packet_at(data, end, 0, front);

	if (!from || !to)
		return false;
	fastpath_xdp_copy(to, from, front);
	return true;
}

/* Inserts the option. */
__noinline int xdp_write_option(struct xdp_md *ctx, const struct packet *p)
{
	void *data, *end;

	if (!p || bpf_xdp_adjust_head(ctx, -(int)dsr_option_len(p)))
		return false;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (!(p->is_v4 ? xdp_move(data, end, sizeof(struct ethhdr) + sizeof(struct iphdr), sizeof(struct option4))
		       : xdp_move(data, end, sizeof(struct ethhdr) + sizeof(struct ipv6hdr),
				  sizeof(struct option6))))
		return false;
	return dsr_option_write(data, end, p) >= 0;
}

/* Leaves a packet to tc. */
static __always_inline int xdp_leave(const struct packet *p, const struct action *a)
{
	dsr_begin_again(p, a);
	return XDP_PASS;
}

/* Sends a packet to its backend with what the client dialed in an option. tc handles packets that
 * have no room for it. */
__noinline int xdp_add_option(struct xdp_md *ctx, const struct packet *p, struct action *a)
{
	if (!p || !a)
		return XDP_PASS;
	if (!dsr_option_fits((void *)(long)ctx->data, (void *)(long)ctx->data_end, p))
		return xdp_leave(p, a);
	if (!xdp_point(ctx, p, a) || !rewrite_hops((void *)(long)ctx->data, (void *)(long)ctx->data_end, p) ||
	    !rewrite_link((void *)(long)ctx->data, (void *)(long)ctx->data_end, a) || !xdp_write_option(ctx, p))
		return flow_drop(a, REASON_BAD_TABLE);
	return XDP_TX;
}

/* Sends a packet to a backend on another node that answers it directly, or decides to drop it: the
 * caller knows whether to reply. tc handles packets that leave by another device, and those that
 * are too big, because XDP cannot reply to a packet with fragments. */
__noinline int xdp_encap(struct xdp_md *ctx, const struct packet *p, struct action *a)
{
	if (!p || !a)
		return XDP_PASS;
	if (!xdp_forwards(p, a))
		return xdp_leave(p, a);
	if (p->ttl <= 1)
		return flow_expire(a);
	if (!xdp_can_encap(ctx, p, a))
		return xdp_leave(p, a);
	if (dsr_option_is_mode(a))
		return xdp_add_option(ctx, p, a);
	if (!rewrite_hops((void *)(long)ctx->data, (void *)(long)ctx->data_end, p) || !xdp_grow(ctx, p, a) ||
	    !dsr_encap_write((void *)(long)ctx->data, (void *)(long)ctx->data_end, p, a))
		return flow_drop(a, REASON_BAD_TABLE);
	return XDP_TX;
}

/* The same for a packet without ports, about which no error may be sent. */
static __always_inline int xdp_encap_portless(struct xdp_md *ctx, const struct packet *p, struct action *a)
{
	int verdict = xdp_encap(ctx, p, a);

	return a->verdict == VERDICT_DROP ? xdp_drop(ctx, p, a) : verdict;
}

__noinline int xdp_fragment(struct xdp_md *ctx, struct packet *p, struct action *a)
{
	if (!p || !a)
		return XDP_PASS;
	fragment_decide(p, a);
	if (a->verdict == VERDICT_DROP)
		return xdp_drop(ctx, p, a);
	if (a->verdict == VERDICT_PASS || !flow_is(&a->to, FLOW_COMES_IN) || route_is_elsewhere(p, &a->to))
		return XDP_PASS;
	if (a->to.kind & FLOW_DSR)
		return xdp_encap_portless(ctx, p, a);
	if (!rewrite_fragment((void *)(long)ctx->data, (void *)(long)ctx->data_end, p, a))
		return xdp_mistake(ctx, p, a);
	return xdp_apply_portless(ctx, p, a);
}

__noinline int xdp_icmp(struct xdp_md *ctx, const struct packet *p, struct action *a)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet quote;
	int parsed;

	if (!p || !a)
		return XDP_PASS;
	parsed = packet_quote(&quote, p, data, end);
	if (parsed != PARSED_FLOW && parsed != PARSED_CUT)
		return icmp_echo_answer(data, end, p) ? XDP_TX : XDP_PASS;
	icmp_decide(p, &quote, a);
	if (a->verdict == VERDICT_DROP)
		return xdp_drop(ctx, p, a);
	if (a->verdict == VERDICT_PASS || !flow_is(&a->to, FLOW_COMES_IN) || route_is_elsewhere(p, &a->to))
		return XDP_PASS;
	if (a->to.kind & FLOW_DSR)
		return xdp_encap_portless(ctx, p, a);
	if (!icmp_rewrite(data, end, p, &quote, a))
		return xdp_mistake(ctx, p, a);
	return xdp_apply_portless(ctx, p, a);
}

/* Handles a packet without ports of its own. */
static __always_inline int xdp_other(struct xdp_md *ctx, struct packet *p, struct action *a, enum parsed parsed)
{
	if (parsed == PARSED_LATER)
		return xdp_fragment(ctx, p, a);
	if (parsed == PARSED_ICMP)
		return xdp_icmp(ctx, p, a);
	if (parsed == PARSED_CUT)
		fragment_decide_cut(p, a);
	return a->verdict == VERDICT_DROP ? xdp_drop(ctx, p, a) : XDP_PASS;
}

/* Carries out a decision. Not static, so that the verifier walks it once and not for every path
 * that leads here. */
__noinline int xdp_apply(struct xdp_md *ctx, const struct packet *p, struct action *a)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	bool forward;
	int verdict;

	if (!p || !a)
		return XDP_PASS;
	forward = xdp_forwards(p, a);
	if (a->verdict == VERDICT_PASS)
		return XDP_PASS;
	if (a->to.kind & FLOW_DSR && a->verdict == VERDICT_REWRITE) {
		verdict = xdp_encap(ctx, p, a);
		if (a->verdict != VERDICT_DROP)
			return verdict;
	}
	if (a->verdict == VERDICT_DROP)
		return xdp_refuse(ctx, p, a);
	if (forward && p->ttl <= 1) {
		flow_expire(a);
		return xdp_refuse(ctx, p, a);
	}
	if (a->reason != REASON_NONE)
		xdp_count(ctx, p, a);
	if (!rewrite_headers(data, end, p, a, forward) || !xdp_sum(data, end, p, a))
		return xdp_mistake(ctx, p, a);
	return forward ? XDP_TX : XDP_PASS;
}

/* Decides about a packet of an unknown flow. Not static, like xdp_apply. */
__noinline int xdp_begin(struct xdp_md *ctx, const struct packet *p, struct action *a)
{
	return p && a ? new_flow_decide(ctx, p, a, false) : 0;
}

/* Parses a packet into `p`, which must be zero except for what the caller fills in. Not static, so
 * that the verifier walks what follows once and not for every kind of packet and every value of
 * `lacks`. */
__noinline int xdp_parse(struct xdp_md *ctx, struct packet *p, __u32 lacks)
{
	if (!p)
		return PARSED_OTHER;
	p->lacks = lacks;
	return packet_parse(p, (void *)(long)ctx->data, (void *)(long)ctx->data_end);
}

/* Reports whether a packet may carry what its client dialed, from another node: then tc handles it,
 * whatever flow it seems to belong to. */
__noinline int xdp_is_marked(struct xdp_md *ctx, const struct packet *p)
{
	return p && dsr_option_is_there(p, (void *)(long)ctx->data, (void *)(long)ctx->data_end);
}

static __always_inline bool xdp_is_to(const __u16 *dest, const void *mac)
{
	const __u16 *own = mac;

	return dest[0] == own[0] && dest[1] == own[1] && dest[2] == own[2];
}

/* Reports whether a frame was sent to the device it came in by. A device in promiscuous mode, as
 * for a capture, also receives frames that switches flood, and these are for another node to
 * forward. tc learns this from the kernel. */
static __always_inline bool xdp_is_ours(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 ifindex = ctx->ingress_ifindex;
	struct device_mac *own = bpf_map_lookup_elem(&device_macs, &ifindex);

	return own && data + sizeof(struct ethhdr) <= end && xdp_is_to(data, own->mac);
}

/* Drops a packet that the fast path has written in part, for lack of headroom. */
static __always_inline int xdp_fastpath_fail(struct xdp_md *ctx, struct packet *p, struct action *a)
{
	*p = (struct packet) { .flow = p->flow, .ifindex = ctx->ingress_ifindex };
	*a = (struct action) { .to = a->to };
	return xdp_mistake(ctx, p, a);
}

/* Sends a packet to a backend that answers it directly. */
static __always_inline int xdp_fastpath_dsr(struct xdp_md *ctx, struct packet *p, struct action *a,
					    const struct fastpath *offsets, struct ct_entry *row)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 len = fastpath_len(offsets, data, end);
	struct ct_entry *to = &a->to;
	bool is_whole;

	if (!to->ifindex || data + offsets->l4 + sizeof(struct udphdr) > end)
		return FASTPATH_UNKNOWN;
	if (to->ifindex != ctx->ingress_ifindex || !route_is_complete(to) || !xdp_is_to(data, to->smac))
		return XDP_PASS;
	if (!len || !fastpath_xdp_takes(ctx, a, len + dsr_encap_room(fastpath_is_v4(offsets), flow_kind(to))) ||
	    !(fastpath_follow(offsets, data, row) && fastpath_touch(&p->flow, row, to)))
		return FASTPATH_UNKNOWN;
	switch (flow_kind(to)) {
	case FLOW_DSR_OPT:
		is_whole = fastpath_xdp_option(ctx, &p->flow, to, offsets);
		break;
	case FLOW_DSR_GENEVE:
		is_whole = fastpath_xdp_encap(ctx, &p->flow, to, offsets, true);
		break;
	default:
		is_whole = fastpath_xdp_encap(ctx, &p->flow, to, offsets, false);
	}
	return is_whole ? XDP_TX : xdp_fastpath_fail(ctx, p, a);
}

/* The fast path for a packet of one family, see fastpath.h. A packet that leaves by the device it came
 * from leaves with the source MAC address that it must have been sent to. */
static __always_inline int xdp_fastpath(struct xdp_md *ctx, struct packet *p, struct action *a, bool is_v4)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ct_entry *row, *to = &a->to;
	struct fastpath offsets;
	bool forward;
	__u64 sum;

	if (is_v4 ? !fastpath_read4(&offsets, &p->flow, data, end) : !fastpath_read6(&offsets, &p->flow, data, end))
		return FASTPATH_NOT;
	sum = fastpath_sum(&p->flow);
	row = bpf_map_lookup_elem(&ct, &p->flow);
	if (!row) {
		row = bpf_map_lookup_elem(&ct_pending, &p->flow);
		if (!row)
			return FASTPATH_NEW;
		return fastpath_is_dsr(row, sum, to) ? xdp_fastpath_dsr(ctx, p, a, &offsets, row)
						     : FASTPATH_UNKNOWN;
	}
	if (!fastpath_copy(row, sum, to))
		return FASTPATH_NOT;
	forward = to->ifindex;
	if (forward ? to->ifindex != ctx->ingress_ifindex || !route_is_complete(to) || !xdp_is_to(data, to->smac)
		    : !xdp_is_ours(ctx))
		return XDP_PASS;
	if (!(fastpath_follow(&offsets, data, row) && fastpath_touch(&p->flow, row, to)))
		return FASTPATH_NOT;
	fastpath_rewrite(&offsets, data, to, forward);
	rewrite_check(data + offsets.check, fastpath_proto(&offsets), to);
	return forward ? XDP_TX : XDP_PASS;
}

/* The same for either family. */
static __always_inline int xdp_try(struct xdp_md *ctx, struct packet *p, struct action *a)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (cfg.growing || data + sizeof(struct ethhdr) > end)
		return FASTPATH_NOT;
	if (fastpath_link(data) == bpf_htons(ETH_P_IP))
		return xdp_fastpath(ctx, p, a, true);
	return fastpath_link(data) == bpf_htons(ETH_P_IPV6) ? xdp_fastpath(ctx, p, a, false) : FASTPATH_NOT;
}

SEC("xdp.frags")
int xdp_from_netdev(struct xdp_md *ctx)
{
	enum parsed parsed;
	struct packet p;
	struct action a;
	int outcome;

	outcome = xdp_try(ctx, &p, &a);
	if (outcome > FASTPATH_NOT)
		return outcome;
	if (!xdp_is_ours(ctx))
		return XDP_PASS;
	p = (struct packet) { .ifindex = ctx->ingress_ifindex, .bounces = true };
	a = (struct action) {};
	parsed = xdp_parse(ctx, &p, fastpath_lacks(outcome));
	if (p.is_tagged || admit_is_forged(&p) ||
	    (cfg.dsr_accept && dsr_option_is_due(&p) && xdp_is_marked(ctx, &p)))
		return XDP_PASS;
	if (parsed != PARSED_FLOW)
		return xdp_other(ctx, &p, &a, parsed);
	/* tc has the waiting fragments, and decides about this one: not twice */
	if (p.is_fragment && fragment_is_awaited(&p))
		return XDP_PASS;
	if (!decide(ctx, &p, &a))
		xdp_begin(ctx, &p, &a);
	if (a.verdict == VERDICT_REWRITE && route_is_elsewhere(&p, &a.to))
		a.verdict = VERDICT_PASS;
	if (p.is_fragment && a.verdict == VERDICT_REWRITE) {
		fragment_remember(&p, &a);
		/* tc has the waiting fragments */
		if (a.verdict == VERDICT_REWRITE && fragment_is_awaited(&p))
			return xdp_leave(&p, &a);
	}
	return xdp_apply(ctx, &p, &a);
}

char _license[] SEC("license") = "Dual BSD/GPL";
