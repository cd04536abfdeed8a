/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the hooks and the reasons that are counted: one list, from which Go's names are generated. */
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
	REASON_NO_BACKEND, /* the service has no usable backend in the scope that applies: refused */
	REASON_TABLE_RACE, /* the table was switched more often than a reader tries: refused */
	REASON_BAD_TABLE,  /* a row points outside its map: refused, and worth a bug report */
	REASON_NO_MEMORY,  /* no record of the dialled address: carried on, but replies and getpeername show the
			      backend */
	REASON_NODE_PORT,  /* a process of the node bound a port that is a NodePort: refused */
	REASON_FRAGMENT,   /* a first fragment to a frontend without the whole header of TCP, which no honest sender
			      makes, or of TCP from a pod that has a proxy: dropped */
	REASON_TTL,	   /* a packet that may go no further: dropped */
	REASON_NO_PORT,	   /* every port that was tried towards a backend on another node is in use: dropped */
	REASON_NO_ADDRESS, /* the node has no address of the family to reach a backend from: dropped */
	REASON_FLOW_RACE,  /* another flow has taken what this one had, or its row changed under the reader: dropped
			    */
	REASON_FLOWS_FULL, /* no room for an established flow: carried on among those that can be pushed out */
	REASON_CLUSTER_IP, /* a ClusterIP, which is for those inside, was dialled from outside: dropped */
	REASON_SOURCE_RANGE, /* the service's source ranges do not have the client: dropped */
	REASON_TOO_BIG,	     /* more than the next link takes, of what may not be cut up: dropped */
	REASON_STRAY,	   /* what another node forwarded for a backend here to answer, and is for none: dropped */
	REASON_GIVEN_BACK, /* a client to which the answer would not leave by a device of ours: carried on, by the
			      node that forwarded it here */
	REASON_NO_PORTS, /* a pod sends what has no ports to where it would need an address of the node: dropped */
	REASON_SPOOFED,	 /* a pod sends what has another's address: dropped */
	REASON_SPOOFED_LINK, /* likewise, of the link: dropped */
	REASON_NEIGHBOUR,    /* a pod says that an address is its that is another's: dropped */
	REASON_ROUTER,	     /* a pod gives itself out as a router: dropped */
	REASON_DHCP,	     /* likewise as what hands out addresses: dropped */
	REASON_LOOPBACK,     /* a pod sends to an address that is on no wire: dropped */
	REASON_PROTOCOL,     /* a pod sends what is neither ARP nor IP, or has a tag: dropped */
	REASON_MALFORMED,    /* a pod sends what ends within its header: dropped */
	REASON_NO_PROXY,     /* nobody listens where a pod's connections are to be handed over: dropped */
	REASON_HORIZON,	     /* a pod sends faster than it may, and this would wait for too long: dropped */
	REASON_JAM,	     /* a pod gets more than it may, and this would wait for too long: dropped */
	REASONS,
};

/* Room for words to come: a counter keeps its row when the program is replaced by one that has more of them. */
enum counter_room {
	COUNTER_HOOKS = 8,
	COUNTER_REASONS = 64,
};

_Static_assert((int)HOOKS <= (int)COUNTER_HOOKS && (int)REASONS <= (int)COUNTER_REASONS,
	       "every pair of words has a row");
