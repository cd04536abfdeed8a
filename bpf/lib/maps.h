/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains every map. The sizes here are minimal; the agent sets the real ones before it
 * creates the maps. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "dsr_rows.h"
#include "podrows.h"
#include "reason.h"
#include "sockrows.h"
#include "types.h"
#include "route_rows.h"

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

/* Rows created and deleted, by enum lru. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LRUS);
	__type(key, __u32);
	__type(value, struct lru_stats);
} lru_stats SEC(".maps");

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
	__type(value, struct late);
} late SEC(".maps");

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

/* The pods of this node that have their network from fairlead, by address and by device. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct addr);
	__type(value, struct pod);
} pods SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct pod_link);
} pod_links SEC(".maps");

/* The rates of pods that have one, and their accounts of what was sent and received. The rates are
 * a separate map so that changing one leaves the account alone. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct pod_rate);
} pod_rates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768);
	__type(key, struct pace_key);
	__type(value, struct pod_pace);
} pod_paces SEC(".maps");

/* A share belongs to all pods of a namespace or of the node. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct share_rate);
} share_rates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct pod_pace);
} share_paces SEC(".maps");

/* Nonzero once a pod, or the node, has sent packets to a service: until then no program looks for
 * replies. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} packet_clients SEC(".maps");

/* The destinations that see a pod's own address by whatever device packets leave: the cluster, and
 * every network that has routes to pods. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct prefix_key);
	__type(value, __u32);
} masq_skip SEC(".maps");

/* The nodes of the cluster, by address, as far as Node objects tell. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 32768);
	__type(key, struct addr);
	__type(value, struct cluster_node);
} cluster_nodes SEC(".maps");

/* The sources that belong behind a node: its addresses and those of its pods. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 131072);
	__type(key, struct prefix_key);
	__type(value, struct cluster_node);
} node_sources SEC(".maps");

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

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTER_HOOKS *COUNTER_REASONS);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");
