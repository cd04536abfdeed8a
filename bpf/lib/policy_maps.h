/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what NetworkPolicies and ClusterNetworkPolicies say about the pods of this node,
 * as the agent compiles it, and the flows that were judged by it: layouts and maps. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "pod_maps.h"
#include "types.h"

/* A change of many rows is seen whole or not at all: what depends on the policies has two versions, and
 * one word says which of them is in force. The agent writes the other one, then the word, and when no
 * program reads the first any longer, makes it the same. */
#define POLICY_VERSIONS 2

/* As a pod sees it. */
enum policy_direction {
	POLICY_INGRESS,
	POLICY_EGRESS,
	POLICY_DIRECTIONS,
};

struct policy_state {
	__u32 version; /* the one in force */
	__u32 pods;    /* how many pods of this node have POD_POLICY; zero: nothing is looked up */
};

enum policy_subject_flag {
	POLICY_AUDIT = 1, /* what would be denied is only reported */
};

/* What a version says about a pod. */
struct policy_subject {
	__u32 subject; /* pods with the same rules share it; zero: no policy is about this pod */
	__u32 scope;   /* its namespace's, see policy_views */
	/* another one since something that was accepted may not be any longer; no two pods ever have
	 * the same */
	__u32 generation;
	__u32 flags; /* enum policy_subject_flag */
};

/* A pod that has POD_POLICY, by the host's end of its device. Without a row it is not known yet what
 * policies say about it, and nothing but its node reaches it. */
struct policy_pod {
	struct policy_subject subject[POLICY_VERSIONS];
	/* the tick until which the pod may have connections from before a policy was about it */
	__u32 adopts;
	/* the tick until which its datagrams may be answers to such that came before */
	__u32 answers;
};

/* What selectors, blocks and named ports an address is in, or what a scope tells apart of that, for each
 * version. */
struct policy_class {
	__u32 class[POLICY_VERSIONS];
};

struct policy_view {
	__u32 scope;
	__u32 class;
};

struct policy_decision_key {
	__u32 subject;
	__u32 class;	 /* as the scope sees it */
	__u32 direction; /* enum policy_direction */
};

/* Runs of ports. */
struct policy_ports {
	__u32 first;
	__u32 count; /* zero: there is no decision */
};

/* A decision, for each version. */
struct policy_decision {
	struct policy_ports ports[POLICY_VERSIONS];
};

/* Ports from this key to that of the next run. A key is a protocol (POLICY_TCP...) and a port. */
struct policy_run {
	__u32 from;
	__u32 verdict; /* POLICY_ACCEPTED, and the number of the rule */
};

enum policy_protocol {
	POLICY_OTHER, /* all that have no ports */
	POLICY_TCP,
	POLICY_UDP,
	POLICY_SCTP,
	POLICY_PROTOCOL_SHIFT = 16,
};

#define POLICY_ACCEPTED 0x80000000U

/* The rules that no policy has. */
enum policy_rule {
	POLICY_RULE_NONE,    /* nothing denies it */
	POLICY_RULE_UNKNOWN, /* it is not known yet what policies say about the pod */
	POLICY_RULE_PACKET,  /* the packet does not tell which flow it belongs to */
	POLICY_RULE_NODE,    /* the pod's node may talk to it */
	POLICY_RULES,	     /* those of policies have this number and above */
};

enum policy_flow_flag {
	POLICY_FLOW_EGRESS = 1, /* the pod began it */
	POLICY_FLOW_DENIED = 2, /* it is not accepted any longer */
	POLICY_FLOW_NODE = 4,	/* the pod's node began it */
	POLICY_FLOW_NEXT = 8,	/* only in the tag `next` of a row */
};

/* Which ends of a TCP connection or an SCTP association have sent what ends it. */
enum policy_flow_end {
	POLICY_FIN = 1, /* shifted by the enum policy_direction of the packet */
	POLICY_RST = 4, /* likewise */
};

/*
 * A flow of a pod that a policy is about: its key is that of the packets that the pod sends. If both
 * ends are such pods there are two of them, which have the addresses and ports in different order.
 *
 * Rows are hash elements, which the kernel recycles while programs still read them. `tag` is made of
 * the key, the generation and the flags: a row with another one is another flow's, or was judged by
 * rules that have changed. The fields below it may be written in place.
 */
struct policy_flow {
	__u64 tag;
	__u32 generation;
	__u32 seen;   /* in ticks of `cfg` */
	__u32 denied; /* since this tick, with POLICY_FLOW_DENIED */
	__u16 flags;  /* enum policy_flow_flag */
	__u16 ends;   /* enum policy_flow_end */
	__u32 owner;  /* in policy_flows: the pod whose share it is of, as in policy_shares; zero: nobody's */
	__u32 pad;
	/* made like `tag` of the key and the generation of the pod that receives what this one sends: its
	 * policies have accepted the flow too */
	__u64 next;
};

/*
 * How many rows of policy_flows a pod has, or all together have. A pod gets another one only while it
 * has fewer than are free: so one alone gets half of them, two get a third each, and however many they
 * are, one that has few finds room.
 *
 * The agent counts the rows in each sweep, and programs count what comes and goes in between. So
 * nothing that they miss lasts.
 */
struct policy_share {
	__s32 rows;    /* at the last sweep */
	__s32 since;   /* how many more there are since then */
	__s32 counted; /* by the sweep at work */
	__s32 begun;   /* `since` when it began */
};

/* How many of which rule's denials there were. */
struct policy_denial {
	__u32 rule;
	__u32 direction; /* enum policy_direction */
};

_Static_assert(sizeof(struct policy_pod) == 40, "a value has no hidden padding");
_Static_assert(sizeof(struct policy_decision_key) == 12, "a key has no hidden padding");
_Static_assert(sizeof(struct policy_flow) == 40, "a value has no hidden padding");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct policy_state);
} policy_state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct policy_pod);
} policy_pods SEC(".maps");

/* The classes of addresses of pods, where policy_regions do not say the same. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct addr);
	__type(value, struct policy_class);
} policy_peers SEC(".maps");

/* The classes of all other addresses; an address in none has class 0. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 131072);
	__type(key, struct prefix_key);
	__type(value, struct policy_class);
} policy_regions SEC(".maps");

/* What the policies of a scope tell apart of a class; without a row that is 0. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct policy_view);
	__type(value, struct policy_class);
} policy_views SEC(".maps");

/* Every subject has a row of class 0 for both directions, which holds for all classes without one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct policy_decision_key);
	__type(value, struct policy_decision);
} policy_decisions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 262144);
	__type(key, __u32);
	__type(value, struct policy_run);
} policy_runs SEC(".maps");

#define POLICY_FLOWS 262144

/* Flows of which both ends have sent something. Nothing evicts them, so nobody can push out those of
 * others. When their pod's share is full they stay in policy_pending. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, POLICY_FLOWS);
	__type(key, struct flow);
	__type(value, struct policy_flow);
} policy_flows SEC(".maps");

/* The share of a pod, by the host's end of its device, and that of all under POLICY_SHARE_OF_ALL. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct policy_share);
} policy_shares SEC(".maps");

#define POLICY_SHARE_OF_ALL 0

/* Flows of which one end has sent something. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow);
	__type(value, struct policy_flow);
} policy_pending SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct policy_denial);
	__type(value, __u64);
} policy_denials SEC(".maps");

/* The version in force. */
static __always_inline __u32 policy_maps_version(void)
{
	__u32 zero = 0;
	struct policy_state *state = bpf_map_lookup_elem(&policy_state, &zero);

	return state ? *(volatile __u32 *)&state->version % POLICY_VERSIONS : 0;
}
