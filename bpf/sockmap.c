// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains how two sockets of this node that converse come to hand their messages to each other, past
 * TCP.
 *
 * Both ends of a connection are noted as they are established, and are known to be the ends of one by the numbers
 * that they began with. They go by TCP and are watched: how they are read, and whether they take turns. Only then
 * has the agent put them into the map of sockets, from which on each message of theirs may be queued at the other
 * socket. Whether one is, is decided anew for each: never while something that went by TCP has not been read, or
 * what is queued would overtake it. So either way can follow the other. */

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/addr.h"
#include "lib/sockmaprows.h"

/* What the agent decides once, at load. Numbers of system calls are an architecture's own. */
struct settings {
	__u64 reads[2];	 /* calls that read, and have no flags */
	__u64 writes[2]; /* calls that send, and have no flags */
	__u64 recv;	 /* calls with flags: */
	__u64 recvmsg;
	__u64 send;
	__u64 sendmsg;
	__u64 splices[3]; /* calls that read and are not served past TCP */
	__u64 blocking;	  /* sockets whose reads wait may come in too */
	__u64 turns;	  /* that show that two converse */
	__u64 budget;	  /* bytes that may wait past TCP, in a direction */
	__u64 run;	  /* messages in a row from one side that still are part of a conversation */
	__u64 stream;	  /* after so many both leave the map */
};

const volatile struct settings cfg;

const enum side *side_type __attribute__((unused));
const enum pair_state *pair_state_type __attribute__((unused));
const enum exclusion *exclusion_type __attribute__((unused));
const enum control *control_type __attribute__((unused));
const enum passing *passing_type __attribute__((unused));
const enum tally_row *tally_row_type __attribute__((unused));
const enum wake *wake_type __attribute__((unused));

enum {
	FAMILY_V4 = 2, /* AF_INET */
	CLOSED = 7,    /* TCP_CLOSE */
	PROCEED = 1,
};

/* What is read of the kernel's. */
struct list_head {
	struct list_head *next;
} __attribute__((preserve_access_index));

typedef struct {
	int counter;
} atomic_t;

typedef struct refcount_struct {
	atomic_t refs;
} refcount_t;

struct sk_psock {
	struct list_head ingress_msg;
	refcount_t refcnt;
} __attribute__((preserve_access_index));

struct file {
	unsigned int f_flags;
} __attribute__((preserve_access_index));

struct socket {
	struct file *file;
} __attribute__((preserve_access_index));

struct sock {
	int sk_rcvlowat;
	void *sk_user_data;
	unsigned long sk_flags;
	struct socket *sk_socket;
} __attribute__((preserve_access_index));

struct inet_sock {
	struct sock sk;
} __attribute__((preserve_access_index));

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const void *icsk_ulp_ops;
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 copied_seq;
	__u32 write_seq;
	bool is_mptcp;
	void *md5sig_info;
	void *ao_info;
} __attribute__((preserve_access_index));

struct pt_regs___x86 {
	unsigned long orig_ax, dx, r10;
} __attribute__((preserve_access_index));

struct pt_regs___arm {
	__u64 regs[31];
	int syscallno;
} __attribute__((preserve_access_index));

struct task_struct {
	struct task_struct *group_leader;
	char comm[16];
} __attribute__((preserve_access_index));

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	__u64 *value;
};

struct bpf_iter__sockmap {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	__u64 *key;
	struct sock *sk;
};

static __always_inline void count(__u32 what, __u64 bytes)
{
	struct tally *tally = bpf_map_lookup_elem(&sockmap_tallies, &what);

	if (!tally)
		return;
	tally->count++;
	tally->bytes += bytes;
}

static __always_inline __u32 control(enum control what)
{
	__u32 row = what, *value = bpf_map_lookup_elem(&sockmap_control, &row);

	return value ? *(volatile __u32 *)value : 0;
}

static __always_inline bool is_on(void)
{
	return control(CONTROL_ON) && !control(CONTROL_HELD);
}

static __always_inline void tell(__u32 event)
{
	bpf_ringbuf_output(&sockmap_wakes, &event, sizeof(event), 0);
}

/* Leaves a connection to TCP for good. */
static __always_inline void exclude(struct pair *pair, enum exclusion why)
{
	__u32 was = pair->state;

	if (was == PAIR_EXCLUDED)
		return;
	pair->exclusion = why;
	pair->state = PAIR_EXCLUDED;
	count(TALLY_EXCLUDED + why, 0);
	if (pair->inside)
		tell(WAKE_LEAVE);
}

