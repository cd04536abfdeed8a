/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the layout of what the agent decides for the programs of packets. */
#pragma once

#include <linux/types.h>

/* What the agent decides for the programs of packets, once, at load. */
struct packet_config {
	__u16 snat_first; /* ports in host order; NodePorts and what the node's own sockets use are elsewhere */
	__u16 snat_last;
	__u32 tick_shift;	  /* a tick is 2^tick_shift jiffies, about a second */
	__u16 external_clusterip; /* not zero: clients outside may use ClusterIPs */
	__u16 own;		  /* not zero: what this node itself sends to services is balanced */
	__u16 growing;		  /* not zero: `ct_old` is being replaced by `ct` */
	__u16 masquerade;	  /* not zero: what pods send out of the cluster gets an address of this node */
	__u32 bypass;		  /* not zero: what pods get and send goes past the node's stack */
	__u32 pair;		  /* not zero: pods may be kept to rates, and this is where what stays here waits */
	__u64 hash_key0;	  /* of the hash of flows; the same on all nodes, and nobody else's business */
	__u64 hash_key1;
	__u64 hash_key2;
	__u64 hash_key3;
	__u64 hash_key4;
};
