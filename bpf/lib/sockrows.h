/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the layouts of what is known about sockets that were pointed at a backend. */
#pragma once

#include "types.h"

/* For how many services an unconnected socket can tell replies apart; beyond that, the oldest is
 * forgotten. */
#define SOCK_BACKENDS 32

/* About how many TCP sockets can have their record in the cheap map; a power of two. */
#define CONN_ORIGINS 65536

/* What a socket dialed and which backend it got, so that it is shown only what it dialed. */
struct sock_origin {
	struct addr vip;
	struct addr backend;
	__be16 vip_port;
	__be16 backend_port;
	__u32 pad;
};

/* The record of a TCP socket. A row with cookie zero is free. */
struct conn_origin {
	__u64 cookie;
	struct sock_origin peer;
};

/* The same for one of the services that an unconnected socket sends to, with the row of its
 * backend. */
struct sock_backend {
	struct addr vip;
	struct addr backend;
	__be16 vip_port;
	__be16 backend_port;
	__u32 row;
	__u32 answers; /* packets from the backend belong to this flow */
};

/* Threads may share a socket; the kernel holds its lock while it runs the programs that read and
 * write this. */
struct sock_backends {
	__u32 pad;
	/* where the next new service goes; once all entries are used, that is the oldest */
	__u32 next;
	struct sock_backend flow[SOCK_BACKENDS];
};

_Static_assert(sizeof(struct sock_origin) == 40, "a record has no hidden padding");
_Static_assert(sizeof(struct conn_origin) == 48, "a record has no hidden padding");
_Static_assert(sizeof(struct sock_backend) == 44, "a flow has no hidden padding");
