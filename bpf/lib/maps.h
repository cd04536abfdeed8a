/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains every map. The sizes are the smallest ones; the agent sets the real ones before it creates. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "reason.h"
#include "types.h"

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

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS *HOOKS);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");
