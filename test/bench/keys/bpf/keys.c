// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains programs that find the flow of an established IPv4 packet by addresses of four
 * bytes, and by addresses of sixteen bytes, into which those of four are mapped. Everything else is
 * the same in both. */

#include "../../minimal/bpf/nat.h"

struct narrow {
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u32 proto;
};

struct wide {
	__be32 saddr[4];
	__be32 daddr[4];
	__be16 sport;
	__be16 dport;
	__u32 proto;
};

/* A row of the size of one in a real table, which fits into a cache line. */
struct row {
	__u64 word[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH); /* type, flags and size are set at load */
	__uint(max_entries, 1);
	__type(key, struct narrow);
	__type(value, struct row);
} narrow_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct wide);
	__type(value, struct row);
} wide_flows SEC(".maps");

static __always_inline int apply(struct packet *p, const struct row *row)
{
	if (!row)
		return XDP_ABORTED;
	p->l4->dest = row->word[0] ^ row->word[7];
	return XDP_DROP;
}

SEC("xdp")
int find_narrow(struct xdp_md *ctx)
{
	struct narrow key = {};
	struct packet p;

	if (!parse(&p, (void *)(long)ctx->data, (void *)(long)ctx->data_end) || !p.ip4)
		return XDP_ABORTED;
	key.saddr = p.ip4->saddr;
	key.daddr = p.ip4->daddr;
	key.sport = p.l4->source;
	key.dport = p.l4->dest;
	key.proto = p.proto;
	return apply(&p, bpf_map_lookup_elem(&narrow_flows, &key));
}

SEC("xdp")
int find_wide(struct xdp_md *ctx)
{
	struct wide key = {};
	struct packet p;

	if (!parse(&p, (void *)(long)ctx->data, (void *)(long)ctx->data_end) || !p.ip4)
		return XDP_ABORTED;
	key.saddr[2] = key.daddr[2] = bpf_htonl(0xffff);
	key.saddr[3] = p.ip4->saddr;
	key.daddr[3] = p.ip4->daddr;
	key.sport = p.l4->source;
	key.dport = p.l4->dest;
	key.proto = p.proto;
	return apply(&p, bpf_map_lookup_elem(&wide_flows, &key));
}

char _license[] SEC("license") = "Dual BSD/GPL";
