/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the keys and values of maps: what is not in a file of its own, named for its rows. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

/* An address of either family; IPv4 is mapped (::ffff:a.b.c.d), so there is one key and one path. */
struct addr {
	__be32 word[4];
};

/* A frontend: what a client dials. A NodePort is one row with the unspecified address of its family. */
struct svc_key {
	struct addr addr;
	__be16 port;
	__u8 proto;
	__u8 hosted; /* not zero: no frontend, but a backend on this node that is reached from outside, whatever the
			protocol. It has a row without its port too. With a protocol: what was a frontend before
			the node was drained, and still is to other nodes that forward to backends here. */
};

enum svc_kind {
	SVC_CLUSTER_IP,
	SVC_EXTERNAL_IP,
	SVC_EXTERNAL_ONLY, /* an externalIP that clients in the cluster do not get to use */
	SVC_LOAD_BALANCER,
	SVC_NODE_PORT,
	SVC_HOST_PORT,
	SVC_HOSTED, /* of a row that is no frontend */
};

/* A row is never rewritten with another service while a reader may hold it: hash elements are recycled. */
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
	SERVICE_SOURCE_RANGES = 4, /* only who is in `src_ranges` gets to its load balancer addresses */
	SERVICE_DIRECT = 24,	   /* an enum direct */
};

/* How packets are forwarded to a backend on another node that answers its client itself. */
enum direct {
	DIRECT_OFF, /* it does not */
	DIRECT_IPIP,
	DIRECT_GENEVE,
	DIRECT_OPT,	  /* nothing is put around them, but an option into them */
	DIRECT_SHIFT = 3, /* of the bits in flags of services and of rows of flows */
};

enum algorithm {
	ALGORITHM_RANDOM,
	ALGORITHM_ROUND_ROBIN,
	ALGORITHM_SOURCE_HASH,
	ALGORITHM_MAGLEV,
};

/*
 * One port of one Service in one family. A word is off:32 | len:16 | tag:16 and is stored and loaded whole:
 * that store is the switch from one set of backends to the next.
 */
struct service {
	__u64 words[SCOPES];
	__u32 affinity_seconds;
	__u8 algorithm;
	__u8 flags;
	__u16 pad;
	__u32 turn; /* round robin: the only field that programs write */
	__u32 pad2;
};

/*
 * backend:24 | service:24 | tag:16. The owner and the tag say whether the slot still belongs to the word that
 * led here; extents are reused at once, so a reader that was overtaken finds another owner or tag and loads
 * the word again.
 */
struct slot {
	__u64 value;
};

enum backend_flag {
	BACKEND_LOCAL = 1, /* on this node: its packets can keep the client's address, since replies pass here */
	BACKEND_TERMINATING = 2, /* about to go; no program asks, but whoever looks at a table wants to know */
};

/*
 * A row belongs to one service, so whoever remembers a backend, for a client or for a socket, sees with one look
 * whether the service still has it: owner is scopes:8 | service:24, with a bit for each scope whose table has it.
 */
struct backend {
	struct addr addr;
	__be16 port;
	__u8 proto;
	__u8 flags;
	__u32 owner;
};

/* Clients that a service lets in: addresses that agree with `addr` in the bits of `prefix_len` beyond the
 * service's. */
struct range_key {
	__u32 prefix_len;
	__u32 service;
	struct addr addr;
};

/* In place of a service, which none is: the ranges of the cluster itself. */
#define RANGES_INSIDE 0

enum range_bits {
	RANGE_SERVICE_BITS = 32,
	RANGE_BITS = 160, /* of service and address */
};

/* The name of a service, for people: dumps must read well when no agent is there to ask. */
struct name {
	char text[192];
};

/* A client is its address, or its network namespace: then the address is the cookie and ends in eight zero bytes.
 */
struct affinity_key {
	struct addr client;
	__u32 service;
	__u32 pad;
};

struct affinity {
	__u64 last; /* new connection, in ns of the coarse clock */
	__u32 row;
	__u32 pad;
};

enum node_addr_flag {
	NODE_ADDR_PORTS = 1, /* clients outside reach NodePorts here; the node's own sockets do at every address */
};

/* What backends on other nodes see as the client: an address of the node, or the tunnel's where that leads to them.
 */
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

/* The hardware address of a device. */
struct link_addr {
	__u8 mac[6];
	__u8 pad[2];
};

/* What a pod that opted out is told by. */
enum optout_kind {
	OPTOUT_NETNS = 1,  /* the cookie of its network namespace */
	OPTOUT_CGROUP = 2, /* the id of a cgroup2 directory, with what is below */
};

enum optout_why {
	OPTOUT_BY_POD,	     /* its annotation */
	OPTOUT_BY_NAMESPACE, /* its namespace's annotation */
	OPTOUT_BY_RUNTIME,   /* it is sandboxed or a virtual machine */
	OPTOUT_BY_MESH,	     /* a sidecar redirects what it dials */
	OPTOUT_BY_PROXY,     /* what it dials is handed to a proxy of the node */
};