/* Every field is read, whatever becomes of it: the verifier refuses one of which is decided first where it is. */
static __always_inline struct addr ops_local(const volatile struct bpf_sock_ops *ctx)
{
	struct addr v4 = addr_from_v4(ctx->local_ip4);
	struct addr v6 = {
		.word = { ctx->local_ip6[0], ctx->local_ip6[1], ctx->local_ip6[2], ctx->local_ip6[3] },
	};

	return ctx->family == FAMILY_V4 ? v4 : v6;
}

static __always_inline struct addr ops_remote(const volatile struct bpf_sock_ops *ctx)
{
	struct addr v4 = addr_from_v4(ctx->remote_ip4);
	struct addr v6 = {
		.word = { ctx->remote_ip6[0], ctx->remote_ip6[1], ctx->remote_ip6[2], ctx->remote_ip6[3] },
	};

	return ctx->family == FAMILY_V4 ? v4 : v6;
}

/* What signs its segments, or has several ways, is no plain connection. */
static __always_inline bool is_plain(struct tcp_sock *tp)
{
	if (bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp)
		return false;
	if (bpf_core_field_exists(tp->md5sig_info) && tp->md5sig_info)
		return false;
	return !(bpf_core_field_exists(tp->ao_info) && tp->ao_info);
}

/* Notes what the socket is an end of, and has the kernel tell of its end. */
static __always_inline bool end_note(struct bpf_sock_ops *ctx, struct bpf_sock *sk, struct end *end)
{
	if (!bpf_sk_storage_get(&ends, sk, end, BPF_SK_STORAGE_GET_F_CREATE))
		return false;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	return true;
}

static __always_inline void client_established(struct bpf_sock_ops *ctx, struct bpf_sock *sk, struct tcp_sock *tp,
					       __u64 rules, __u64 netns)
{
	struct end end = { .side = SIDE_CLIENT, .cookie = bpf_get_socket_cookie(ctx) };
	struct pair pair = {
		.state = PAIR_DIALLED,
		.cookie = { end.cookie },
		.sk = { (__u64)tp },
		.netns = { netns },
		.rules = rules,
		.needed = cfg.turns,
	};

	end.key.client = ops_local(ctx);
	end.key.netns = addr_is_loopback(&end.key.client) ? netns : 0;
	end.key.port = ctx->local_port;
	end.key.begin[SIDE_CLIENT] = ctx->snd_nxt;
	end.key.begin[SIDE_SERVER] = ctx->rcv_nxt;
	if (bpf_map_update_elem(&pairs, &end.key, &pair, BPF_NOEXIST))
		count(TALLY_FULL, 0);
	else if (!end_note(ctx, sk, &end))
		bpf_map_delete_elem(&pairs, &end.key);
}

/* The client is always first: what establishes this end is that one's answer. */
static __always_inline void server_established(struct bpf_sock_ops *ctx, struct bpf_sock *sk, struct tcp_sock *tp,
					       __u64 rules, __u64 netns)
{
	struct short_key at = { .netns = netns, .port = ctx->local_port };
	struct end end = { .side = SIDE_SERVER, .cookie = bpf_get_socket_cookie(ctx) };
	struct short_rules *here = bpf_map_lookup_elem(&short_rules, &at);
	struct pair *pair;

	if (here)
		rules |= here->to;
	if (!rules)
		return;
	end.key.client = ops_remote(ctx);
	end.key.netns = addr_is_loopback(&end.key.client) ? netns : 0;
	end.key.port = bpf_ntohl(ctx->remote_port);
	end.key.begin[SIDE_CLIENT] = ctx->rcv_nxt;
	end.key.begin[SIDE_SERVER] = ctx->snd_nxt;
	pair = bpf_map_lookup_elem(&pairs, &end.key);
	if (!pair || pair->state != PAIR_DIALLED)
		return;
	pair->rules &= rules;
	if (!pair->rules)
		return; /* the client sees when it reads that nobody has joined */
	end.peer = pair->cookie[SIDE_CLIENT];
	end.peer_sk = pair->sk[SIDE_CLIENT];
	if (!end_note(ctx, sk, &end))
		return;
	pair->cookie[SIDE_SERVER] = end.cookie;
	pair->sk[SIDE_SERVER] = (__u64)tp;
	pair->netns[SIDE_SERVER] = netns;
	pair->server = ops_local(ctx);
	pair->port = ctx->local_port;
	__sync_val_compare_and_swap(&pair->state, PAIR_DIALLED, PAIR_WATCHED);
	count(TALLY_WATCHED, 0);
}

