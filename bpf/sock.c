// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the socket programs: they point a socket at its backend before a packet
 * exists, and show it only the address that it dialed. Each hook has its own fields for the
 * address; the decision is the same for all. */

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <linux/tcp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/addr.h"
#include "lib/cluster.h"
#include "lib/config.h"
#include "lib/count.h"
#include "lib/lb.h"
#include "lib/maps.h"
#include "lib/pod_maps.h"
#include "lib/reason.h"
#include "lib/sock_ctx.h"
#include "lib/sock_origin.h"
#include "lib/types.h"

enum verdict {
	VERDICT_PASS,
	VERDICT_REWRITE,
	VERDICT_REFUSE,
	VERDICT_ANSWER, /* the agent probes whether the programs run */
};

enum {
	REFUSE = 0, /* return values of a cgroup program; REFUSE makes the call fail */
	PROCEED = 1,
};

/* What a socket dials, and which backend it gets. */
struct dial {
	struct svc_key to;
	struct service *service;
	__u32 index;
	__u32 scope;
	struct choice choice;
};

static __always_inline bool sock_in_host(struct bpf_sock_addr *ctx)
{
	return bpf_get_netns_cookie(ctx) == sock_cfg.host_netns;
}

/* Mixes every bit of a cookie, which is a counter, into every bit of the hash. */
static __always_inline __u32 sock_mix(__u64 x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

/* A connecting socket has no source address yet; its network namespace stands for the client. */
static __always_inline __u32 sock_hash(struct bpf_sock_addr *ctx, struct service *service)
{
	switch (service->algorithm) {
	case ALGORITHM_ROUND_ROBIN:
		return __sync_fetch_and_add(&service->turn, 1);
	case ALGORITHM_SOURCE_HASH:
		return sock_mix(bpf_get_netns_cookie(ctx));
	default:
		return bpf_get_prandom_u32();
	}
}

/* Reports whether a NodePort is reachable at an address: at the node's addresses, and at loopback
 * addresses in the node's own network namespace. */
static __always_inline bool sock_at_node(struct bpf_sock_addr *ctx, const struct addr *addr)
{
	if (addr_is_loopback(addr) || addr_is_any(addr))
		return sock_in_host(ctx);
	return bpf_map_lookup_elem(&node_addrs, addr);
}

static __always_inline struct svc *sock_frontend(struct bpf_sock_addr *ctx, const struct svc_key *to)
{
	struct svc *svc = bpf_map_lookup_elem(&svcs, to);
	struct svc_key any = { .addr = addr_any(&to->addr), .port = to->port, .proto = to->proto };

	if (svc && svc->kind == SVC_EXTERNAL_ONLY)
		return NULL;
	if (svc && svc->kind < SVC_NODE_PORT)
		return svc;
	if (!sock_at_node(ctx, &to->addr))
		return NULL;
	return svc ?: bpf_map_lookup_elem(&svcs, &any);
}

static __always_inline enum reason sock_choose(struct bpf_sock_addr *ctx, struct dial *dial)
{
	__u64 client = bpf_get_netns_cookie(ctx);
	struct affinity_key key = { .client.word = { client, client >> 32 }, .service = dial->index };
	enum reason reason;

	if (dial->service->affinity_seconds &&
	    lb_affinity_find(&key, dial->service, dial->scope, &dial->choice) == AFFINITY_HOLDS)
		return REASON_NONE;
	reason = lb_select(dial->service, dial->index, dial->scope, sock_hash(ctx, dial->service), &dial->choice);
	if (reason == REASON_NONE && dial->service->affinity_seconds)
		lb_affinity_remember(&key, dial->service, &dial->choice);
	return reason;
}

/* Reports whether a socket is bound to an address. */
static __always_inline bool sock_is_bound(struct bpf_sock_addr *ctx, bool is_v4)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk)
		return true;
	return is_v4 ? sk->src_ip4 : sk->src_ip6[0] | sk->src_ip6[1] | sk->src_ip6[2] | sk->src_ip6[3];
}

/* Reports whether the source ranges of a service let a socket in. They need the source of a packet,
 * which a connecting socket does not have yet. But a process of the node that has not bound its
 * socket to another one will have the node's address, wherever the frontend's address is, on this
 * node too. An address that was read while it was being written is a mix of two, which node_addrs
 * does not contain. */