struct optout_key {
	__u64 id;
	__u32 kind;
	__u32 pad;
};

/* Programs only look whether there is a row. What is in it is for people: whose row it is must be plain when no
 * agent is there to ask. */
struct optout {
	struct name pod;
	struct addr addrs[2];
	__u32 why;
};

/* One direction of a flow, as its packets arrive. */
struct flow {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 pad[3];
} __attribute__((aligned(8))); /* both are hashed by whole words */

enum ct_flag {
	CT_REPLY = 1,	/* of the way back to the client */
	CT_GUARDED = 2, /* of a load balancer address: the client has to be in the ranges of the service, if any */
	CT_STACK = 4,	/* to a backend on this node, which the stack finds */
	CT_DIRECT = 24, /* an enum direct. Such a flow has this one row, and keeps it in `ct_half` */
	CT_POD = 32, /* of what a pod of this node opened to the outside: its requests leave, and its replies come
			in */
	CT_INSIDE =
		64,    /* of what a pod of this node sends to a service as packets: translated at the pod's device
			  and nowhere else. With CT_POD the pod is its own backend, which sees the node's address */
	CT_NODE = 128, /* of what the node itself sends to a service as packets: own.h */
};

/* How far one direction of a flow is: each row has its own. What is above CT_OPEN has ended. */
enum ct_state {
	CT_NEW,	     /* in ct_half: the backend has not answered */
	CT_ANSWERED, /* in ct_half, of a request: it has, and what the client sends next may establish the flow; of
			CT_DIRECT: the packet that made the row is to come once more */
	CT_OPEN,     /* in ct, as are those below */
	CT_CLOSING,  /* This end has sent FIN. The other may send on for hours, and the flow is over when both
			have */
	CT_RESET, /* TCP: this end has sent RST and nothing since, which is over for both; a packet without RST from
		     the same end shows that it was not, and makes this CT_OPEN again */
};

/*
 * All that an established packet needs. Rows are hash elements, which the kernel recycles while programs still read
 * them: `seal` is made of the flow and of all above `seen`, and whoever reads a row compares it. What is below may
 * be written in place; if the element is another flow's by then, that one only seems younger or older, or closing
 * until its next packet.
 *
 * `seen` is in ticks of `tick_shift`, that is bpf_jiffies64() >> tick_shift, and each direction has its own: a flow
 * was last used when either was.
 *
 * In `ct` it is written by every packet of the row's direction, once a tick; not by a SYN, so that a client that
 * dials what is gone does not keep the row. It is also when the way was last known to be good, see ways.h: at first
 * that of a reply is from `ct_half`, and that of a request by TCP or SCTP at the most WAYS_HANDSHAKE ticks too old.
 *
 * In `ct_half` it is the same for a reply, and for a request by UDP. For a request by TCP or SCTP it is no time: in
 * CT_ANSWERED it is what the client has to acknowledge, before that nothing; the age is that of the reply's row.
 */
struct ct_entry {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u16 addr_diff; /* to the sum over both addresses, which is in the header of IPv4 and in that of TCP or
			    UDP; of DIRECT_IPIP and DIRECT_GENEVE the lower half of the tick in which the row was
			    made */
	__u16 port_diff;
	__u32 ifindex; /* zero: the stack finds the way. Without a dmac: the neighbour is not known yet */
	__u8 dmac[6];
	__u8 smac[6];
	__u32 seen;
	__u8 flags; /* sealed too */
	__u8 state;
	__u16 seal;
} __attribute__((aligned(8)));

/* The datagram that a fragment is of. That of IPv6 is the same whatever protocol a fragment says that it has. */
struct datagram {
	struct addr saddr;
	struct addr daddr;
	__be32 id;
	__u8 proto;
	__u8 pad[3];
} __attribute__((aligned(8)));

/* What only the first fragment has. */
struct datagram_flow {
	__be16 sport;
	__be16 dport;
	__u32 seen; /* in ticks of `cfg` */
	__u32 proto;
	__u32 seal; /* of the datagram and the rest: rows are recycled while they are read */
};

/* The maps that push out what they have no room for. */
enum lru {
	LRU_CT_HALF,
	LRU_AFFINITY,
	LRU_FRAGS,
	LRUS,
};

/* How many rows such a map was ever given, and how many were taken from it again by somebody. */
struct turnover {
	__u64 made;
	__u64 deleted;
};

/* What the agent tells the programs that take out rows which are over. */
struct sweep_run {
	__u32 tick_shift;
	__u32 pad;
};

/* Later fragments that came before the first: so many are kept, of so many bytes each with the header of the link.
 */
#define LATE_FRAMES 256
#define LATE_BYTES 9216
#define LATE_MARKS 4096

/* A fragment that is kept. Whoever writes or reads the row or its bytes holds `busy`, and nobody waits for it. */
struct late {
	struct datagram datagram;
	__u32 busy;
	__u32 len; /* zero: there is none */
	__u32 ifindex;
	__u32 seen; /* in ticks of `cfg` */
} __attribute__((aligned(8)));