static __always_inline void end_closed(struct bpf_sock *sk)
{
	struct end *end = bpf_sk_storage_get(&ends, sk, NULL, 0);

	if (end)
		bpf_map_delete_elem(&pairs, &end->key);
}

static __always_inline void established(struct bpf_sock_ops *ctx, struct bpf_sock *sk, bool dialled)
{
	struct short_key key = { .netns = bpf_get_netns_cookie(ctx) };
	struct short_rules *rules = bpf_map_lookup_elem(&short_rules, &key);
	__u64 from = rules ? rules->from : 0, to = rules ? rules->to : 0;
	struct tcp_sock *tp;

	if (dialled && !from)
		return;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp || !is_plain(tp))
		return;
	if (dialled)
		client_established(ctx, sk, tp, from, key.netns);
	else
		server_established(ctx, sk, tp, to, key.netns);
}

/* Runs at what happens to connections of TCP. */
SEC("sockops")
int sockmap_establish(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	__u32 op = ctx->op;

	if (!sk)
		return PROCEED;
	if (op == BPF_SOCK_OPS_STATE_CB && ctx->args[1] == CLOSED)
		end_closed(sk);
	if ((op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) && is_on())
		established(ctx, sk, op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB);
	return PROCEED;
}

/* The system call that the process is in, and its flags. */
struct call {
	__u64 number;
	__u64 flags3; /* its third argument, */
	__u64 flags4; /* and its fourth */
};

static __always_inline struct call call_now(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	void *regs = (void *)bpf_task_pt_regs(task);
	struct pt_regs___x86 *x86 = regs;
	struct pt_regs___arm *arm = regs;

	if (bpf_core_field_exists(x86->orig_ax))
		return (struct call) { x86->orig_ax, x86->dx, x86->r10 };
	if (bpf_core_field_exists(arm->syscallno))
		return (struct call) { arm->syscallno, arm->regs[2], arm->regs[3] };
	return (struct call) {};
}

enum {
	FLAG_OOB = 1,
	FLAG_PEEK = 2,
	FLAG_DONTROUTE = 4,
	FLAG_DONTWAIT = 0x40,
	FLAG_NOSIGNAL = 0x4000,
	FLAG_CMSG_CLOEXEC = 0x40000000,
	FLAGS_READ = FLAG_PEEK | FLAG_DONTWAIT | FLAG_NOSIGNAL | FLAG_CMSG_CLOEXEC,
	FLAGS_SEND = FLAG_DONTROUTE | FLAG_DONTWAIT | FLAG_NOSIGNAL,
	NONBLOCK = 04000, /* O_NONBLOCK */
};

/* Whether the process is one that splices, or may, whatever it does now. A thread may have another name. */
static __always_inline bool reads_otherwise(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 process = bpf_get_current_pid_tgid() >> 32;
	struct program_name name = {};

	if (bpf_map_lookup_elem(&splicers, &process))
		return true;
	BPF_CORE_READ_STR_INTO(&name.text, task, group_leader, comm);
	return bpf_map_lookup_elem(&sockmap_except, &name);
}

static __always_inline void note_splicer(void)
{
	__u32 process = bpf_get_current_pid_tgid() >> 32, one = 1;

	bpf_map_update_elem(&splicers, &process, &one, BPF_ANY);
}

/* How a socket is read, as far as that forbids to go past TCP. */
static __always_inline enum exclusion read_way(struct sock *sk, __u64 *flags)
{
	struct call call = call_now();
	struct socket *socket = sk->sk_socket;
	struct file *file = socket ? socket->file : NULL;

	if (reads_otherwise())
		return EXCLUSION_PROGRAM;

	if (call.number == cfg.recv)
		*flags = call.flags4;
	else if (call.number == cfg.recvmsg)
		*flags = call.flags3;
	else if (call.number == cfg.reads[0] || call.number == cfg.reads[1])
		*flags = 0;
	else if (call.number == cfg.splices[0] || call.number == cfg.splices[1] || call.number == cfg.splices[2])
		return EXCLUSION_SPLICE;
	else
		return EXCLUSION_WAY;
	*flags &= 0xffffffff;
	if (*flags & ~(__u64)FLAGS_READ)
		return EXCLUSION_FLAGS;
	if (sk->sk_rcvlowat > 1)
		return EXCLUSION_LOWAT;
	if (!cfg.blocking && !(*flags & FLAG_DONTWAIT) && file && !(file->f_flags & NONBLOCK))
		return EXCLUSION_BLOCKING;
	return EXCLUSION_NONE;
}