static __always_inline bool sock_in_ranges(struct bpf_sock_addr *ctx, const struct dial *dial)
{
	bool is_v4 = addr_is_v4(&dial->to.addr);
	struct range_key key = { .prefix_len = RANGE_BITS, .service = dial->index };
	__u32 which = is_v4 ? SNAT_NODE4 : SNAT_NODE6;
	struct addr *node;

	if (!sock_in_host(ctx) || sock_is_bound(ctx, is_v4))
		return false;
	node = bpf_map_lookup_elem(&snat_addrs, &which);
	if (!node)
		return false;
	key.addr = *node;
	return bpf_map_lookup_elem(&node_addrs, &key.addr) && bpf_map_lookup_elem(&src_ranges, &key);
}

/* Finds the service that is dialed. VERDICT_PASS if there is none, or if it is not for this
 * client, or if only the source of a packet can tell. */
static __always_inline enum verdict sock_resolve(struct bpf_sock_addr *ctx, struct dial *dial)
{
	struct svc *svc = sock_frontend(ctx, &dial->to);

	if (!svc || sock_optout_applies(bpf_get_netns_cookie(ctx)))
		return VERDICT_PASS;
	dial->index = svc->service;
	dial->service = bpf_map_lookup_elem(&services, &dial->index);
	if (!dial->service) {
		count(HOOK_SOCK, REASON_BAD_TABLE, 0);
		return VERDICT_REFUSE;
	}
	if (svc->kind == SVC_LOAD_BALANCER && dial->service->flags & SERVICE_SOURCE_RANGES &&
	    !sock_in_ranges(ctx, dial))
		return VERDICT_PASS;
	dial->scope = lb_inside_scope(dial->service, svc->kind);
	return VERDICT_REWRITE;
}

static __always_inline enum verdict sock_select(struct bpf_sock_addr *ctx, struct dial *dial)
{
	enum reason reason = sock_choose(ctx, dial);

	if (reason == REASON_NONE)
		return VERDICT_REWRITE;
	count(HOOK_SOCK, reason, 0);
	return VERDICT_REFUSE;
}

/* Fails the call with the given errno. If the kernel does not support that, the packet path has to
 * refuse. */
static __always_inline int sock_refuse(int errno)
{
	if (!sock_cfg.can_refuse)
		return PROCEED;
	bpf_set_retval(-errno);
	return REFUSE;
}

/* Refuses what is for no service if it would lead nowhere. What an opted-out client sends may still be
 * redirected, by its mesh for example. */
static __always_inline enum verdict sock_refuse_nowhere(struct bpf_sock_addr *ctx, const struct svc_key *to)
{
	if (!cluster_ip_leads_nowhere(to) || sock_optout_applies(bpf_get_netns_cookie(ctx)))
		return VERDICT_PASS;
	count(HOOK_SOCK, REASON_NO_SERVICE, 0);
	return VERDICT_REFUSE;
}

/* A UDP socket may be connected to anything: libraries do that to learn their own address, and send
 * nothing. */
static __always_inline enum verdict sock_connect(struct bpf_sock_addr *ctx, struct dial *dial)
{
	enum verdict verdict = sock_resolve(ctx, dial);

	if (verdict == VERDICT_PASS && dial->to.proto == IPPROTO_TCP)
		verdict = sock_refuse_nowhere(ctx, &dial->to);
	if (verdict == VERDICT_REWRITE)
		verdict = sock_select(ctx, dial);
	if (verdict == VERDICT_REWRITE)
		sock_origin_remember(ctx, &dial->to, dial->choice.backend);
	else /* forget what it dialed before */
		sock_origin_forget(ctx);
	if (verdict == VERDICT_PASS && sock_probe_asks(&dial->to))
		return VERDICT_ANSWER;
	return verdict;
}

/* Reports whether a flow's backend still exists and belongs to the dialed service. */
static __always_inline bool sock_keeps(struct dial *dial, const struct sock_backend *flow)
{
	struct backend *backend;
	__u32 row = flow->row;

	backend = bpf_map_lookup_elem(&backends, &row);
	if (!backend || !lb_owns(backend, dial->index, dial->scope) || backend->port != flow->backend_port ||
	    !addr_equal(&backend->addr, &flow->backend))
		return false;
	dial->choice.backend = backend;
	return true;
}

static __always_inline struct sock_backends *sock_backends_of(struct bpf_sock_addr *ctx, __u64 flags)
{
	return ctx->sk ? bpf_sk_storage_get(&sock_backends, ctx->sk, NULL, flags) : NULL;
}

