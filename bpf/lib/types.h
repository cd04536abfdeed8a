/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the keys and values of the maps. */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* An address of either family. IPv4 is mapped (::ffff:a.b.c.d), so one key type and one code path
 * serve both. */
struct addr {
	__be32 word[4];
};

/* A frontend: what a client dials. A NodePort has one row, with the unspecified address of its
 * family. */
struct svc_key {
	struct addr addr;
	__be16 port;
	__u8 proto;
	__u8 hosted; /* an enum hosted */
	/* for HOSTED_BACKEND with a port: the index of the service that the backend serves */
	__u32 service;
};

enum svc_kind {
	SVC_CLUSTER_IP,
	SVC_EXTERNAL_IP,
	SVC_EXTERNAL_ONLY, /* an externalIP that clients inside the cluster must not use */
	SVC_LOAD_BALANCER,
	SVC_NODE_PORT,
	SVC_HOST_PORT,
	SVC_HOSTED, /* the kind of rows that are not frontends */
};

/* A row never changes to another service while a reader may hold it, because hash elements are
 * recycled. */
struct svc {
	__u32 service;
	__u32 kind;
};

enum svc_scope {
	SCOPE_ALL,
	SCOPE_LOCAL,
	SCOPES,
};

enum service_flag {
	SERVICE_INTERNAL_LOCAL = 1,
	SERVICE_EXTERNAL_LOCAL = 2,
	SERVICE_SOURCE_RANGES = 4, /* load balancer addresses admit only `src_ranges` */
	SERVICE_DSR = 24,	   /* mask of an enum dsr_mode */
};

/* How packets reach a backend on another node that replies to its client directly. */
enum dsr_mode {
	DSR_OFF, /* the backend does not reply directly */
	DSR_IPIP,
	DSR_GENEVE,
	DSR_OPT,       /* no encapsulation: an IP option inside the packet */
	DSR_SHIFT = 3, /* position of these bits in the flags of services */
};

enum algorithm {
	ALGORITHM_RANDOM,
	ALGORITHM_ROUND_ROBIN,
	ALGORITHM_SOURCE_HASH,
	ALGORITHM_MAGLEV,
};

/*
 * One port of one Service in one family. A word is off:32 | len:16 | tag:16. It is stored and
 * loaded whole: that one store switches from the old set of backends to the new one.
 */
struct service {
	__u64 words[SCOPES];
	__u32 affinity_seconds;
	__u8 algorithm;
	__u8 flags;
	__u16 pad;
	__u32 turn;	      /* for round robin; the only field that programs write */
	__u32 affinity_epoch; /* clients remembered in another one are forgotten */
};

/*
 * backend:24 | service:24 | tag:16. The owner and the tag tell whether the slot still belongs to
 * the word that led here. Extents are reused at once, so a reader that was overtaken finds another
 * owner or tag and loads the word again.
 */
struct slot {
	__u64 value;
};

enum backend_flag {
	/* on this node; it can see clients' addresses, as replies pass here */
	BACKEND_LOCAL = 1,
	BACKEND_TERMINATING = 2, /* shutting down; for people, no program reads it */
};

/*
 * A row belongs to one service. So code that remembers a backend, for a client or a socket, can
 * tell with one load whether the service still has it: owner is scopes:8 | service:24, with one bit
 * for each scope whose table contains the backend.
 */
struct backend {
	struct addr addr;
	__be16 port;
	__u8 proto;
	__u8 flags;
	__u32 owner;
};

/* The clients that a service admits: addresses that match `addr` in the bits of `prefix_len` beyond
 * the 32 of the service. */
struct range_key {
	__u32 prefix_len;
	__u32 service;
	struct addr addr;
};

/* Used in place of a service index, which is never 0: the ranges of the cluster itself. */
#define RANGES_PODS 0

/* Likewise: the ranges from which Services get their ClusterIPs, and ClusterIPs outside of these. */
#define RANGES_CLUSTER_IPS 0xffffffff

enum range_bits {
	RANGE_SERVICE_BITS = 32,
	RANGE_BITS = 160, /* service and address */
};

