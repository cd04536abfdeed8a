/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the layout of what is known of the pods of this node. */
#pragma once

#include "types.h"

enum pod_flag {
	POD_UNCHECKED = 1, /* it may send what has another's address */
	POD_BBR = 2,	   /* its connections have that congestion control, unless they choose another */
};

/* To which proxy of the node goes what a pod sends by TCP, see proxy.h. Zero: to none. */
enum pod_proxy {
	POD_PROXY_PORT = 0xffff, /* where it listens, 0 if there is none of the name that the pod asks for */
	POD_PROXIED = 0x10000,
	POD_PROXY_OPTIONAL = 0x20000, /* connections go their way where nobody listens */
};

/* A pod of this node, by each of its addresses. */
struct pod {
	__u32 ifindex; /* of the host's end of its device */
	__u8 mac[6];   /* of the pod's end */
	__u8 host_mac[6];
	__u32 proxy; /* enum pod_proxy */
	__u32 flags; /* enum pod_flag */
};

/* Addresses that agree with `addr` in the bits of `prefix_len`. */
struct prefix_key {
	__u32 prefix_len;
	struct addr addr;
};

#define PREFIX_BITS 128

/* A pod by the host's end of its device. */
struct pod_link {
	__u8 mac[6];
	__u16 flags;
	__u32 proxy; /* enum pod_proxy */
};

/* The directions in which a pod is kept to a rate. */
enum pace_kind {
	PACE_OUT, /* what it sends */
	PACE_IN,  /* what it gets */
};

/* Which pods' packets go first where not all can go at once. */
enum pod_class {
	CLASS_BURSTABLE,
	CLASS_GUARANTEED,
	CLASS_BESTEFFORT,
};

/* How much a pod may send and get in a second, by the host's end of its device. */
struct pod_rate {
	__u64 out; /* bytes; zero: as many as it can */
	__u64 in;
	__u64 share; /* with whom it shares what they may send together; zero: with nobody */
	__u32 class; /* enum pod_class */
	__u32 pace;  /* whose rows of pod_paces are this one's, of a pod's several devices; zero: its own */
};

/* How much the pods that share it may send in a second. */
struct share_rate {
	__u64 out;    /* bytes */
	__u64 within; /* of which other share it is a part; zero: of none */
};

struct pace_key {
	__u32 ifindex; /* of the host's end of the pod's device, or of one of them, see pod_rate */
	__u32 kind;    /* enum pace_kind */
};

/* How much those who send to a pod may have on their way to it, see window.h. */
struct pod_window {
	__u64 bytes; /* of each; zero: as much as they want */
	__u64 part;  /* of an equal part, in sixteenths */
	__u64 began; /* when this turn did */
	__u64 flows; /* a bit for those in it, by their hash */
	__u64 flows_before;
};

/* What it has sent or got so far. Only programs write it. */
struct pod_pace {
	__u64 next; /* when what comes next may leave, see edt.h */
	__u64 sent; /* bytes that were given a time, ever */
	__u64 dropped;
	__u64 marked; /* packets that tell their receiver of a jam, and so their sender */
	struct pod_window window;
};

_Static_assert(sizeof(struct prefix_key) == 20, "a key has no hidden padding");
_Static_assert(sizeof(struct pod_rate) == 32, "a value has no hidden padding");
_Static_assert(sizeof(struct pace_key) == 8, "a key has no hidden padding");
_Static_assert(sizeof(struct pod) == 24, "a value has no hidden padding");
_Static_assert(sizeof(struct pod_link) == 12, "a value has no hidden padding");