struct late_frame {
	__u8 bytes[LATE_BYTES];
};

/* What is known of the datagrams that share a mark. */
struct late_mark {
	__u64 stranger; /* hash:32 | seen:32 of one of which the first fragment was not ours */
	__u32 kept;	/* when a fragment of one was, in ticks of `cfg` plus one; zero: never */
	__u32 pad;
};

/* How many fragments, ever. */
struct late_tally {
	__u64 kept; /* also whose turn it is: one row after the other */
	__u64 returned;
	__u64 lost;    /* while their first could still come: pushed out, or not written back */
	__u64 refused; /* since they are too large, or their row was busy */
};

/* The backend that another node chose for the packet at hand. */
struct hint {
	struct addr backend;
	struct addr from; /* that node */
	__be16 port;	  /* zero: none, the packet is given back, see back.h */
	__u16 len;	  /* of what that node put around the packet */
	__u32 direct;	  /* what that is: an enum direct */
};

/* What may be said in answer to packets: a bucket of tokens for each CPU. */
struct allowance {
	__u64 filled; /* in ns of the coarse clock */
	__u64 tokens;
};

/* How far the replacement of `ct` by a larger one is. */
enum table_stage {
	TABLE_OLD,
	TABLE_BOTH,
	TABLE_NEW,
};

/* What became of a row that is to be carried over. */
enum carry_outcome {
	CARRY_FAILED, /* there is no room */
	CARRY_TORN,   /* it changed too often while it was read, or is nobody's */
	CARRY_DONE,
	CARRY_THERE, /* before */
	CARRY_GONE,
};

/* A row to be carried over, by its key. */
struct carried {
	struct flow flow;
	__u32 outcome;
	__u32 pad;
};

/* The kinds of flow that differ in how long they are remembered. */
enum ct_class {
	CT_CLASS_TCP,
	CT_CLASS_UDP,
	CT_CLASS_SCTP,
	CT_CLASSES,
};

/* How far a flow is, of which each direction has its own row. */
enum ct_phase {
	CT_PHASE_OPEN,
	CT_PHASE_HALF_CLOSED, /* one direction has ended */
	CT_PHASE_CLOSED,
	CT_PHASE_RESET,
	CT_PHASE_HALF_OPEN, /* all that is in ct_half */
	CT_PHASES,
};

enum doom {
	DOOM_IDLE,    /* if it was idle for as long as it may be */
	DOOM_STALE,   /* its backend is gone */
	DOOM_FLUSHED, /* somebody said so */
};

enum doom_outcome {
	DOOM_SPARED, /* it is in use, or not as it was */
	DOOM_DELETED,
};

/* A flow that the agent wants forgotten, by the keys of its rows. */
struct doomed {
	struct flow request;
	struct flow reply;
	__u32 why;
	__u32 outcome;
};

/* What the agent tells the programs that forget flows, and what they answer. */
struct collect_run {
	__u64 jiffies; /* answer: now */
	__u32 count;   /* of rows of `doomed` that are filled */
	__u32 tick_shift;
	__u32 limits[CT_CLASSES][CT_PHASES]; /* in ticks */
	__u32 pad;
};

struct counter {
	__u64 packets;
	__u64 bytes;
};

/* What monitors want to be told; without reasons, nothing. It is written while it is read, and a mix of two rows
 * costs no more than events that nobody asked for, which the agent leaves out. */
struct watch {
	__u64 reasons;	  /* a bit for each; that of REASON_NONE stands for the choice of a backend */
	__u64 until;	  /* in ns of the coarse clock */
	struct addr addr; /* of the packet, before or after; only the bits of the mask count */
	struct addr mask;
	__be16 port; /* likewise; zero for any */
	__u16 pad;
	__u32 sample; /* one choice in so many */
};

/* Choices are told apart from the rest, so that many of them keep nobody from hearing of a drop. */
enum watched_kind {
	WATCHED_REASON,
	WATCHED_CHOICE,
	WATCHED_KINDS,
};

/* What may be told, and what could not be: for each kind and CPU. */
struct watched {
	__u64 filled; /* in ns of the coarse clock */
	__u64 tokens;
	__u64 lost;
};

/* What becomes of a packet. What it would be after its rewrite is zero where that was not decided. */
struct event {
	__u64 at;	  /* in ns of the monotonic clock */
	struct flow flow; /* as it came */
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u32 ifindex; /* where it was seen */
	__u32 out;     /* where it goes; zero where the stack finds the way */
	__u32 len;     /* of the frame; zero for a choice */
	__u32 sample;  /* a choice stands for so many */
	__u8 hook;
	__u8 is_leaving;
	__u8 reason;
	__u8 is_dropped;
	__u8 flags; /* of the row */
	__u8 tcp_flags;
	__u8 pad[6];
};

#include "sizes.h"