static __always_inline void sock_remember(struct bpf_sock_addr *ctx, const struct dial *dial)
{
	struct sock_backends *flows = sock_backends_of(ctx, BPF_SK_STORAGE_GET_F_CREATE);
	struct sock_backend flow = {
		.vip = dial->to.addr,
		.vip_port = dial->to.port,
		.backend = dial->choice.backend->addr,
		.backend_port = dial->choice.backend->port,
		.row = dial->choice.row,
	};

	if (flows)
		sock_backends_remember(flows, &flow);
	else
		count(HOOK_SOCK, REASON_NO_MEMORY, 0);
}

/* Handles a datagram of an unconnected socket. It keeps the backend of each service while that is
 * usable. */
static __always_inline enum verdict sock_send(struct bpf_sock_addr *ctx, struct dial *dial)
{
	enum verdict verdict = sock_resolve(ctx, dial);
	struct sock_backends *flows = sock_backends_of(ctx, 0);
	struct sock_backend *flow;

	if (verdict != VERDICT_REWRITE) {
		if (flows)
			sock_backends_silence(flows, &dial->to.addr, dial->to.port);
		return verdict == VERDICT_PASS ? sock_refuse_nowhere(ctx, &dial->to) : verdict;
	}
	flow = flows ? sock_backends_find(flows, &dial->to.addr, dial->to.port) : NULL;
	if (flow && sock_keeps(dial, flow)) {
		sock_backends_answer(flows, flow);
		return VERDICT_REWRITE;
	}
	verdict = sock_select(ctx, dial);
	if (verdict == VERDICT_REWRITE)
		sock_remember(ctx, dial);
	return verdict;
}

/* Replaces the peer of a connected socket with what it dialed. The record is valid only while the
 * socket is connected to the backend in it. */
static __always_inline bool sock_recall(struct bpf_sock_addr *ctx, struct svc_key *from)
{
	struct sock_origin *peer = sock_origin_find(ctx);

	if (!peer || peer->backend_port != from->port || !addr_equal(&peer->backend, &from->addr))
		return false;
	from->addr = peer->vip;
	from->port = peer->vip_port;
	return true;
}

/* Replaces the source of a datagram with the address that was sent to. */
static __always_inline bool sock_receive(struct bpf_sock_addr *ctx, struct svc_key *from)
{
	struct sock_backends *flows;

	if (sock_recall(ctx, from))
		return true;
	flows = sock_backends_of(ctx, 0);
	return flows && sock_backends_receive(flows, from);
}

/* Refuses a process of the node that binds a NodePort: it would wait for connections that go
 * elsewhere. Pods may bind any port. */
static __always_inline int sock_bind(struct bpf_sock_addr *ctx, const struct svc_key *at)
{
	struct svc_key any = { .addr = addr_any(&at->addr), .port = at->port, .proto = at->proto };
	struct svc_key any4 = { .addr = addr_from_v4(0), .port = at->port, .proto = at->proto };
	struct svc *svc;

	if (!at->port || !sock_in_host(ctx) || !sock_at_node(ctx, &at->addr))
		return PROCEED;
	svc = bpf_map_lookup_elem(&svcs, &any);
	if (!svc && addr_is_any(&at->addr)) /* the IPv6 wildcard includes IPv4 */
		svc = bpf_map_lookup_elem(&svcs, &any4);
	if (!svc || svc->kind != SVC_NODE_PORT)
		return PROCEED;
	count(HOOK_SOCK, REASON_NODE_PORT, 0);
	return sock_refuse(EADDRINUSE);
}

static __always_inline int sock_apply4(struct bpf_sock_addr *ctx, enum verdict verdict,
				       const struct backend *backend)
{
	if (verdict == VERDICT_REFUSE)
		return sock_refuse(ECONNREFUSED);
	if (verdict == VERDICT_ANSWER)
		return sock_refuse(PROBE_ANSWER);
	if (verdict == VERDICT_REWRITE)
		sock_ctx_set4(ctx, &backend->addr, backend->port);
	return PROCEED;
}

static __always_inline int sock_apply6(struct bpf_sock_addr *ctx, enum verdict verdict,
				       const struct backend *backend)
{
	if (verdict == VERDICT_REFUSE)
		return sock_refuse(ECONNREFUSED);
	if (verdict == VERDICT_ANSWER)
		return sock_refuse(PROBE_ANSWER);
	if (verdict == VERDICT_REWRITE)
		sock_ctx_set6(ctx, &backend->addr, backend->port);
	return PROCEED;
}

SEC("cgroup/connect4")
int sock_connect4(struct bpf_sock_addr *ctx)
{
	struct dial dial = { .to = sock_ctx_key4(ctx) };
	enum verdict verdict = sock_connect(ctx, &dial);

	return sock_apply4(ctx, verdict, dial.choice.backend);
}

