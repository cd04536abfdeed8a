/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how the backend's node handles encapsulated packets, see dsr_encap.h: it removes
 * the encapsulation, keeps the backend's address and port, and continues with the inner packet as
 * if that had come in directly. */
#pragma once

#include "dsr_ingress_target.h"
#include "dsr_option.h"
#include "packet.h"

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

/* Reports whether an address is a node's, as far as Node objects tell. */
static __always_inline bool dsr_ingress_is_node(const struct addr *addr)
{
	struct addr key = *addr; /* as in ct_known */
	struct cluster_node *node = bpf_map_lookup_elem(&cluster_nodes, &key);

	return node && node->number;
}

/* What a destination is. */
enum dsr_ingress_to {
	UNWRAP_NOTHING,
	UNWRAP_FRONTEND,
	/* its port is a NodePort, which nodes may have at addresses that no Node object lists */
	UNWRAP_NODE_PORT,
};

/* Looks for the row of a frontend, and for that of its port at any address. */
static __always_inline enum dsr_ingress_to dsr_ingress_row(const struct svc_key *frontend)
{
	struct svc_key key = *frontend;

	if (bpf_map_lookup_elem(&svcs, &key))
		return UNWRAP_FRONTEND;
	key.addr = addr_any(&key.addr);
	return bpf_map_lookup_elem(&svcs, &key) ? UNWRAP_NODE_PORT : UNWRAP_NOTHING;
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
	return bpf_map_lookup_elem(&svcs, &key) && dsr_ingress_is_node(addr);
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
 * backend here nor given back, see dsr_return.h. */
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
