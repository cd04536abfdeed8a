// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the least that enforcing policies between two pods of a node needs, in the ways of
 * others: connection tracking at both ends, and either policies for the first packet of a flow only, or for
 * every packet. Whatever else a node does with a packet is missing. */

#include "nat.h"

struct judge_flow {
	__be32 saddr[4];
	__be32 daddr[4];
	__be16 sport;
	__be16 dport;
	__u16 proto;
	__u16 end; /* whose: a flow between two pods has a row for each */
};

struct judge_prefix {
	__u32 len;
	__be32 addr[4];
};

/* What an end may do with an identity at a port; port 0 is for all that have no row. */
struct judge_rule {
	__u32 identity;
	__be16 port;
	__u8 proto;
	__u8 end;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1); /* set at load */
	__type(key, struct judge_flow);
	__type(value, __u64);
} judge_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct judge_prefix);
	__type(value, __u32);
} judge_identities SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct judge_rule);
	__type(value, __u32);
} judge_rules SEC(".maps");

const volatile bool every_packet = false;
const volatile __u32 ifindex = 0; /* of the receiver */

enum {
	TC_DROP = 2,
};

static __always_inline void judge_addr(__be32 *wide, const struct packet *p, bool source)
{
	if (!p->ip4) {
		__builtin_memcpy(wide, source ? &p->ip6->saddr : &p->ip6->daddr, 16);
		return;
	}
	wide[2] = bpf_htonl(0xffff);
	wide[3] = source ? p->ip4->saddr : p->ip4->daddr;
}

/* Two lookups, as rules for a port and for all ports are different rows. */
static __always_inline bool judge_accepts(const struct packet *p, __u8 end, bool source)
{
	struct judge_rule rule = { .port = p->l4->dest, .proto = p->proto, .end = end };
	struct judge_prefix prefix = { .len = 128 };
	__u32 *identity;

	judge_addr(prefix.addr, p, source);
	identity = bpf_map_lookup_elem(&judge_identities, &prefix);
	if (!identity)
		return false;
	rule.identity = *identity;
	if (bpf_map_lookup_elem(&judge_rules, &rule))
		return true;
	rule.port = 0;
	return bpf_map_lookup_elem(&judge_rules, &rule);
}

static __always_inline bool judge(const struct packet *p, struct judge_flow *flow, __u8 end)
{
	__u64 now = bpf_jiffies64(), *seen;

	flow->end = end;
	seen = bpf_map_lookup_elem(&judge_flows, flow);
	if ((!seen || every_packet) && !judge_accepts(p, end, end))
		return false;
	if (!seen)
		bpf_map_update_elem(&judge_flows, flow, &now, BPF_ANY);
	else if (*seen != now)
		*seen = now;
	return true;
}

SEC("tc")
int tc_judge(struct __sk_buff *skb)
{
	struct judge_flow flow = {};
	struct packet p;

	if (!parse(&p, (void *)(long)skb->data, (void *)(long)skb->data_end))
		return TC_DROP;
	judge_addr(flow.saddr, &p, true);
	judge_addr(flow.daddr, &p, false);
	flow.sport = p.l4->source;
	flow.dport = p.l4->dest;
	flow.proto = p.proto;
	if (!judge(&p, &flow, 0) || !judge(&p, &flow, 1))
		return TC_DROP;
	if (p.ip4)
		p.ip4->ttl--;
	else
		p.ip6->hop_limit--;
	return bpf_redirect_peer(ifindex, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