/* The row of a socket's connection, if it is still that one's. */
static __always_inline struct pair *pair_of(struct end *end)
{
	struct pair *pair = bpf_map_lookup_elem(&pairs, &end->key);

	if (!pair || pair->cookie[end->side & 1] != end->cookie)
		return NULL;
	return pair;
}

/* Both ends go into the map by themselves: only a program that runs for a socket can note something on it. */
static __always_inline void ask(struct sock *sk, struct end *end, struct pair *pair)
{
	__u32 bit = 1 << (end->side & 1);
	__u64 cookie = end->cookie;

	if (pair->asked & bit)
		return;
	if (!bpf_sk_storage_get(&candidates, sk, &cookie, BPF_SK_STORAGE_GET_F_CREATE))
		return;
	if ((__sync_fetch_and_or(&pair->asked, bit) | bit) == 3)
		tell(WAKE_ADMIT);
}

static __always_inline void read_turn(struct sock *sk, struct end *end, struct pair *pair)
{
	__u32 side = end->side & 1;

	if (pair->last != side + 1) {
		pair->last = side + 1;
		pair->turns++;
	}
	if (pair->state == PAIR_WATCHED && pair->turns >= pair->needed)
		__sync_val_compare_and_swap(&pair->state, PAIR_WATCHED, PAIR_CHOSEN);
	if (pair->state == PAIR_CHOSEN)
		ask(sk, end, pair);
	if (pair->inside & (1 << side))
		__sync_fetch_and_or(&pair->ready, 1 << side);
}

/* Runs when a process has read something that came by TCP, of every socket of the machine. */
SEC("tp_btf/tcp_rcv_space_adjust")
int sockmap_read(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct end *end = bpf_sk_storage_get(&ends, sk, NULL, 0);
	enum exclusion why;
	struct pair *pair;
	__u64 flags = 0;

	if (!end)
		return 0;
	pair = pair_of(end);
	if (!pair || pair->state == PAIR_DIALLED) {
		/* An answer has come, and nobody has joined: the other end is elsewhere, or not to be. */
		if (pair)
			bpf_map_delete_elem(&pairs, &end->key);
		bpf_sk_storage_delete(&ends, sk);
		return 0;
	}
	if (pair->state == PAIR_EXCLUDED)
		return 0;
	why = read_way(sk, &flags);
	if (why == EXCLUSION_SPLICE)
		note_splicer();
	if (why != EXCLUSION_NONE)
		exclude(pair, why);
	else if (!(flags & FLAG_PEEK))
		read_turn(sk, end, pair);
	return 0;
}

/* Whether the call that sends is one of those of which is known that they may go either way. */
static __always_inline enum passing send_way(struct pair *pair)
{
	struct call call = call_now();
	__u64 flags = 0;

	if (call.number == cfg.send)
		flags = call.flags4;
	else if (call.number == cfg.sendmsg)
		flags = call.flags3;
	else if (call.number != cfg.writes[0] && call.number != cfg.writes[1])
		return PASSING_CALL;
	flags &= 0xffffffff;
	if (flags & FLAG_OOB)
		exclude(pair, EXCLUSION_URGENT);
	return flags & ~(__u64)FLAGS_SEND ? PASSING_CALL : PASSING_NONE;
}

static __always_inline struct sk_psock *psock_of(const struct sock *sk)
{
	void *data = NULL;

	bpf_core_read(&data, sizeof(data), &sk->sk_user_data);
	return (void *)((__u64)data & ~7ULL); /* the lowest bits are flags of the kernel's */
}

/* Whether nothing waits for a socket past TCP. */
static __always_inline bool psock_is_empty(struct sk_psock *psock)
{
	struct list_head *next = NULL;

	if (bpf_core_read(&next, sizeof(next), &psock->ingress_msg.next))
		return false;
	return next == (void *)psock + bpf_core_field_offset(psock->ingress_msg);
}

/* What the other end has read, and has set. A socket that is gone meanwhile is no more in the map, whatever is read
 * here of who has its place. */
