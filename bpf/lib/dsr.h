/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what the node in front and the backend's node share in direct server return: the
 * formats in which packets are forwarded, and the backends as other nodes refer to them. */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_helpers.h>

#include "addr.h"
#include "cluster.h"
#include "flow.h"
#include "maps.h"
#include "packet.h"
#include "reason.h"
#include "types.h"

enum {
	GENEVE_PORT = 6081,
	/* Source ports of what nodes encapsulate. They are privileged, and lie outside the ports
	 * that nodes give to what they masquerade: otherwise clients and pods could have a node
	 * send packets that look like its own. */
	GENEVE_FIRST_SOURCE = 512,
	GENEVE_LAST_SOURCE = 1023,
	GENEVE_WORDS = 2, /* of options: ours alone */
	GENEVE_ETHERNET = 0x6558,
	GENEVE_CLASS = 0xff1d, /* the class for experiments, RFC 8926, 3.5 */
	/* critical: a node that does not know the option must drop the packet */
	GENEVE_BACKEND = 0x81,
	GENEVE_CRITICAL = 0x40,
};

/* The Geneve header with our option. */
struct geneve {
	__u8 words;
	__u8 flags;
	__be16 proto;
	__be32 vni;
	__be16 class;
	__u8 type;
	__u8 len; /* in words */
	__be16 port;
	__be16 pad;
};

/* What lies between the outer IP header and the inner one. */
struct tunnel {
	struct udphdr udp;
	struct geneve geneve;
	struct ethhdr eth;
} __attribute__((packed));

/* Local backends as other nodes refer to them: those nodes forward to them what clients dialed, and
 * leave the reply to this node. Such packets may be forged, like any other, so everything that they
 * name is checked against this node's own rows: a backend gets only what was sent to a service that
 * has it. */

/* Reports whether a service has a backend on this node. */
static __always_inline bool dsr_ingress_serves(const struct dsr_hint *hint, __u32 service)
{
	struct svc_key key = {
		.addr = hint->backend, .port = hint->port, .hosted = HOSTED_BACKEND, .service = service
	};

	return bpf_map_lookup_elem(&svcs, &key);
}

/* Looks up a NodePort of another node, whose address is not known here. */
static __always_inline struct svc *dsr_ingress_node_port(struct svc_key *key)
{
	struct svc *svc;

	key->addr = addr_any(&key->addr);
	svc = bpf_map_lookup_elem(&svcs, key);
	return svc && svc->kind == SVC_NODE_PORT ? svc : NULL;
}

/* Finds the frontend of a packet from another node, unless this node has it as well: a frontend
 * that is closed here, because the node is drained, is still one on other nodes until they
 * finish. */
static __always_inline struct svc *dsr_ingress_frontend(const struct flow *flow)
{
	struct svc_key key = { .addr = flow->daddr, .port = flow->dport, .proto = flow->proto };
	struct svc *svc = dsr_ingress_node_port(&key);

	if (svc)
		return svc;
	key.hosted = HOSTED_BACKEND;
	key.addr = flow->daddr;
	svc = bpf_map_lookup_elem(&svcs, &key);
	return svc ? svc : dsr_ingress_node_port(&key);
}

/* What another node said about the current packet. It is in a map because functions on the way
 * there have no stack to spare. */
static __always_inline struct dsr_hint *dsr_ingress_hint(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&dsr_hints, &zero);
}

/* Points the first packet of a flow at the backend that another node chose. If the service has no
 * such backend here, as far as this node knows, the packet is to be given back (see dsr_tc.h), since
 * nodes learn of endpoints at different times. An option does not tell whom to give it back to, and
 * anybody can write one. False: this node serves the packet as if its client had dialed here. */