/* The name of a service, for people: dumps must be readable without an agent. */
struct name {
	char text[192];
};

/* A client is identified by its address, or by its network namespace: then the address is the
 * cookie, followed by eight zero bytes. */
struct affinity_key {
	struct addr client;
	__u32 service;
	__u32 pad;
};

struct affinity {
	__u64 last; /* time of its last new connection, in ns of the coarse clock */
	__u32 row;
	__u32 epoch; /* of the service at that time */
};

enum node_addr_flag {
	NODE_ADDR_PORTS = 1, /* outside clients reach NodePorts here; local sockets always do */
};

/* The source address that backends on other nodes see: the node's, or the tunnel's if the route to
 * the backend leads into the tunnel. */
enum snat_addr {
	SNAT_NODE4 = 0,
	SNAT_NODE6 = 1,
	SNAT_TUNNEL4 = 2,
	SNAT_TUNNEL6 = 3,
	SNAT_ADDRS,
};

struct node_addr {
	__u32 ifindex;
	__u32 flags;
};

/* The MAC address of a device. */
struct device_mac {
	__u8 mac[6];
	__u8 pad[2];
};

/* How a pod that opted out is identified. */
enum optout_kind {
	OPTOUT_NETNS = 1,  /* by the cookie of its network namespace */
	OPTOUT_CGROUP = 2, /* by the id of a cgroup2 directory; includes everything below it */
};

enum optout_why {
	OPTOUT_BY_POD,	     /* the pod's annotation */
	OPTOUT_BY_NAMESPACE, /* its namespace's annotation */
	OPTOUT_BY_RUNTIME,   /* the pod is sandboxed or a virtual machine */
	OPTOUT_BY_MESH,	     /* a sidecar redirects the pod's connections */
	OPTOUT_BY_PROXY,     /* the pod's connections are handed to a proxy on the node */
};

struct optout_key {
	__u64 id;
	__u32 kind;
	__u32 pad;
};

/* One direction of a flow, as its packets arrive. */
struct flow {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 pad[3];
} __attribute__((aligned(8))); /* hashed in whole words, like ct_entry */

/* Who began a flow, and how its packets reach the other end. Where each kind is translated, and by
 * whose routes it goes on, is in the table of flow.h. */
enum flow_kind {
	/* a client outside to a backend on another node, which sees an address of this node */
	FLOW_REMOTE,
	/* a client outside to a backend on this node, or to a pod of this node by the pod's own address */
	FLOW_LOCAL,
	/* a pod of this node to the outside, which sees an address of this node */
	FLOW_MASQUERADED,
	/* a pod of this node to a service, by packets and not by a socket that a socket program pointed at
	 * a backend */
	FLOW_POD,
	FLOW_POD_SELF, /* the same, to a pod that is its own backend and sees an address of this node */
	/* this node itself to a service, by packets: to a backend whose replies pass a program of ours */
	FLOW_HOST,
	/* the same, to a process of this node, which sees the service's address */
	FLOW_HOST_LOCAL,
	/* A client outside to a backend on another node that replies to it directly: the sum of this and
	 * an enum dsr_mode. Such a flow has only the request's row, which stays in `ct_pending`. */
	FLOW_DSR = 8,
	FLOW_DSR_IPIP,
	FLOW_DSR_GENEVE,
	FLOW_DSR_OPT,
};

/* Besides an enum flow_kind. */
enum flow_flag {
	FLOW_KIND = 15,	 /* mask of the kind */
	FLOW_REPLY = 16, /* the direction back to the client */

	/* to a load balancer address: the client must be in the service's ranges, if it has any */
	FLOW_HAS_RANGES = 32,
};

/* The state of one direction of a flow; each row has its own. Anything above CT_OPEN has ended. */
enum ct_state {
	CT_NEW, /* in ct_pending: the backend has not replied */
	/* In ct_pending, for a request: the backend has replied, and the client's next packet may
	 * establish the flow. For a flow with DSR: the packet that created the row will come in once
	 * more. */
	CT_ANSWERED,
	CT_OPEN, /* in ct, as are the states below */
	/* This end has sent FIN. The other may keep sending for hours; the flow is over once both
	 * ends have sent FIN. */
	CT_CLOSING,
	/* TCP: this end has sent RST and nothing since, which ends both directions. A packet
	 * without RST from the same end shows that the RST was not accepted, and makes this CT_OPEN
	 * again. */
	CT_RESET,
};

