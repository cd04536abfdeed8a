/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what is known about the pods of this node and about the nodes of the cluster:
 * layouts and maps. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "types.h"

enum pod_flag {
	POD_UNCHECKED = 1, /* it may send from addresses that are not its own */
	/* its connections use BBR, unless they choose another congestion control */
	POD_BBR = 2,
	/* a policy is about it, or that is not known yet: policy_pods says what it says */
	POD_POLICY = 4,
};

/* The proxy on the node that gets a pod's TCP connections, see proxy.h. Zero: none. */
enum pod_proxy {
	/* mask of the proxy's port, which is 0 if the proxy that the pod asks for does not exist */
	POD_PROXY_PORT = 0xffff,
	POD_PROXIED = 0x10000,
	POD_PROXY_OPTIONAL = 0x20000, /* connections go directly if nobody listens */
};

/* A pod of this node, by each of its addresses. */
struct pod {
	__u32 ifindex; /* of the host's end of its device */
	__u8 mac[6];   /* of the pod's end */
	__u8 host_mac[6];
	__u32 proxy; /* enum pod_proxy */
	__u32 flags; /* enum pod_flag */
};

/* Addresses that match `addr` in the first `prefix_len` bits. */
struct prefix_key {
	__u32 prefix_len;
	struct addr addr;
};

#define PREFIX_BITS 128

enum cluster_node_flag {
	CLUSTER_NODE_SELF = 1, /* this node */
	/* Only in the row of the unspecified address, which is no node's: all Node objects are known,
	 * so an address without a row is no node's. */
	CLUSTER_NODES_KNOWN = 2,
	/* Only in a row of node_sources: the address of the node's end of the tunnel. */
	CLUSTER_NODE_TUNNEL = 4,
};

/* A node of the cluster, by each of the addresses that its Node object lists, and by the sources
 * that belong behind it. */
struct cluster_node {
	__u64 name;   /* hash of its name, by which an agent that starts finds the number again */
	__u32 number; /* never zero, except in the row of the unspecified address */
	__u32 flags;  /* enum cluster_node_flag */
};

/* A pod, by the host's end of its device. */
struct pod_link {
	__u8 mac[6];
	__u16 flags;
	__u32 proxy; /* enum pod_proxy */
};

/* The directions in which a pod's rate is limited. */
enum pace_kind {
	PACE_OUT, /* what it sends */
	PACE_IN,  /* what it receives */
};

/* Which pods' packets have priority when not all can be sent at once. */
enum pod_class {
	CLASS_BURSTABLE,
	CLASS_GUARANTEED,
	CLASS_BESTEFFORT,
};

/* How many bytes per second a pod may send and receive, by the host's end of its device. */
struct pod_rate {
	__u64 out; /* in bytes; zero: unlimited */
	__u64 in;
	__u64 share; /* the share in which its sent bytes count too; zero: none */
	__u32 class; /* enum pod_class */
	/* the device whose rows of pod_paces this one uses, if the pod has several devices; zero:
	 * its own */
	__u32 pace;
};

/* How many bytes per second the pods of a share may send together. */
struct share_rate {
	__u64 out;    /* in bytes */
	__u64 within; /* the share that contains this one; zero: none */
};

struct pace_key {
	/* the host's end of the pod's device, or of one of its devices, see pod_rate */
	__u32 ifindex;
	__u32 kind; /* enum pace_kind */
};

/* How much senders to a pod may have in flight, see rate.h. */
struct receive_window {
	__u64 bytes; /* for each sender; zero: unlimited */
	__u64 part;  /* fraction of an equal part, in sixteenths */
	__u64 began; /* start of the current round */
	__u64 flows; /* one bit per sender seen in it, by hash */
	__u64 flows_before;
};

/* What a pod or share has sent or received so far. Only programs write it. */
struct pod_pace {
	__u64 next; /* when the next packet may leave, see rate.h */
	__u64 sent; /* bytes that were given a departure time, ever */
	__u64 dropped;
	/* packets marked with ECN CE, which tells their receiver and so their sender of
	 * congestion */
	__u64 marked;
	struct receive_window window;
	__u64 size; /* average of late, in sixteenths of a byte, see rate.h */
};

_Static_assert(sizeof(struct cluster_node) == 16, "a value has no hidden padding");
_Static_assert(sizeof(struct prefix_key) == 20, "a key has no hidden padding");
_Static_assert(sizeof(struct pod_rate) == 32, "a value has no hidden padding");
_Static_assert(sizeof(struct pace_key) == 8, "a key has no hidden padding");
_Static_assert(sizeof(struct pod) == 24, "a value has no hidden padding");
_Static_assert(sizeof(struct pod_link) == 12, "a value has no hidden padding");

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