static __noinline int dsr_ingress_target(const struct packet *p, struct svc *svc, struct action *a)
{
	struct dsr_hint *hint = dsr_ingress_hint();
	__u32 index = svc->service;
	struct service *service = bpf_map_lookup_elem(&services, &index);

	if (!service)
		return !flow_drop(a, REASON_BAD_TABLE);
	if (!hint || !hint->port)
		return !flow_drop(a, REASON_STRAY);
	if (svc->kind == SVC_LOAD_BALANCER && !cluster_ranges_allow(service, index, &p->flow.saddr))
		return !flow_drop(a, REASON_SOURCE_RANGE);
	hint->is_known = dsr_ingress_serves(hint, index);
	if (hint->direct == DSR_OFF && (!hint->is_known || service->flags & SERVICE_SOURCE_RANGES))
		return false;
	a->verdict = VERDICT_REWRITE;
	__builtin_memset(&a->to, 0, sizeof(a->to));
	a->to.saddr = p->flow.saddr;
	a->to.daddr = hint->backend;
	a->to.sport = p->flow.sport;
	a->to.dport = hint->port;
	a->to.kind = FLOW_LOCAL | (svc->kind == SVC_LOAD_BALANCER ? FLOW_HAS_RANGES : 0);
	return true;
}

enum {
	/* copied into fragments, class control, for experiments: RFC 4727, 2.3 */
	OPTION4 = 0x9e,
	/* for experiments, 3.3: a host that does not know it drops the packet silently */
	OPTION6 = 0x5e,
	OPTION4_HEADER = 60, /* maximum length of an IPv4 header */
	OPTION6_PADDING = 1, /* PadN */
};

struct option4 {
	__u8 type;
	__u8 len;
	__be16 port;
	__be32 addr;
};

/* The whole header. Padding comes first, so that the address is aligned. */
struct option6 {
	__u8 next;
	__u8 words; /* in units of eight bytes, without the first */
	__u8 pad;
	__u8 pad_len;
	__u8 type;
	__u8 len;
	__be16 port;
	struct addr addr;
};

static __always_inline bool dsr_option_is_mode(const struct action *a)
{
	return flow_kind(&a->to) == FLOW_DSR_OPT;
}

/* The length of an IP header without options or extensions. */
static __always_inline __u32 dsr_option_base(const struct packet *p)
{
	return p->is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

static __always_inline __u32 dsr_option_len(const struct packet *p)
{
	return p->is_v4 ? sizeof(struct option4) : sizeof(struct option6);
}

/* The number of bytes between the fixed IP header and the header with the ports. Undefined if no
 * ports were found. */
static __always_inline __u32 dsr_option_spare(const struct packet *p)
{
	return p->l4 - p->l3 - dsr_option_base(p);
}

/* Reports whether a packet may contain our option: it has something between the fixed IP header and
 * the ports, other than just an IPv6 fragment header, or its ports cannot be read. */
static __always_inline bool dsr_option_is_due(const struct packet *p)
{
	__u32 spare = dsr_option_spare(p);

	if (!spare)
		return false;
	return p->l3 && (p->is_v4 || !p->is_fragment || spare != sizeof(struct extension));
}

static __always_inline bool dsr_option_is_there4(const struct iphdr *ip)
{
	const struct option4 *option = (const void *)(ip + 1);

	return ip->ihl > 5 && option->type == OPTION4;
}

/* Reports whether the options begin with ours, with or without the padding. */
static __always_inline bool dsr_option_is_first6(const struct option6 *option)
{
	return option->pad == OPTION6 ||
	       (option->pad == OPTION6_PADDING && !option->pad_len && option->type == OPTION6);
}

static __always_inline bool dsr_option_is_there6(const struct ipv6hdr *ip)
{
	return ip->nexthdr == IPPROTO_DSTOPTS && dsr_option_is_first6((const void *)(ip + 1));
}

/* Reports whether a packet begins with our option. */
static __always_inline bool dsr_option_is_there(const struct packet *p, void *data, void *end)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	if (p->is_v4) {
		ip = packet_at(data, end, p->l3, sizeof(*ip) + 2);
		return ip && dsr_option_is_there4(ip);
	}
	ip6 = packet_at(data, end, p->l3, sizeof(*ip6) + sizeof(struct extension));
	return ip6 && dsr_option_is_there6(ip6);
}