/*
 * Everything that a packet of an established flow needs. Rows are hash elements, which the kernel
 * recycles while programs still read them. `checksum` covers the flow and all fields above `seen`, and
 * every reader compares it. The fields below may be written in place: if the element has become
 * another flow's, it only looks younger or older, or closing, or its end is recognized later.
 *
 * `seen` is in ticks, that is bpf_jiffies64() >> tick_shift. Each direction has its own; a flow was
 * last used when either direction was.
 *
 * In `ct`, the first packet of each tick in the row's direction writes it. A SYN does not, so a
 * client that keeps dialing a dead backend does not keep the row alive. `seen` is also when the
 * route was last known to be valid, see route.h: a reply's initial value comes from `ct_pending`, and
 * that of a TCP or SCTP request is at most ROUTE_EPOCH_HANDSHAKE ticks too old.
 *
 * In `ct_pending` it means the same for replies and for UDP requests. A TCP or SCTP request has
 * `expected_ack` there instead, and the age is that of the reply's row.
 */
struct ct_entry {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	union {
		/* the difference to the sum over both addresses, which the checksums of IPv4, TCP and UDP
		 * cover */
		__u16 addr_diff;
		/* of FLOW_DSR_IPIP and FLOW_DSR_GENEVE: the lower half of the tick in which the row was
		 * created */
		__u16 created;
	};
	__u16 port_diff;
	/* zero: the stack routes the packet. Nonzero without a dmac: the neighbor is not resolved
	 * yet */
	__u32 ifindex;
	__u8 dmac[6];
	__u8 smac[6];
	union {
		__u32 seen;
		/* of a TCP or SCTP request in `ct_pending`: what the client has to acknowledge, once the state
		 * is CT_ANSWERED */
		__u32 expected_ack;
	};
	/* an enum flow_kind and enum flow_flag; covered by the checksum, unlike the fields around it */
	__u8 kind;
	__u8 state;
	__u16 checksum;
	__u16 seq_hi; /* how far this direction has come, see seq.h; zero: not known */
	__u16 syn_hi; /* where a SYN is that came since, or the answer to one, see seq.h; zero: nowhere */
	__u8 pad[4];
} __attribute__((aligned(8)));

/* The datagram that a fragment belongs to. For IPv6 the key is the same whatever protocol a
 * fragment claims. */
struct datagram {
	struct addr saddr;
	struct addr daddr;
	__be32 id;
	__u8 proto;
	__u8 pad[3];
} __attribute__((aligned(8)));

/* What only the first fragment contains. */
struct datagram_flow {
	__be16 sport;
	__be16 dport;
	__u32 seen; /* in ticks of `cfg` */
	__u32 proto;
	__u32 checksum; /* over key and value: rows are recycled while they are read */
};

/* The LRU maps, which evict rows when they are full. */
enum lru {
	LRU_CT_PENDING,
	LRU_AFFINITY,
	LRU_FRAGS,
	LRUS,
};

/* Later fragments that arrived before the first one: how many are kept, and the maximum length of
 * each including the link header. */
#define EARLY_FRAMES 256
#define EARLY_BYTES 9216
#define EARLY_MARKS 4096

/* A kept fragment. A program that reads or writes the row or its bytes holds `busy`; nobody waits
 * for it. */
struct early_slot {
	struct datagram datagram;
	__u32 busy;
	__u32 len; /* zero: the row is empty */
	__u32 ifindex;
	__u32 seen; /* in ticks of `cfg` */
} __attribute__((aligned(8)));

struct early_frame {
	__u8 bytes[EARLY_BYTES];
};

/* State shared by all datagrams that hash to the same mark. */
struct early_mark {
	__u64 stranger; /* hash:32 | seen:32 of a datagram whose first fragment was not ours */
	__u32 kept;	/* tick of the last kept fragment, plus one; zero: never */
	__u32 pad;
};

