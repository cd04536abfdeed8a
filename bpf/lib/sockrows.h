/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the layout of what is known of sockets that were pointed at a backend. */
#pragma once

#include "types.h"

/* So many services get their replies told apart on one socket; beyond, the oldest is forgotten. */
#define SOCK_FLOWS 32

/* About so many TCP sockets have their record where it is cheap; a power of two. */
#define CONN_PEERS 65536

/* What a socket dialled and what it got, so that it hears of what it dialled alone. */
struct sock_peer {
	struct addr vip;
	struct addr backend;
	__be16 vip_port;
	__be16 backend_port;
	__u32 pad;
};

/* The record of a TCP socket. A row whose cookie is zero is free. */
struct conn_peer {
	__u64 cookie;
	struct sock_peer peer;
};

/* The same for one of the services that a socket which is not connected sends to, and the row that it keeps to. */
struct sock_flow {
	struct addr vip;
	struct addr backend;
	__be16 vip_port;
	__be16 backend_port;
	__u32 row;
	__u32 answers; /* what comes from the backend is this flow's */
};

/* Threads may share a socket; the kernel holds its lock while it runs the programs that read and write this. */
struct sock_flows {
	__u32 pad;
	__u32 next; /* the flow that a new service gets, once all are taken the oldest */
	struct sock_flow flow[SOCK_FLOWS];
};

_Static_assert(sizeof(struct sock_peer) == 40, "a record has no hidden padding");
_Static_assert(sizeof(struct conn_peer) == 48, "a record has no hidden padding");
_Static_assert(sizeof(struct sock_flow) == 44, "a flow has no hidden padding");