/* Reports whether the packets of a flow can get the option, judged by its first packet. Options of
 * its own that leave no room are in every packet of a flow, and those of IPv6 may be hop-by-hop
 * options, which have to come first. A client inside the cluster cannot use the mode either: the
 * backend's node could hardly reply to it, and does not know which node to give the packet back to.
 * Not static, so that the verifier does not follow both results. */
__noinline int dsr_option_is_possible(const struct packet *p)
{
	__u32 most = OPTION4_HEADER - sizeof(struct iphdr) - sizeof(struct option4);

	if (!p)
		return false;
	if (!p->is_v4)
		most = p->is_fragment ? sizeof(struct extension) : 0;
	return dsr_option_spare(p) <= most && !cluster_is_node_or_pod(&p->flow.saddr);
}

/* Returns the kind of a flow of a service to a backend on another node. */
static __always_inline enum flow_kind dsr_kind(const struct packet *p, const struct service *service)
{
	__u32 mode = (service->flags & SERVICE_DSR) >> DSR_SHIFT;

	if (mode == DSR_OFF || (mode == DSR_OPT && !dsr_option_is_possible(p)))
		return FLOW_REMOTE;
	return FLOW_DSR + mode;
}

static __always_inline bool dsr_option_has_ports(const struct packet *p)
{
	return p->l4 && !packet_is_icmp(p);
}

/* Returns the offset of the checksum that covers the addresses in a packet without ports; zero if
 * there is none. */
static __always_inline __u32 dsr_option_check(const struct packet *p)
{
	return p->l4 && !p->is_v4 ? p->l4 + offsetof(struct icmp, check) : 0;
}

/* The client's state after a packet, in a flow that its backend answers directly. CT_ANSWERED
 * stands for the first packet. XDP may leave a packet to tc after this has run, so running it twice
 * has to give the same result; hence a SYN ends no connection. */
static __always_inline __u8 dsr_client_state(const struct packet *p, __u8 state)
{
	if (p->tcp_flags & TCP_RST)
		return CT_RESET;
	if (packet_is_syn(p))
		return state == CT_ANSWERED ? CT_NEW : state;
	return p->tcp_flags & TCP_FIN || state == CT_CLOSING ? CT_CLOSING : CT_OPEN;
}

static __always_inline bool dsr_encap_is_geneve(const struct action *a)
{
	return flow_kind(&a->to) == FLOW_DSR_GENEVE;
}

/* The number of bytes added to a packet of either family. */
static __always_inline __u32 dsr_encap_room(bool is_v4, enum flow_kind kind)
{
	if (kind == FLOW_DSR_OPT)
		return is_v4 ? sizeof(struct option4) : sizeof(struct option6);
	return (is_v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) +
	       (kind == FLOW_DSR_GENEVE ? sizeof(struct tunnel) : 0);
}

static __always_inline __u32 dsr_encap_len(const struct packet *p, const struct action *a)
{
	return dsr_encap_room(p->is_v4, flow_kind(&a->to));
}

/* Drops a packet that is too big for the route to the backend, and tells the client how much it may
 * send. */
static __always_inline int dsr_encap_refuse(const struct packet *p, struct action *a)
{
	a->mtu -= dsr_encap_len(p, a);
	a->reject = REJECT_TOO_BIG;
	return flow_drop(a, REASON_TOO_BIG);
}

/* Lets a packet that comes in once more be recognized as the first of its flow again. */
static __noinline int dsr_begin_again(const struct packet *p, const struct action *a)
{
	struct flow key = p->flow; /* as in flow_known */
	struct ct_entry *row = a->is_first ? bpf_map_lookup_elem(&ct_pending, &key) : NULL;

	if (row && row->kind & FLOW_DSR)
		row->state = CT_ANSWERED;
	return 0;
}
