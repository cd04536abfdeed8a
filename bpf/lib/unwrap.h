/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how the backend's node handles encapsulated packets, see wrap.h: it removes
 * the encapsulation, keeps the backend's address and port, and continues with the inner packet as
 * if that had come in directly. */
#pragma once

#include "hosted.h"
#include "option.h"
#include "packet.h"

/* Reports whether a packet may be encapsulated. */
static __always_inline bool unwrap_is_due(const struct packet *p, enum parsed parsed)
{
	if (option_is_due(p))
		return true;
	if (parsed == PARSED_FLOW)
		return p->flow.dport == bpf_htons(GENEVE_PORT) && p->flow.proto == IPPROTO_UDP;
	return parsed == PARSED_OTHER && p->flow.proto == (p->is_v4 ? IPPROTO_IPIP : IPPROTO_IPV6);
}

/* Reports whether a frontend has a row, or its port has one for any address. */
static __always_inline bool unwrap_is_known(const struct svc_key *frontend)
{
	struct svc_key key = *frontend;

	if (bpf_map_lookup_elem(&svcs, &key))
		return true;
	key.addr = addr_any(&key.addr);
	return bpf_map_lookup_elem(&svcs, &key);
}

/* Reports whether the inner packet may be for a frontend; one without ports may be about one. A
 * backend may also be the end of tunnels that are none of our business. */
static __always_inline bool unwrap_is_frontend(struct svc_key *key, const struct udphdr *ports)
{
	if (key->proto != IPPROTO_TCP && key->proto != IPPROTO_UDP && key->proto != IPPROTO_SCTP)
		return true;
	if (!ports)
		return false;
	key->port = ports->dest;
	if (unwrap_is_known(key))
		return true;
	key->hosted = 1; /* it was a frontend before this node was drained */
	return unwrap_is_known(key);
}

static __always_inline bool unwrap_is_ours4(__u32 at, void *data, void *end)
{
	struct iphdr *ip = packet_at(data, end, at, sizeof(*ip));
	struct svc_key key = {};

	if (!ip || ip->version != 4)
		return false;
	if (ip->ihl != 5 || ip->frag_off & bpf_htons(IP4_OFFSET))
		return true;
	key.addr = addr_from_v4(ip->daddr);
	key.proto = ip->protocol;
	return unwrap_is_frontend(&key, packet_at(data, end, at + sizeof(*ip), sizeof(struct udphdr)));
}

static __always_inline bool unwrap_is_ours6(__u32 at, void *data, void *end)
{
	struct ipv6hdr *ip = packet_at(data, end, at, sizeof(*ip));
	struct svc_key key = {};

	if (!ip || ip->version != 6)
		return false;
	__builtin_memcpy(&key.addr, &ip->daddr, sizeof(key.addr));
	key.proto = ip->nexthdr;
	return unwrap_is_frontend(&key, packet_at(data, end, at + sizeof(*ip), sizeof(struct udphdr)));
}

/* Reads an IP header followed by another one. */
static __always_inline bool unwrap_read_ipip(struct hint *hint, const struct packet *p, void *data, void *end)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	hint->direct = DIRECT_IPIP;
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
static __always_inline bool unwrap_read_geneve(struct hint *hint, const struct packet *p, void *data, void *end)
{
	__u32 base = p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct tunnel *t = packet_at(data, end, p->l4, sizeof(*t));

	hint->direct = DIRECT_GENEVE;
	hint->len = base + sizeof(*t);
	if (!t || p->is_fragment || p->l4 != p->l3 + base || t->geneve.words != GENEVE_WORDS ||
	    t->geneve.class != bpf_htons(GENEVE_CLASS) || t->geneve.type != GENEVE_BACKEND || t->geneve.len != 1)
		return false;
	hint->port = t->geneve.port;
	return true;
}

/* Reads a packet's encapsulation. False: it is not from another node, neither forwarded to a
 * backend here nor given back, see back.h. */
static __noinline int unwrap_read(struct hint *hint, const struct packet *p, void *data, void *end)
{
	hint->backend = p->flow.daddr;
	hint->from = p->flow.saddr;
	return p->flow.proto == IPPROTO_UDP ? unwrap_read_geneve(hint, p, data, end)
					    : unwrap_read_ipip(hint, p, data, end);
}

/* Reports whether the encapsulation that was read is for a backend here. */
static __noinline int unwrap_is_ours(const struct hint *hint, const struct packet *p, void *data, void *end)
{
	__u32 at = p->l3 + hint->len;

	if (!hosted_is(&hint->backend, 0))
		return false;
	return p->is_v4 ? unwrap_is_ours4(at, data, end) : unwrap_is_ours6(at, data, end);
}
