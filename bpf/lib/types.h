/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the keys and values of every map: the one place where a layout is written. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

/* So many services get their replies told apart on one socket; beyond, the oldest is forgotten. */
#define SOCK_FLOWS 32

/* About so many TCP sockets have their record where it is cheap; a power of two. */
#define CONN_PEERS 65536

/* An address of either family; IPv4 is mapped (::ffff:a.b.c.d), so there is one key and one path. */
struct addr {
	__be32 word[4];
};

/* A frontend: what a client dials. A NodePort is one row with the unspecified address of its family. */
struct svc_key {
	struct addr addr;
	__be16 port;
	__u8 proto;
	__u8 pad;
};

enum svc_kind {
	SVC_CLUSTER_IP,
	SVC_EXTERNAL_IP,
	SVC_EXTERNAL_ONLY, /* an externalIP that clients in the cluster do not get to use */
	SVC_LOAD_BALANCER,
	SVC_NODE_PORT,
	SVC_HOST_PORT,
};

/* A row is never rewritten with another service while a reader may hold it: hash elements are recycled. */
struct svc {
	__u32 service;
	__u32 kind;
};

enum svc_scope {
	SCOPE_ALL,
	SCOPE_LOCAL,
	SCOPES,
};

enum service_flag {
	SERVICE_INTERNAL_LOCAL = 1,
	SERVICE_EXTERNAL_LOCAL = 2,
};

enum algorithm {
	ALGORITHM_RANDOM,
	ALGORITHM_ROUND_ROBIN,
	ALGORITHM_SOURCE_HASH,
	ALGORITHM_MAGLEV,
};

/*
 * One port of one Service in one family. A word is off:32 | len:16 | tag:16 and is stored and loaded whole:
 * that store is the switch from one set of backends to the next.
 */
struct service {
	__u64 words[SCOPES];
	__u32 affinity_seconds;
	__u8 algorithm;
	__u8 flags;
	__u16 pad;
	__u32 turn; /* round robin: the only field that programs write */
	__u32 pad2;
};

/*
 * backend:24 | service:24 | tag:16. The owner and the tag say whether the slot still belongs to the word that
 * led here; extents are reused at once, so a reader that was overtaken finds another owner or tag and loads
 * the word again.
 */
struct slot {
	__u64 value;
};

/*
 * A row belongs to one service, so whoever remembers a backend, for a client or for a socket, sees with one look
 * whether the service still has it: owner is scopes:8 | service:24, with a bit for each scope whose table has it.
 */
struct backend {
	struct addr addr;
	__be16 port;
	__u8 proto;
	__u8 pad;
	__u32 owner;
};

/* The name of a service, for people: dumps must read well when no agent is there to ask. */
struct name {
	char text[192];
};

/* What a socket dialled and what it got, so that it hears of what it dialled alone. */
struct sock_peer {
	struct addr vip;
	struct addr backend;
	__be16 vip_port;
	__be16 backend_port;
	__u32 pad;
};

/* The record of a TCP socket. A row whose cookie is zero is free. */
struct conn_peer {
	__u64 cookie;
	struct sock_peer peer;
};

/* The same for one of the services that a socket which is not connected sends to, and the row that it keeps to. */
struct sock_flow {
	struct addr vip;
	struct addr backend;
	__be16 vip_port;
	__be16 backend_port;
	__u32 row;
	__u32 answers; /* what comes from the backend is this flow's */
};

/* Threads may share a socket, so a flow is read and written under the lock. */
struct sock_flows {
	struct bpf_spin_lock lock;
	__u32 next; /* the flow that a new service gets, once all are taken the oldest */
	struct sock_flow flow[SOCK_FLOWS];
};

/* A client is its address, or its network namespace: then the address is the cookie and ends in eight zero bytes.
 */
struct affinity_key {
	struct addr client;
	__u32 service;
	__u32 pad;
};

struct affinity {
	__u64 last; /* new connection, in ns of the coarse clock */
	__u32 row;
	__u32 pad;
};

struct node_addr {
	__u32 ifindex;
};

/* What a pod that opted out is told by. */
enum optout_kind {
	OPTOUT_NETNS = 1,  /* the cookie of its network namespace */
	OPTOUT_CGROUP = 2, /* the id of a cgroup2 directory, with what is below */
};

enum optout_why {
	OPTOUT_BY_POD,	     /* its annotation */
	OPTOUT_BY_NAMESPACE, /* its namespace's annotation */
	OPTOUT_BY_RUNTIME,   /* it is sandboxed or a virtual machine */
	OPTOUT_BY_MESH,	     /* a sidecar redirects what it dials */
};

struct optout_key {
	__u64 id;
	__u32 kind;
	__u32 pad;
};

/* Programs only look whether there is a row. What is in it is for people: whose row it is must be plain when no
 * agent is there to ask. */
struct optout {
	struct name pod;
	struct addr addrs[2];
	__u32 why;
};

struct counter {
	__u64 packets;
	__u64 bytes;
};

_Static_assert(sizeof(struct svc_key) == 20, "a key has no hidden padding");
_Static_assert(sizeof(struct service) == 32, "two services share a cache line");
_Static_assert(sizeof(struct slot) == 8, "a slot is loaded with one instruction");
_Static_assert(sizeof(struct backend) == 24, "a backend has no hidden padding");
_Static_assert(sizeof(struct sock_peer) == 40, "a record has no hidden padding");
_Static_assert(sizeof(struct conn_peer) == 48, "a record has no hidden padding");
_Static_assert(sizeof(struct sock_flow) == 44, "a flow has no hidden padding");
_Static_assert(sizeof(struct affinity_key) == 24, "a key has no hidden padding");
_Static_assert(sizeof(struct affinity) == 16, "a value has no hidden padding");
_Static_assert(sizeof(struct optout_key) == 16, "a key has no hidden padding");
