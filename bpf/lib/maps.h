/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains every map. The sizes are the smallest ones; the agent sets the real ones before it creates. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "podrows.h"
#include "reason.h"
#include "sockrows.h"
#include "types.h"
#include "wayrows.h"

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

/* No program reads it: it names the rows of `services` to whoever reads the pins. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct name);
} names SEC(".maps");

/* Whom services let in from outside; the value is the number of bits of the address that count. A trie takes memory
 * for the rows that it has, so there is no size to grow: this one is as large as any node has memory for. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16777216);
	__type(key, struct range_key);
	__type(value, __u32);
} src_ranges SEC(".maps");

/* What TCP sockets dialled. A row belongs to one socket from its connect to its close. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CONN_PEERS);
	__type(key, __u32);
	__type(value, struct conn_peer);
} conn_peers SEC(".maps");

/* What other connected sockets dialled, and TCP sockets whose row was taken. Dies with its socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sock_peer);
} sock_peers SEC(".maps");

/* For sockets that are not connected: what they sent to, each service once. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sock_flows);
} sock_flows SEC(".maps");

/* The addresses of this node, loopback apart. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct addr);
	__type(value, struct node_addr);
} node_addrs SEC(".maps");

/* What backends on other nodes see as the client, by enum snat_addr. It is no constant, since a node may get
 * another address while connections are made, and it is read for new flows alone. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SNAT_ADDRS);
	__type(key, __u32);
	__type(value, struct addr);
} snat_addrs SEC(".maps");

/* Which backend a client has of a service with session affinity. An entry that is pushed out costs its client a new
 * choice. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
} affinity SEC(".maps");

/* Whose sockets are left alone. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct optout_key);
	__type(value, struct optout);
} optout SEC(".maps");

/* A bit for each kind of row that `optout` has: on most nodes there is none, and then nobody looks. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} optout_kinds SEC(".maps");

/* Since when the ways in rows of flows may be gone by. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ways);
} ways SEC(".maps");

/* Since when who was let in may not be any more. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guard);
} guards SEC(".maps");

/* Ways that the kernel was asked for lately. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ASKED_WAYS);
	__type(key, __u32);
	__type(value, struct asked_way);
} asked_ways SEC(".maps");

/* Flows that both ends have agreed to, a row for each direction. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 131072);
	__type(key, struct flow);
	__type(value, struct ct_entry);
} ct SEC(".maps");

/* Flows that have yet to show that there is somebody at the other end: a flood of first packets pushes out its own
 * kind alone. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow);
	__type(value, struct ct_entry);
} ct_half SEC(".maps");

/* How many flows were moved from there to `ct`, ever: nobody else can tell between two looks how fast it fills. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} ct_opened SEC(".maps");

/* What became of the rows of each enum lru. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LRUS);
	__type(key, __u32);
	__type(value, struct turnover);
} turnover SEC(".maps");

/* Ports of datagrams that come in fragments. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct datagram);
	__type(value, struct datagram_flow);
} frags SEC(".maps");

/* Fragments that wait for the first of their datagram, and their bytes: apart, since many rows are looked through
 * for a few. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LATE_FRAMES);
	__type(key, __u32);
	__type(value, struct late);
} late SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LATE_FRAMES);
	__type(key, __u32);
	__type(value, struct late_frame);
} late_frames SEC(".maps");

/* By a hash of the datagram: whether it is worth a look whether some wait. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LATE_MARKS);
	__type(key, __u32);
	__type(value, struct late_mark);
} late_marks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct late_tally);
} late_tally SEC(".maps");

/* Of the packet that a CPU is at. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct hint);
} hints SEC(".maps");

/* The devices that have both programs of tc: what a backend here answers gets its source where it leaves by one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} served SEC(".maps");

/* The device by which the pods of other nodes are reached whose routes the kernel tells no program; zero: none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tunnel SEC(".maps");

/* The tick until which the stack may go on with connections that it has translated since before there were
 * programs, and has not told of yet; zero: never. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} former SEC(".maps");

/* The devices that packets come in by. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct link_addr);
} link_addrs SEC(".maps");

/* The pods of this node that have their network from us, by address and by device. */
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

/* The rates of those that have one, and what they have sent and got. The rate is a map of its own: one that changes
 * leaves alone what has been sent. */
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

/* A share is that of a namespace's pods or of all pods of the node. */
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

/* Not zero once a pod has sent packets to a service: where none ever does, nobody looks for their answers. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} pods_dial SEC(".maps");

/* To whom pods speak with their own addresses, wherever their packets leave: the cluster, and who is told of them.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct prefix_key);
	__type(value, __u32);
} masq_skip SEC(".maps");

/* How many errors may still be sent. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct allowance);
} allowances SEC(".maps");

/* What monitors want. */
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

/* What they get: some two thousand events, until the agent reads them. */
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
