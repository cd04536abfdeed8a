/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how the backend's node recognizes and restores what other nodes forward to it. */
#pragma once

#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "cluster.h"
#include "config.h"
#include "csum.h"
#include "dsr.h"
#include "maps.h"
#include "packet.h"
#include "types.h"

/* How the backend's node handles encapsulated packets, see dsr_encap.h: it removes the encapsulation,
 * keeps the backend's address and port, and continues with the inner packet as if that had come in
 * directly. */

/* Reports whether a packet may have an encapsulation. */
static __always_inline bool dsr_ingress_may_be(const struct packet *p, enum parsed parsed)
{
	if (parsed == PARSED_FLOW)
		return p->flow.dport == bpf_htons(GENEVE_PORT) && p->flow.proto == IPPROTO_UDP;
	return parsed == PARSED_OTHER && p->flow.proto == (p->is_v4 ? IPPROTO_IPIP : IPPROTO_IPV6);
}

/* Reports whether a packet may have been forwarded by another node, where that is accepted. */
static __always_inline bool dsr_ingress_is_due(const struct packet *p, enum parsed parsed)
{
	return cfg.dsr_accept && (dsr_option_is_due(p) || dsr_ingress_may_be(p, parsed));
}

/* What a destination is. */
enum dsr_ingress_to {
	DSR_TO_NOTHING,
	DSR_TO_FRONTEND,
	/* its port is a NodePort, which nodes may have at addresses that no Node object lists */
	DSR_TO_NODE_PORT,
};

/* Looks for the row of a frontend, and for that of its port at any address. */
static __always_inline enum dsr_ingress_to dsr_ingress_row(const struct svc_key *frontend)
{
	struct svc_key key = *frontend;

	if (bpf_map_lookup_elem(&svcs, &key))
		return DSR_TO_FRONTEND;
	key.addr = addr_any(&key.addr);
	return bpf_map_lookup_elem(&svcs, &key) ? DSR_TO_NODE_PORT : DSR_TO_NOTHING;
}

/* Says whether a destination is a frontend, here or on a node that is not drained. Returns an enum
 * dsr_ingress_to. */
static __noinline int dsr_ingress_is_frontend(struct svc_key *to)
{
	enum dsr_ingress_to found = dsr_ingress_row(to);

	if (found)
		return found;
	to->hosted = HOSTED_BACKEND; /* it was a frontend before this node was drained */
	return dsr_ingress_row(to);
}

/* Reports whether an address is a frontend's. Those with NodePorts are the nodes'. */
static __noinline int dsr_ingress_is_address(const struct addr *addr)
{
	struct svc_key key = { .addr = *addr, .hosted = HOSTED_FRONTEND };

	if (bpf_map_lookup_elem(&svcs, &key))
		return true;
	key.addr = addr_any(addr);
	return bpf_map_lookup_elem(&svcs, &key) && cluster_is_node(addr);
}

/* Says whether an inner packet is for a frontend, or if it has no ports for a frontend's address: it
 * may be about one. A backend may also be the end of tunnels that are none of our business. */
static __always_inline int dsr_ingress_is_due_to(struct svc_key *key, const struct udphdr *ports)
{
	if (key->proto != IPPROTO_TCP && key->proto != IPPROTO_UDP && key->proto != IPPROTO_SCTP)
		return dsr_ingress_is_address(&key->addr);
	if (!ports)
		return false;
	key->port = ports->dest;
	return dsr_ingress_is_frontend(key);
}

static __always_inline int dsr_ingress_is_for4(__u32 at, void *data, void *end)
{
	struct iphdr *ip = packet_at(data, end, at, sizeof(*ip));
	struct svc_key key = {};

	if (!ip || ip->version != 4 || ip->ihl < 5)
		return false;
	key.addr = addr_from_v4(ip->daddr);
	if (ip->frag_off & bpf_htons(IP4_OFFSET))
		return dsr_ingress_is_address(&key.addr);
	key.proto = ip->protocol;
	return dsr_ingress_is_due_to(&key, packet_at(data, end, at + ip->ihl * 4, sizeof(struct udphdr)));
}

