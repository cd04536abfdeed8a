/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the maps that all programs share, but for those of pods (pod_maps.h) and of
 * socket acceleration (sockmap_types.h). The sizes here are minimal; the agent sets the real ones
 * before it creates the maps. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "types.h"

/* Programs only check that a row exists. Its contents are for people: a dump must show whose row it
 * is without an agent. */
struct optout {
	struct name pod;
	struct addr addrs[2];
	__u32 why;
};

/* What the agent tells the programs that sweep expired rows. */
struct sweep_run {
	__u32 tick_shift;
	__u32 pad;
};

/* What happened to a row that was to be carried over. */
enum carry_outcome {
	CARRY_FAILED, /* the new map is full */
	CARRY_TORN,   /* it changed too often while being read, or its checksum is wrong */
	CARRY_DONE,
	CARRY_THERE, /* the new map already had it */
	CARRY_GONE,
};

/* A row to carry over, by its key. */
struct carried {
	struct flow flow;
	__u32 outcome;
	__u32 pad;
};

/* The kinds of flow that have timeouts of their own. */
enum ct_class {
	CT_CLASS_TCP,
	CT_CLASS_UDP,
	CT_CLASS_SCTP,
	CT_CLASSES,
};

/* The phase of a flow as a whole, from the states of both rows. */
enum ct_phase {
	CT_PHASE_OPEN,
	CT_PHASE_HALF_CLOSED, /* one direction has ended */
	CT_PHASE_CLOSED,
	CT_PHASE_RESET,
	CT_PHASE_HALF_OPEN, /* everything in ct_pending */
	CT_PHASES,
};

enum doom {
	DOOM_IDLE,    /* if it has been idle for its whole timeout */
	DOOM_STALE,   /* its backend is gone */
	DOOM_FLUSHED, /* a user flushed it */
};

enum doom_outcome {
	DOOM_SPARED, /* it is in use, or has changed */
	DOOM_DELETED,
};

/* A flow that the agent wants forgotten, by the keys of its rows. */
struct doomed {
	struct flow request;
	struct flow reply;
	__u32 why;
	__u32 outcome;
};

/* What the agent tells the programs that forget flows, and what they return. */
struct collect_run {
	__u64 jiffies; /* returned: the current time */
	__u32 count;   /* number of rows of `doomed` that are filled */
	__u32 tick_shift;
	__u32 limits[CT_CLASSES][CT_PHASES]; /* in ticks */
	__u32 pad;
};

/* The layouts of what is known about sockets that were pointed at a backend. */

/* For how many services an unconnected socket can tell replies apart; beyond that, the oldest is
 * forgotten. */
#define SOCK_BACKENDS 32

/* About how many TCP sockets can have their record in the cheap map; a power of two. */
#define CONN_ORIGINS 65536

/* What a socket dialed and which backend it got, so that it is shown only what it dialed. */
struct sock_origin {
	struct addr vip;
	struct addr backend;
	__be16 vip_port;
	__be16 backend_port;
	__u32 pad;
};

/* The record of a TCP socket. A row with cookie zero is free. */
struct conn_origin {
	__u64 cookie;
	struct sock_origin peer;
};

/* The same for one of the services that an unconnected socket sends to, with the row of its
 * backend. */
struct sock_backend {
	struct addr vip;
	struct addr backend;
	__be16 vip_port;
	__be16 backend_port;
	__u32 row;
	__u32 answers; /* packets from the backend belong to this flow */
};

/* Threads may share a socket; the kernel holds its lock while it runs the programs that read and
 * write this. */
struct sock_backends {
	__u32 pad;
	/* where the next new service goes; once all entries are used, that is the oldest */
	__u32 next;
	struct sock_backend flow[SOCK_BACKENDS];
};

_Static_assert(sizeof(struct sock_origin) == 40, "a record has no hidden padding");
_Static_assert(sizeof(struct conn_origin) == 48, "a record has no hidden padding");
_Static_assert(sizeof(struct sock_backend) == 44, "a flow has no hidden padding");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct svc_key);
	__type(value, struct svc);
} svcs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct service);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct backend);
} backends SEC(".maps");