static __always_inline enum passing peer_takes(struct tcp_sock *tp, struct tcp_sock *peer, struct pair *pair,
					       __u32 side, __u32 bytes)
{
	const void *ulp = NULL;
	__u32 copied = 0;
	int lowat = 0;

	if (bpf_core_read(&copied, sizeof(copied), &peer->copied_seq) || copied != tp->write_seq)
		return PASSING_UNREAD;
	bpf_core_read(&lowat, sizeof(lowat), &peer->inet_conn.icsk_inet.sk.sk_rcvlowat);
	bpf_core_read(&ulp, sizeof(ulp), &peer->inet_conn.icsk_ulp_ops);
	if (lowat > 1 || ulp || tp->inet_conn.icsk_ulp_ops)
		return PASSING_PEER;
	if (bytes > cfg.budget)
		return PASSING_BUDGET;
	if (pair->waiting[side] + bytes <= cfg.budget)
		return PASSING_NONE;
	if (!psock_is_empty(psock_of((struct sock *)peer)))
		return PASSING_BUDGET;
	pair->waiting[side] = 0;
	return PASSING_NONE;
}

/* Whether a message goes past TCP. */
static __always_inline enum passing decide(struct sk_msg_md *msg, struct end *end, struct pair *pair)
{
	__u32 side = end->side & 1, other = !side;
	struct tcp_sock *tp;
	enum passing why;

	pair->run[other] = 0;
	pair->run[side]++;
	if (!is_on())
		return PASSING_OFF;
	if (pair->state != PAIR_SHORT || !(pair->ready & (1 << other)))
		return PASSING_STATE;
	if (!end->peer) {
		end->peer_sk = pair->sk[other];
		end->peer = pair->cookie[other];
	}
	tp = msg->sk ? bpf_skc_to_tcp_sock(msg->sk) : NULL;
	if (!tp || !end->peer)
		return PASSING_ALONE;
	if (pair->run[side] > cfg.run) {
		if (pair->run[side] > cfg.stream &&
		    __sync_val_compare_and_swap(&pair->state, PAIR_SHORT, PAIR_LEAVING) == PAIR_SHORT) {
			pair->needed *=
				4; /* it has to show for longer each time that it has become a conversation again */
			tell(WAKE_LEAVE);
		}
		return PASSING_RUN;
	}
	why = send_way(pair);
	if (why == PASSING_NONE)
		why = peer_takes(tp, (struct tcp_sock *)end->peer_sk, pair, side, msg->size);
	return why;
}

/* Runs for each message of a socket that is in the map. */
SEC("sk_msg")
int sockmap_message(struct sk_msg_md *msg)
{
	struct end *end = msg->sk ? bpf_sk_storage_get(&ends, msg->sk, NULL, 0) : NULL;
	struct pair *pair = end ? pair_of(end) : NULL;
	enum passing why = pair ? decide(msg, end, pair) : PASSING_ALONE;
	__u32 side;

	if (why == PASSING_NONE && bpf_msg_redirect_hash(msg, &socks, &end->peer, BPF_F_INGRESS) != SK_PASS)
		why = PASSING_ALONE;
	count(why, msg->size);
	if (!pair)
		return SK_PASS;
	side = end->side & 1;
	if (why != PASSING_NONE) {
		pair->passed[side] += msg->size;
		return SK_PASS;
	}
	pair->redirected[side] += msg->size;
	pair->waiting[side] += msg->size;
	return SK_PASS;
}

/* Whether a rule still lets this end of a connection, and the other as it was when it began. */
static __always_inline bool is_let(struct end *end, struct pair *pair)
{
	__u32 side = end->side & 1;
	struct short_key key = { .netns = pair->netns[side] };
	struct short_rules *any = bpf_map_lookup_elem(&short_rules, &key), *at = NULL;
	__u64 rules = 0;

	if (side == SIDE_SERVER) {
		key.port = pair->port;
		at = bpf_map_lookup_elem(&short_rules, &key);
	}
	if (any)
		rules = side == SIDE_CLIENT ? any->from : any->to;
	if (at)
		rules |= at->to;
	return rules & pair->rules;
}

