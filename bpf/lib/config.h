/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the settings that the agent fixes at load time: constants by which the verifier
 * removes dead branches. */
#pragma once

#include <linux/types.h>

/* For the programs at sockets. */
struct sock_config {
	__u64 host_netns; /* cookie of the node's own network namespace */
	__u64 can_refuse; /* the kernel lets a cgroup program choose the errno (bpf_set_retval) */
	/* token in the dials by which the agent proves that these programs run */
	__u64 probe;
	__u64 congestion; /* first eight letters of the node's default congestion control */
};

const volatile struct sock_config sock_cfg;

/* What the agent fixes for the packet programs, once, at load time. */
struct packet_config {
	/* ports in host byte order, apart from NodePorts and those of the node's own sockets */
	__u16 snat_first;
	__u16 snat_last;
	__u16 tick_shift;	  /* a tick is 2^tick_shift jiffies, about a second */
	__u16 dsr_accept;	  /* nonzero: other nodes may forward packets to backends here */
	__u16 external_clusterip; /* nonzero: outside clients may use ClusterIPs */
	/* nonzero: packets of this node itself to services are balanced */
	__u16 host_flows;
	__u16 growing; /* nonzero: `ct` is replacing `ct_old` */
	/* nonzero: pods' packets that leave the cluster get an address of this node */
	__u16 masquerade;
	__u32 bypass; /* nonzero: pods' packets bypass the node's stack */
	/* nonzero: pods may have rates; the device at which packets that stay on the node wait */
	__u32 pacer;
	/* nonzero: a tunnel leads to the pods of other nodes; its UDP port, in host byte order */
	__u32 tunnel_port;
	/* nonzero: other nodes may send through the tunnel and in Geneve from any source port, as they
	 * did before these ports were reserved */
	__u32 any_source_port;
	__u64 policies; /* nonzero: policies apply to pods */
	/* mark, and above it tc_index, of packets that have passed the check at their pod's device,
	 * drawn by the agent as it starts; zero: none has them */
	__u64 checked;
	/* keys of the hash of flows: shared by all nodes, secret to everybody else */
	__u64 hash_key0;
	__u64 hash_key1;
	__u64 hash_key2;
	__u64 hash_key3;
	__u64 hash_key4;
};

const volatile struct packet_config cfg;