static __always_inline int dsr_ingress_is_for6(__u32 at, void *data, void *end)
{
	struct ipv6hdr *ip = packet_at(data, end, at, sizeof(*ip));
	struct svc_key key = {};

	if (!ip || ip->version != 6)
		return false;
	__builtin_memcpy(&key.addr, &ip->daddr, sizeof(key.addr));
	key.proto = ip->nexthdr;
	return dsr_ingress_is_due_to(&key, packet_at(data, end, at + sizeof(*ip), sizeof(struct udphdr)));
}

/* Reads an IP header followed by another one. */
static __always_inline bool dsr_ingress_read_ipip(struct dsr_hint *hint, const struct packet *p, void *data,
						  void *end)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	hint->direct = DSR_IPIP;
	hint->len = p->l4 - p->l3;
	if (p->is_v4) {
		ip = packet_at(data, end, p->l3, sizeof(*ip));
		if (!ip || hint->len != sizeof(*ip) || p->is_fragment || !p->is_whole)
			return false;
		hint->port = ip->id;
		return true;
	}
	ip6 = packet_at(data, end, p->l3, sizeof(*ip6));
	if (!ip6 || hint->len != sizeof(*ip6))
		return false;
	hint->port = bpf_htons(bpf_ntohl(*(__be32 *)ip6));
	return true;
}

/* Reads a Geneve header with our option and no other. */
static __always_inline bool dsr_ingress_read_geneve(struct dsr_hint *hint, const struct packet *p, void *data,
						    void *end)
{
	__u32 base = p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct tunnel *t = packet_at(data, end, p->l4, sizeof(*t));

	hint->direct = DSR_GENEVE;
	hint->len = base + sizeof(*t);
	if (!t || p->is_fragment || p->l4 != p->l3 + base || t->geneve.words != GENEVE_WORDS ||
	    t->geneve.class != bpf_htons(GENEVE_CLASS) || t->geneve.type != GENEVE_BACKEND || t->geneve.len != 1)
		return false;
	hint->port = t->geneve.port;
	return true;
}

/* Reads a packet's encapsulation. False: it is not from another node, neither forwarded to a
 * backend here nor given back, see dsr_tc.h. */
static __noinline int dsr_ingress_read(struct dsr_hint *hint, const struct packet *p, void *data, void *end)
{
	hint->backend = p->flow.daddr;
	hint->from = p->flow.saddr;
	return p->flow.proto == IPPROTO_UDP ? dsr_ingress_read_geneve(hint, p, data, end)
					    : dsr_ingress_read_ipip(hint, p, data, end);
}

/* Says whether the inner packet of the encapsulation that was read is for a frontend. Returns an enum
 * dsr_ingress_to. */
static __noinline int dsr_ingress_is_ours(const struct dsr_hint *hint, const struct packet *p, void *data,
					  void *end)
{
	__u32 at = p->l3 + hint->len;

	return p->is_v4 ? dsr_ingress_is_for4(at, data, end) : dsr_ingress_is_for6(at, data, end);
}

/* The result of looking for the option. */
enum dsr_option_found {
	DSR_OPTION_NONE,
	DSR_OPTION_OURS,
	DSR_OPTION_STRAY, /* not as any node of ours writes it, or of what is no frontend */
};

/* What the client dialed. */
struct dsr_option {
	struct addr addr;
	__be16 port;
};

static __always_inline int dsr_option_read4(struct dsr_option *to, __u32 at, void *data, void *end)
{
	struct iphdr *ip = packet_at(data, end, at, sizeof(*ip) + 2);
	struct option4 *option = (void *)(ip + 1);
	__u8 *second;

	if (!ip || !dsr_option_is_there4(ip))
		return DSR_OPTION_NONE;
	if ((void *)(option + 1) > end || ip->ihl * 4 < sizeof(*ip) + sizeof(*option) ||
	    option->len != sizeof(*option))
		return DSR_OPTION_STRAY;
	second = (void *)(option + 1);
	if (ip->ihl * 4 > sizeof(*ip) + sizeof(*option) && ((void *)(second + 1) > end || *second == OPTION4))
		return DSR_OPTION_STRAY;
	to->addr = addr_from_v4(option->addr);
	to->port = option->port;
	return DSR_OPTION_OURS;
}

