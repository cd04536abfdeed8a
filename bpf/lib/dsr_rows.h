/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the keys and values for what other nodes forward to backends on this node. */
#pragma once

#include "types.h"

/* The rows for what other nodes forward to backends on this node. The ones that are no frontends
 * exist only where such packets are accepted. */
enum hosted {
	HOSTED_NOT, /* a frontend */
	/* A backend on this node: one row for each service that has it, since it may only get what
	 * clients of these dialed, and one for its address, without a port. Both have no protocol.
	 * A row with a protocol was a frontend before this node was drained, and still is one on
	 * other nodes, which may forward its packets to backends here. */
	HOSTED_BACKEND,
	HOSTED_FRONTEND, /* the address of a frontend, for packets without ports */
};

/* The backend that another node chose for the current packet. */
struct dsr_hint {
	struct addr backend;
	struct addr from; /* the forwarding node */
	__be16 port;	  /* zero: none; the packet is given back, see dsr_return.h */
	__u16 len;	  /* length of the encapsulation that the node added */
	__u16 direct;	  /* kind of that encapsulation, an enum dsr_mode */
	__u16 is_known;	  /* the backend serves what the client dialed, as far as is known here */
};

_Static_assert(sizeof(struct dsr_hint) == 40, "a row has no hidden padding");