/* Numbers of fragments, ever. */
struct early_tally {
	__u64 kept; /* also the cursor: rows are filled in turn */
	__u64 returned;
	/* evicted while their first fragment could still arrive, or not sent again */
	__u64 lost;
	__u64 refused; /* too large, or their row was busy */
};

/* Limits the errors that are sent in reply to packets: a token bucket per CPU. */
struct allowance {
	__u64 filled; /* in ns of the coarse clock */
	__u64 tokens;
};

/* The progress of replacing `ct` with a larger map. */
enum table_stage {
	TABLE_OLD,
	TABLE_BOTH,
	TABLE_NEW,
};

struct counter {
	__u64 packets;
	__u64 bytes;
};

/* What monitors want to see; without reasons, nothing. It may be read while it is written. A mix of
 * two versions costs no more than unwanted events, which the agent filters out. */
struct watch {
	/* one bit per reason; the bit of REASON_NONE stands for the choice of a backend */
	__u64 reasons;
	__u64 until;	  /* in ns of the coarse clock */
	struct addr addr; /* of the packet, before or after translation, under the mask */
	struct addr mask;
	__be16 port; /* likewise; zero for any */
	__u16 pad;
	__u32 sample; /* report one choice in this many */
};

/* Choices are limited separately, so that many choices cannot hide a drop. */
enum watched_kind {
	WATCHED_REASON,
	WATCHED_CHOICE,
	WATCHED_KINDS,
};

/* The token bucket for events, and how many were lost: for each kind and CPU. */
struct watched {
	__u64 filled; /* in ns of the coarse clock */
	__u64 tokens;
	__u64 lost;
};

/* What happens to a packet. The fields after translation are zero if no translation was decided. */
struct event {
	__u64 at;	  /* in ns of the monotonic clock */
	struct flow flow; /* as received */
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u32 ifindex; /* where the packet was seen */
	__u32 out;     /* where it goes; zero if the stack routes it */
	__u32 len;     /* of the frame; zero for a choice */
	__u32 sample;  /* one reported choice stands for this many */
	__u8 hook;
	__u8 is_leaving;
	__u8 reason;
	__u8 is_dropped;
	__u8 kind; /* of the row */
	__u8 tcp_flags;
	__u8 pad[2];
	__u32 rule; /* of the policy that denies it */
};

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
	__be16 port;	  /* zero: none; the packet is given back, see dsr_tc.h */
	__u16 len;	  /* length of the encapsulation that the node added */
	__u16 direct;	  /* kind of that encapsulation, an enum dsr_mode */
	__u16 is_known;	  /* the backend serves what the client dialed, as far as is known here */
};

_Static_assert(sizeof(struct dsr_hint) == 40, "a row has no hidden padding");

/* What the agent says about changes of routes, rules, links, addresses and neighbors, in the ticks
 * of `seen`. It stores each word whole. */
struct route_epoch {
	/* the last change it has seen; may be ahead of the clock while the kernel is still making
	 * the change */
	__u32 changed;
	__u32 until; /* it has seen every change up to this tick; beyond it nobody vouches */
};

/* What the agent says about changes of who may use load balancer addresses. A map of its own,
 * because it was added later. */
struct range_epoch {
	/* like that of route_epoch; far ahead of the clock while a change is in progress */
	__u32 changed;
	__u32 pad;
};

/* How many routes each CPU caches; a power of two. */
#define FIB_CACHE_ROWS 256

/* The result of a FIB lookup for packets from one address to another. */
struct fib_cache_row {
	struct addr from;
	struct addr to;
	__u32 in;   /* the device that the packets come in by */
	__u32 seen; /* when it was looked up, in ticks of `cfg` */
	__u32 turn; /* odd while the row is being written */
	__u32 ifindex;
	__u8 dmac[6];
	__u8 smac[6];
	__u32 pad;
} __attribute__((aligned(8)));

_Static_assert(sizeof(struct route_epoch) == 8 && sizeof(struct range_epoch) == 8,
	       "a value has no hidden padding, and can be mapped");
_Static_assert(sizeof(struct fib_cache_row) == 64, "a row fits into a cache line");