SEC("cgroup/connect6")
int sock_connect6(struct bpf_sock_addr *ctx)
{
	struct dial dial = { .to = sock_ctx_key6(ctx) };
	enum verdict verdict = sock_connect(ctx, &dial);

	return sock_apply6(ctx, verdict, dial.choice.backend);
}

SEC("cgroup/sendmsg4")
int sock_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct dial dial = { .to = sock_ctx_key4(ctx) };
	enum verdict verdict = sock_send(ctx, &dial);

	return sock_apply4(ctx, verdict, dial.choice.backend);
}

SEC("cgroup/sendmsg6")
int sock_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct dial dial = { .to = sock_ctx_key6(ctx) };
	enum verdict verdict = sock_send(ctx, &dial);

	return sock_apply6(ctx, verdict, dial.choice.backend);
}

SEC("cgroup/recvmsg4")
int sock_recvmsg4(struct bpf_sock_addr *ctx)
{
	struct svc_key from = sock_ctx_key4(ctx);

	if (sock_receive(ctx, &from) && addr_is_v4(&from.addr))
		sock_ctx_set4(ctx, &from.addr, from.port);
	return PROCEED;
}

SEC("cgroup/recvmsg6")
int sock_recvmsg6(struct bpf_sock_addr *ctx)
{
	struct svc_key from = sock_ctx_key6(ctx);

	if (sock_receive(ctx, &from))
		sock_ctx_set6(ctx, &from.addr, from.port);
	return PROCEED;
}

SEC("cgroup/getpeername4")
int sock_peername4(struct bpf_sock_addr *ctx)
{
	struct svc_key from = sock_ctx_key4(ctx);

	if (sock_recall(ctx, &from) && addr_is_v4(&from.addr))
		sock_ctx_set4(ctx, &from.addr, from.port);
	return PROCEED;
}

SEC("cgroup/getpeername6")
int sock_peername6(struct bpf_sock_addr *ctx)
{
	struct svc_key from = sock_ctx_key6(ctx);

	if (sock_recall(ctx, &from))
		sock_ctx_set6(ctx, &from.addr, from.port);
	return PROCEED;
}

SEC("cgroup/bind4")
int sock_bind4(struct bpf_sock_addr *ctx)
{
	struct svc_key at = sock_ctx_key4(ctx);

	return sock_bind(ctx, &at);
}

SEC("cgroup/bind6")
int sock_bind6(struct bpf_sock_addr *ctx)
{
	struct svc_key at = sock_ctx_key6(ctx);

	return sock_bind(ctx, &at);
}

/* Runs at the last close of every socket that a process opened, including those that never dialed a
 * service. */
SEC("cgroup/sock_release")
int sock_release(struct bpf_sock *ctx)
{
	if (ctx->protocol == IPPROTO_TCP)
		sock_origin_release(bpf_get_socket_cookie(ctx));
	return PROCEED;
}

enum {
	FAMILY_V4 = 2, /* AF_INET */
	CONGESTION_NAME = 16,
};

/* All fields are read unconditionally: the verifier rejects accesses that the compiler would merge
 * into a computed offset. */
static __always_inline struct addr sock_ops_local(const volatile struct bpf_sock_ops *ctx)
{
	struct addr v4 = addr_from_v4(ctx->local_ip4);
	struct addr v6 = {
		.word = { ctx->local_ip6[0], ctx->local_ip6[1], ctx->local_ip6[2], ctx->local_ip6[3] },
	};

	return ctx->family == FAMILY_V4 ? v4 : v6;
}

/* Runs on events of TCP connections. A connection of a pod that should use BBR gets it as soon as
 * it is established, unless the connection or its namespace has chosen another algorithm than the
 * node's default. */
SEC("sockops")
int sock_established(struct bpf_sock_ops *ctx)
{
	__u64 name[CONGESTION_NAME / sizeof(__u64)] = {};
	char bbr[] = "bbr";
	struct addr local;
	struct pod *pod;

	if (ctx->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && ctx->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return PROCEED;
	local = sock_ops_local(ctx);
	pod = bpf_map_lookup_elem(&pods, &local);
	if (pod && pod->flags & POD_BBR && !bpf_getsockopt(ctx, IPPROTO_TCP, TCP_CONGESTION, name, sizeof(name)) &&
	    name[0] == sock_cfg.congestion)
		bpf_setsockopt(ctx, IPPROTO_TCP, TCP_CONGESTION, bbr, sizeof(bbr));
	return PROCEED;
}

char _license[] SEC("license") = "Dual BSD/GPL";