/* No program reads this map: it names the rows of `services` for people who read the pinned
 * maps. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct name);
} names SEC(".maps");

/* The clients that services admit from outside. The value is the number of address bits that count.
 * A trie allocates memory only for the rows it has, so its maximum can be larger than any node
 * needs and never has to grow. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16777216);
	__type(key, struct range_key);
	__type(value, __u32);
} src_ranges SEC(".maps");

/* What TCP sockets dialed. A row belongs to one socket from its connect to its close. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CONN_ORIGINS);
	__type(key, __u32);
	__type(value, struct conn_origin);
} conn_origins SEC(".maps");

/* What other connected sockets dialed, and TCP sockets whose row was taken. Freed with the
 * socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sock_origin);
} sock_origins SEC(".maps");

/* What unconnected sockets sent to: one entry per service. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sock_backends);
} sock_backends SEC(".maps");

/* The addresses of this node, except loopback. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct addr);
	__type(value, struct node_addr);
} node_addrs SEC(".maps");

/* The source addresses that backends on other nodes see, by enum snat_addr. A map and not a
 * constant, because a node may get another address while connections are made. It is read only for
 * new flows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SNAT_ADDRS);
	__type(key, __u32);
	__type(value, struct addr);
} snat_addrs SEC(".maps");

/* The backend that a client has for a service with session affinity. If an entry is evicted, its
 * client gets a new choice. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
} affinity SEC(".maps");

/* The pods whose sockets are left alone. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct optout_key);
	__type(value, struct optout);
} optout SEC(".maps");

/* One bit for each kind of row in `optout`. Most nodes have none, and then no lookup is made. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} optout_kinds SEC(".maps");

/* Since when the routes stored in flow rows may be stale. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct route_epoch);
} route_epoch SEC(".maps");

/* Since when clients that were admitted may no longer be. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct range_epoch);
} range_epochs SEC(".maps");

/* Routes that were recently looked up in the kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FIB_CACHE_ROWS);
	__type(key, __u32);
	__type(value, struct fib_cache_row);
} fib_cache SEC(".maps");

/* Established flows, one row for each direction. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 131072);
	__type(key, struct flow);
	__type(value, struct ct_entry);
} ct SEC(".maps");

/* Flows whose client has not yet proved that it receives the replies. A flood of first packets
 * evicts only other such flows. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow);
	__type(value, struct ct_entry);
} ct_pending SEC(".maps");

/* How many flows were ever moved from `ct_pending` to `ct`. Without it nobody could tell how fast `ct`
 * fills between two looks. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} ct_opened SEC(".maps");

/* Ports of datagrams that arrive in fragments. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct datagram);
	__type(value, struct datagram_flow);
} frags SEC(".maps");

/* Fragments that wait for the first one of their datagram. Their bytes are in a map of their own,
 * because many rows are scanned to find a few. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EARLY_FRAMES);
	__type(key, __u32);
	__type(value, struct early_slot);
} early_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EARLY_FRAMES);
	__type(key, __u32);
	__type(value, struct early_frame);
} early_frames SEC(".maps");

/* By a hash of the datagram: whether a scan for waiting fragments is worthwhile. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, EARLY_MARKS);
	__type(key, __u32);
	__type(value, struct early_mark);
} early_marks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct early_tally);
} early_tally SEC(".maps");

/* About the packet that a CPU is processing. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct dsr_hint);
} dsr_hints SEC(".maps");

/* The devices that have both tc programs: replies of local backends that leave by them get the
 * frontend's address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} nat_devices SEC(".maps");

/* The tunnel device that leads to pods of other nodes whose routes bpf_fib_lookup does not report;
 * zero: none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tunnel SEC(".maps");

/* Until this tick the stack may continue connections that it translated before our programs were
 * attached and that conntrack has not reported yet; zero: never. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} conntrack_import SEC(".maps");

/* The MAC addresses of the devices that packets come in by. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct device_mac);
} device_macs SEC(".maps");

/* How many errors may still be sent. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct allowance);
} allowances SEC(".maps");

/* What monitors want to see. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct watch);
} watch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WATCHED_KINDS);
	__type(key, __u32);
	__type(value, struct watched);
} watched SEC(".maps");

/* The events for monitors: some two thousand until the agent reads them. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
} events SEC(".maps");
