/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the hooks and reasons that are counted: a single list, from which Go's names are
 * generated. */
#pragma once

enum hook {
	HOOK_SOCK,
	HOOK_TC,
	HOOK_XDP,
	HOOK_POD,
	HOOKS,
};

enum reason {
	REASON_NONE,
	REASON_NO_BACKEND,    /* no usable backend in the scope that applies: refused */
	REASON_TABLE_RACE,    /* the table was switched more often than a reader retries: refused */
	REASON_BAD_TABLE,     /* a row points outside its map: refused, and worth a bug report */
	REASON_NO_MEMORY,     /* no memory to record the dialed address: carried on, but replies and
				 getpeername show the backend */
	REASON_NODE_PORT,     /* a process of the node bound a port that is a NodePort: refused */
	REASON_FRAGMENT,      /* a first fragment without the whole TCP or SCTP header to a frontend,
				 which no honest sender produces, or a TCP fragment from a pod that
				 has a proxy: dropped */
	REASON_TTL,	      /* no hops left: dropped */
	REASON_NO_PORT,	      /* all tried ports to a backend on another node are in use: dropped */
	REASON_NO_ADDRESS,    /* the node has no address of the backend's family: dropped */
	REASON_FLOW_RACE,     /* another flow took this one's key, or its row changed: dropped */
	REASON_FLOWS_FULL,    /* no room among established flows: carried on, but can be evicted */
	REASON_CLUSTER_IP,    /* an outside client dialed a ClusterIP: dropped */
	REASON_SOURCE_RANGE,  /* the client is not in the service's source ranges: dropped */
	REASON_TOO_BIG,	      /* exceeds the next link's MTU and must not be fragmented: dropped */
	REASON_STRAY,	      /* forwarded by another node, but not to a frontend, or given back too
				 late: dropped */
	REASON_DSR_RETURNED,  /* replies would not leave by a device of ours: carried on by the node
				 that forwarded the packet here */
	REASON_NO_PORTS,      /* from a pod, needs the node's address but has no ports: dropped */
	REASON_SPOOFED,	      /* a pod used a source address that is not its own: dropped */
	REASON_SPOOFED_LINK,  /* likewise, a MAC address: dropped */
	REASON_NEIGHBOR,      /* a pod claimed another's address by ARP or ND: dropped */
	REASON_ROUTER,	      /* a pod posed as a router: dropped */
	REASON_DHCP,	      /* likewise, as a DHCP server: dropped */
	REASON_LOOPBACK,      /* from a pod to a loopback address: dropped */
	REASON_PROTOCOL,      /* from a pod, neither ARP nor IP, with a VLAN tag, or not what its
				 sender told the stack; from outside, with several tags of VLAN 0: dropped */
	REASON_MALFORMED,     /* from a pod, ends within its header: dropped */
	REASON_NO_PROXY,      /* nobody listens where a pod's connections are handed over: dropped */
	REASON_EXTENSIONS,    /* from a pod that has a proxy, behind more IPv6 extension headers than
				 are read, so that it may be TCP: dropped */
	REASON_HORIZON,	      /* a pod exceeds its send rate; this would wait too long: dropped */
	REASON_JAM,	      /* a pod exceeds its receive rate; this would wait too long: dropped */
	REASON_FORGED,	      /* a pod's packet looks as if a node had forwarded it: dropped */
	REASON_TUNNEL_PORT,   /* for the tunnel of a node, from a pod or from a port that no node's tunnel
				 has: dropped */
	REASON_TUNNEL_SOURCE, /* from the tunnel, sent by no node, or with a source that does not belong
				 behind the node that sent it: dropped */
	REASON_POD_SOURCE,    /* by a device of the node, from the address of a pod that does not send
				 by it: dropped */
	REASON_PORT_TAKEN,    /* no port was free, so one of a half-open flow was taken: carried on */
	REASON_NO_SERVICE,    /* to an address of Services where none has that port, or that none has:
				 refused */
	REASON_POLICY,	      /* a NetworkPolicy or ClusterNetworkPolicy denies it: dropped */
	REASON_POLICY_AUDIT,  /* likewise, but policies are only audited: carried on */
	REASONS,
};

/* Room for additions: a counter keeps its row when a program with more hooks or reasons replaces
 * this one. */
enum counter_room {
	COUNTER_HOOKS = 8,
	COUNTER_REASONS = 64,
};

_Static_assert((int)HOOKS <= (int)COUNTER_HOOKS && (int)REASONS <= (int)COUNTER_REASONS,
	       "every pair of words has a row");