/* Puts those who converse into the map. The agent reads it when it is told that there are any. */
SEC("iter/bpf_sk_storage_map")
int sockmap_admit(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	__u64 *value = ctx->value;
	struct sock *sk = ctx->sk;
	struct end *end;
	struct pair *pair;
	__u64 cookie;
	__u32 bit;

	if (!sk || !value)
		return 0;
	cookie = *value;
	end = bpf_sk_storage_get(&ends, sk, NULL, 0);
	pair = end && end->cookie == cookie ? pair_of(end) : NULL;
	if (!pair || pair->state != PAIR_CHOSEN || bpf_get_socket_cookie(sk) != cookie)
		goto out;
	if (!is_let(end, pair)) {
		exclude(pair, EXCLUSION_RULES);
		goto out;
	}
	bit = 1 << (end->side & 1);
	if (bpf_map_update_elem(&socks, &cookie, sk, BPF_NOEXIST)) {
		exclude(pair, EXCLUSION_REFUSED);
		goto out;
	}
	count(TALLY_ADMITTED, 0);
	if ((__sync_fetch_and_or(&pair->inside, bit) | bit) == 3)
		__sync_val_compare_and_swap(&pair->state, PAIR_CHOSEN, PAIR_SHORT);
out:
	bpf_sk_storage_delete(&candidates, sk);
	return 0;
}

/* Whether a connection's sockets are to leave the map. */
static __always_inline bool is_leaving(struct pair *pair, bool on)
{
	__u32 state;

	if (!pair)
		return true; /* its other end has closed */
	state = pair->state;
	if (!on && state != PAIR_EXCLUDED && state != PAIR_LEAVING)
		__sync_val_compare_and_swap(&pair->state, state, PAIR_LEAVING);
	return !on || state == PAIR_LEAVING || state == PAIR_EXCLUDED;
}

/* Whether no call of a process is at work on a socket that is in the map. */
static __always_inline bool psock_is_idle(struct sk_psock *psock)
{
	int refs = 0;

	return !bpf_core_read(&refs, sizeof(refs), &psock->refcnt.refs.counter) && refs == 1;
}

/* Whether nothing waits for a socket and nobody is about to send it something. Who begins to send now sees that it
 * must not; who has begun before is at work until it is in the queue, so that is looked at last. */
static __always_inline bool is_quiet(struct sock *sk, struct end *end, struct pair *pair)
{
	__u32 other = !(end->side & 1);

	if (pair && __sync_fetch_and_or(&pair->inside, 0) & (1 << other) &&
	    !psock_is_idle(psock_of((struct sock *)pair->sk[other])))
		return false;
	if (pair)
		__sync_fetch_and_or(&pair->inside, 0); /* nothing below is read before what is above */
	return psock_is_idle(psock_of(sk)) && psock_is_empty(psock_of(sk));
}

/* A connection of which both ends have left is watched again. */
static __always_inline void leave(struct end *end, struct pair *pair)
{
	__u32 bit = 1 << (end->side & 1);

	count(TALLY_LEFT, 0);
	end->left = 0;
	if (!pair)
		return;
	__sync_fetch_and_and(&pair->ready, ~bit);
	__sync_fetch_and_and(&pair->asked, ~bit);
	if ((__sync_fetch_and_and(&pair->inside, ~bit) & ~bit) || pair->state != PAIR_LEAVING)
		return;
	pair->turns = 0;
	pair->run[SIDE_CLIENT] = pair->run[SIDE_SERVER] = 0;
	if (pair->needed > cfg.turns * 256)
		exclude(pair, EXCLUSION_STREAM);
	else
		__sync_val_compare_and_swap(&pair->state, PAIR_LEAVING, PAIR_WATCHED);
}

/* Looks at every socket in the map, and takes out those that are to leave, once that loses nothing. The agent reads
 * it, and gets a byte for each that has to wait for the next look. */
SEC("iter/sockmap")
int sockmap_sweep(struct bpf_iter__sockmap *ctx)
{
	__u32 look = control(CONTROL_LOOK);
	__u64 *key = ctx->key;
	struct sock *sk = ctx->sk;
	struct pair *pair;
	struct end *end;
	__u64 cookie;

	if (!sk || !key)
		return 0;
	cookie = *key;
	end = bpf_sk_storage_get(&ends, sk, NULL, 0);
	if (!end)
		return 0;
	pair = pair_of(end);
	if (pair && !is_let(end, pair))
		exclude(pair, EXCLUSION_RULES);
	if (!is_leaving(pair, is_on())) {
		end->left = 0;
		return 0;
	}
	if (!end->left)
		end->left = look;
	if (end->left != look && is_quiet(sk, end, pair) && !bpf_map_delete_elem(&socks, &cookie))
		leave(end, pair);
	else
		bpf_seq_write(ctx->meta->seq, &end->side, 1);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