static __always_inline int dsr_option_read6(struct dsr_option *to, __u32 at, void *data, void *end)
{
	struct ipv6hdr *ip = packet_at(data, end, at, sizeof(*ip) + sizeof(struct extension));
	struct option6 *option = (void *)(ip + 1), *second = option + 1;

	if (!ip || !dsr_option_is_there6(ip))
		return DSR_OPTION_NONE;
	if ((void *)(option + 1) > end || option->words != sizeof(*option) / 8 - 1 ||
	    option->pad != OPTION6_PADDING || option->len != sizeof(option->port) + sizeof(option->addr) ||
	    addr_is_v4(&option->addr))
		return DSR_OPTION_STRAY;
	if (option->next == IPPROTO_DSTOPTS &&
	    ((void *)second + sizeof(struct extension) > end || dsr_option_is_first6(second)))
		return DSR_OPTION_STRAY;
	to->addr = option->addr;
	to->port = option->port;
	return DSR_OPTION_OURS;
}

/* Looks for the option in a packet that came in, and reads it. */
static __noinline int dsr_option_read(struct dsr_option *to, const struct packet *p, void *data, void *end)
{
	return p->is_v4 ? dsr_option_read4(to, p->l3, data, end) : dsr_option_read6(to, p->l3, data, end);
}

/* Returns a length field decreased by `less`. If the field is zero, the merged packet was too long
 * with the option; without it the packet may not be. */
static __always_inline __be16 dsr_option_length_of(__be16 before, __u32 less, __u32 len)
{
	if (before)
		return bpf_htons(bpf_ntohs(before) - less);
	return len <= 0xffff ? bpf_htons(len) : 0;
}

static __always_inline int dsr_option_remove4(void *data, void *end, const struct packet *p, __u32 len)
{
	struct iphdr *ip = packet_at(data, end, p->l3, sizeof(*ip) + sizeof(struct option4));
	struct option4 *option = (void *)(ip + 1);
	__u32 before, sum;

	if (!ip)
		return -1;
	before = *(__u32 *)ip;
	sum = csum_fold(csum_words(option, 2));
	ip->ihl -= sizeof(*option) / 4;
	ip->tot_len = dsr_option_length_of(ip->tot_len, sizeof(*option), len - p->l3 - sizeof(*option));
	ip->check = csum_change(ip->check, csum_dsr_option(before, *(__u32 *)ip) + (__u16)~sum);
	return sum;
}

static __always_inline int dsr_option_remove6(void *data, void *end, const struct packet *p, __u32 len)
{
	struct ipv6hdr *ip = packet_at(data, end, p->l3, sizeof(*ip) + sizeof(struct option6));
	struct option6 *option = (void *)(ip + 1);
	__u32 before;

	if (!ip)
		return -1;
	before = *((__u32 *)ip + 1);
	ip->nexthdr = option->next;
	ip->payload_len =
		dsr_option_length_of(ip->payload_len, sizeof(*option), len - p->l3 - sizeof(*ip) - sizeof(*option));
	return csum_dsr_option(before, *((__u32 *)ip + 1));
}

/* Changes the header for the removal of the option, which follows, in a frame of `len` bytes.
 * Returns the change to the sum over the whole packet while the option is still there, or a
 * negative value if the packet is not what was parsed before. */
static __noinline int dsr_option_remove(void *data, void *end, const struct packet *p, __u32 len)
{
	return p->is_v4 ? dsr_option_remove4(data, end, p, len) : dsr_option_remove6(data, end, p, len);
}
