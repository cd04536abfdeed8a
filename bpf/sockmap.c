// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the programs by which two sockets of this node that converse hand each other
 * their messages, bypassing TCP.
 *
 * Each end of a connection is noted once it has read a few messages, and the two are matched by the
 * sequence numbers that they began with. At first they use TCP and are watched: how they are read,
 * and whether they take turns. Only then does the agent put them into the socket map, from where on
 * each message may be queued directly at the other socket. That is decided for each message anew.
 * It is never done while earlier data that used TCP is unread, because queued messages are read
 * first. So the two paths may alternate at any time. */

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "lib/sockmap_pair.h"
#include "lib/sockmap_begin.h"
#include "lib/sockmap_kernel.h"
#include "lib/sockmap_types.h"

const enum side *side_type __attribute__((unused));
const enum pair_state *pair_state_type __attribute__((unused));
const enum exclusion *exclusion_type __attribute__((unused));
const enum control *control_type __attribute__((unused));
const enum passing *passing_type __attribute__((unused));
const enum tally_row *tally_row_type __attribute__((unused));
const enum wake *wake_type __attribute__((unused));

enum {
	ESTABLISHED = 1,      /* TCP_ESTABLISHED */
	FIN_WAIT1 = 4,	      /* TCP_FIN_WAIT1 */
	FIN_WAIT2 = 5,	      /* TCP_FIN_WAIT2 */
	SEND_SHUTDOWN = 2,    /* of sk_shutdown */
	REFUSALS_MOST = 4,    /* how often a connection that the kernel refused is tried again */
	TURNS_MOST = 1 << 20, /* that a connection waits for which there is no room */
	/* bytes of kernel memory for each message that waits past TCP, however short */
	MESSAGE = 1024,
};

static __always_inline bool sockmap_is_splice(__u64 call)
{
	return call == cfg.splices[0] || call == cfg.splices[1] || call == cfg.splices[2];
}

/* Returns whether the way in which a socket is read forbids bypassing TCP. */
static __always_inline enum exclusion sockmap_read_way(struct sock *sk, __u64 *flags)
{
	struct call call = sockmap_call_now();
	struct socket *socket = sk->sk_socket;
	struct file *file = socket ? socket->file : NULL;

	if (sockmap_reads_otherwise())
		return EXCLUSION_PROGRAM;
	if (call.number == cfg.recv)
		*flags = call.arg4;
	else if (call.number == cfg.recvmsg)
		*flags = call.arg3;
	else if (call.number == cfg.reads[0] || call.number == cfg.reads[1])
		*flags = 0;
	else if (sockmap_is_splice(call.number))
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

/* Registers a socket as a candidate for the map. Each end does this for itself: only a program that
 * runs for a socket can attach storage to it. */
static __always_inline void sockmap_ask(struct sock *sk, struct end *end, struct pair *pair)
{
	__u32 bit = 1 << (end->side & 1);
	__u64 cookie = end->cookie;

	if (pair->asked & bit || !sockmap_is_end_of(bpf_skc_to_tcp_sock(sk), end))
		return;
	if (!bpf_sk_storage_get(&candidates, sk, &cookie, BPF_SK_STORAGE_GET_F_CREATE))
		return;
	if ((__sync_fetch_and_or(&pair->asked, bit) | bit) == 3)
		sockmap_wake(WAKE_ADMIT);
}

static __always_inline void sockmap_read_turn(struct sock *sk, struct end *end, struct pair *pair)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk), *peer = (void *)pair->sk[!(end->side & 1)];
	__u32 side = end->side & 1, heard = 0;

	/* What comes before the other side has read all is no answer. */
	if (tp && pair->last != side + 1 && !bpf_core_read(&heard, sizeof(heard), &peer->copied_seq) &&
	    heard == tp->write_seq) {
		pair->last = side + 1;
		if (!pair->inside)
			pair->turns++;
	}
	if (pair->state == PAIR_WATCHED && pair->turns >= pair->needed && sockmap_is_on())
		__sync_val_compare_and_swap(&pair->state, PAIR_WATCHED, PAIR_CHOSEN);
	if (pair->state == PAIR_CHOSEN)
		sockmap_ask(sk, end, pair);
	if (pair->inside & (1 << side) && !end->edge)
		__sync_fetch_and_or(&pair->ready, 1 << side);
}

/* Handles a read of an unknown socket. */
static __always_inline void sockmap_read_unknown(struct sock *sk)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);

	if (sockmap_is_splice(sockmap_call_now().number)) {
		if (sockmap_is_in_question(sk))
			sockmap_note_splicer();
	} else if (tp && sockmap_is_on() && sockmap_is_looked_at(tp)) {
		sockmap_end_note(sk, tp);
	}
}

/* Handles a read of a socket whose other end has not been found, or has closed. Every READS_ALONE
 * reads it is checked again, because it may have another connection by now, or the rules may have
 * changed. A socket in the map leaves that first. */
static __always_inline void sockmap_read_alone(struct sock *sk, struct end *end)
{
	if (++end->reads % READS_ALONE)
		return;
	if (sockmap_psock_of(sk)) {
		sockmap_wake(WAKE_LEAVE);
		return;
	}
	if (sockmap_is_waiting(sk, end))
		return;
	sockmap_end_forget(end);
	bpf_sk_storage_delete(&ends, sk);
}

/* Watches a connection again that no rule admitted, once one does. */
static __always_inline void sockmap_read_excluded(struct end *end, struct pair *pair)
{
	__u64 rules;

	if (pair->exclusion != EXCLUSION_RULES || ++end->reads % READS_ALONE)
		return;
	rules = sockmap_rules_of(pair->netns[SIDE_CLIENT], SIDE_CLIENT, pair->port[SIDE_CLIENT]) &
		sockmap_rules_of(pair->netns[SIDE_SERVER], SIDE_SERVER, pair->port[SIDE_SERVER]);
	/* Both ends may get here at the same time; only the one that clears the exclusion goes on, as
	 * the connection may be excluded again by then. */
	if (!rules ||
	    __sync_val_compare_and_swap(&pair->exclusion, EXCLUSION_RULES, EXCLUSION_NONE) != EXCLUSION_RULES)
		return;
	pair->rules = rules;
	sockmap_watch_again(pair, PAIR_EXCLUDED);
}

/* Runs when a process has read data that came by TCP, for every socket of the machine. */
SEC("tp_btf/tcp_rcv_space_adjust")
int sockmap_read(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct end *end = bpf_sk_storage_get(&ends, sk, NULL, 0);
	enum exclusion why;
	struct pair *pair;
	__u64 flags = 0;

	if (!end) {
		sockmap_read_unknown(sk);
		return 0;
	}
	pair = sockmap_pair_of(end);
	if (!pair) {
		sockmap_read_alone(sk, end);
		return 0;
	}
	if (pair->state == PAIR_EXCLUDED && !pair->inside) {
		sockmap_read_excluded(end, pair);
		return 0;
	}
	why = sockmap_read_way(sk, &flags);
	if (why == EXCLUSION_SPLICE) {
		sockmap_note_splicer();
		__sync_fetch_and_or(&pair->spliced, 1 << (end->side & 1));
	}
	if (why != EXCLUSION_NONE)
		sockmap_exclude(pair, why);
	else if (!(flags & FLAG_PEEK))
		sockmap_read_turn(sk, end, pair);
	return 0;
}

/* Runs after each read of a socket in a map. One of this and the next is used: not every kernel can
 * run this one, and the next also runs for all other sockets. */
SEC("fexit/tcp_bpf_recvmsg")
int sockmap_seen(__u64 *ctx)
{
	struct end *end;
	__u64 got = 0;

	bpf_get_func_ret(ctx, &got);
	end = sockmap_edge_end((struct sock *)ctx[0], got, ctx[3]);
	if (end)
		sockmap_edge_seen((struct sock *)ctx[0], end, got, ctx[2]);
	return 0;
}

/* Runs after each read of any socket. */
SEC("tp_btf/sock_recv_length")
int sockmap_seen_of_all(__u64 *ctx)
{
	struct end *end = sockmap_edge_end((struct sock *)ctx[0], ctx[1], ctx[2]);

	if (end)
		sockmap_edge_seen((struct sock *)ctx[0], end, ctx[1], (__s32)ctx[1] > 0 ? sockmap_asked_now() : 0);
	return 0;
}

/* Runs when a TCP socket is destroyed, for every socket of the machine. */
SEC("tp_btf/tcp_destroy_sock")
int sockmap_forget(__u64 *ctx)
{
	struct end *end = bpf_sk_storage_get(&ends, (struct sock *)ctx[0], NULL, 0);

	if (end)
		sockmap_end_forget(end);
	return 0;
}

/* Returns whether the send call is one of those known to work on either path. */
static __always_inline enum passing sockmap_send_way(struct pair *pair)
{
	struct call call = sockmap_call_now();
	__u64 flags = 0;

	if (call.number == cfg.send)
		flags = call.arg4;
	else if (call.number == cfg.sendmsg)
		flags = call.arg3;
	else if (call.number != cfg.writes[0] && call.number != cfg.writes[1])
		return PASSING_CALL;
	flags &= 0xffffffff;
	if (flags & FLAG_OOB)
		sockmap_exclude(pair, EXCLUSION_URGENT);
	return flags & ~(__u64)FLAGS_SEND ? PASSING_CALL : PASSING_NONE;
}

/* Reports whether a socket may still receive data. One that is closed, or used for another
 * connection, may not: it would take the data for that of its next connection. */
static __always_inline bool sockmap_receives(struct tcp_sock *tp)
{
	unsigned char state = 0;

	bpf_core_read(&state, sizeof(state), &tp->inet_conn.icsk_inet.sk.__sk_common.skc_state);
	return state == ESTABLISHED || state == FIN_WAIT1 || state == FIN_WAIT2;
}

/* Returns whether the other end's progress and settings allow a message past TCP. If that socket
 * has been freed it is no longer in the map either, so whatever is read from its memory does no
 * harm. */
static __always_inline enum passing sockmap_peer_takes(struct tcp_sock *tp, struct tcp_sock *peer,
						       struct pair *pair, __u32 side, __u32 bytes)
{
	const void *ulp = NULL;
	__u32 copied = 0;
	int lowat = 0;

	if (tp->inet_conn.icsk_inet.sk.sk_shutdown & SEND_SHUTDOWN || !sockmap_receives(peer))
		return PASSING_ALONE;
	if (bpf_core_read(&copied, sizeof(copied), &peer->copied_seq) || copied != tp->write_seq)
		return PASSING_UNREAD;
	bpf_core_read(&lowat, sizeof(lowat), &peer->inet_conn.icsk_inet.sk.sk_rcvlowat);
	bpf_core_read(&ulp, sizeof(ulp), &peer->inet_conn.icsk_ulp_ops);
	if (lowat > 1 || ulp || tp->inet_conn.icsk_ulp_ops)
		return PASSING_PEER;
	if (bytes > cfg.budget)
		return PASSING_BUDGET;
	if (pair->waiting[side] + MESSAGE + bytes <= cfg.budget)
		return PASSING_NONE;
	if (!sockmap_psock_is_empty(sockmap_psock_of((struct sock *)peer)))
		return PASSING_BUDGET;
	pair->waiting[side] = 0;
	return PASSING_NONE;
}

/* Decides whether a message bypasses TCP. */
static __always_inline enum passing sockmap_decide(struct sk_msg_md *msg, struct end *end, struct pair *pair)
{
	__u32 side = end->side & 1, other = !side;
	struct tcp_sock *tp = msg->sk ? bpf_skc_to_tcp_sock(msg->sk) : NULL;
	enum passing way;

	/* Who has not heard all does not answer: both stream at once. */
	if (tp && sockmap_has_heard(tp))
		pair->run[other] = 0;
	pair->run[side]++;
	if (pair->spliced & pair->inside & (1 << other) &&
	    !sockmap_psock_is_empty(sockmap_psock_of((struct sock *)pair->sk[other])))
		return PASSING_LOST;
	way = sockmap_send_way(pair); /* in any case: it may exclude the connection */
	if (!sockmap_is_on())
		return PASSING_OFF;
	if (pair->state != PAIR_ACCELERATED || !(pair->ready & (1 << other)))
		return PASSING_STATE;
	if (!end->peer) {
		end->peer_sk = pair->sk[other];
		end->peer = pair->cookie[other];
	}
	if (!tp || !end->peer)
		return PASSING_ALONE;
	if (pair->run[side] > cfg.run) {
		if (pair->run[side] > cfg.stream)
			sockmap_leave_streaming(pair);
		return PASSING_RUN;
	}
	return way != PASSING_NONE ? way
				   : sockmap_peer_takes(tp, (struct tcp_sock *)end->peer_sk, pair, side, msg->size);
}

/* Runs for each message of a socket in the map. */
SEC("sk_msg")
int sockmap_message(struct sk_msg_md *msg)
{
	struct end *end = msg->sk ? bpf_sk_storage_get(&ends, msg->sk, NULL, 0) : NULL;
	struct pair *pair = end ? sockmap_pair_of(end) : NULL;
	enum passing why = pair ? sockmap_decide(msg, end, pair) : PASSING_ALONE;
	__u32 now = bpf_ktime_get_coarse_ns() >> 20, side;

	if (pair && !pair->shown[end->side & 1])
		pair->shown[end->side & 1] = now;
	/* Nothing is to wait behind data that bypassed TCP without need. */
	if (why == PASSING_NONE && now - pair->shown[end->side & 1] > cfg.show &&
	    sockmap_psock_is_empty(sockmap_psock_of((struct sock *)end->peer_sk)))
		why = PASSING_SHOWN;
	if (why == PASSING_NONE && bpf_msg_redirect_hash(msg, &socks, &end->peer, BPF_F_INGRESS) != SK_PASS)
		why = PASSING_ALONE;
	sockmap_tally(why, msg->size);
	if (why == PASSING_LOST)
		return SK_DROP;
	if (!pair)
		return SK_PASS;
	side = end->side & 1;
	if (why != PASSING_NONE) {
		sockmap_edge_sends(end, bpf_skc_to_tcp_sock(msg->sk), msg->size);
		pair->passed[side] += msg->size;
		pair->shown[side] = now;
		return SK_PASS;
	}
	pair->redirected[side] += msg->size;
	pair->waiting[side] += MESSAGE + msg->size;
	pair->turns++;
	return SK_PASS;
}

/* Returns whether the settings of a socket forbid bypassing TCP. */
static __always_inline enum exclusion sockmap_socket_way(const struct sock *sk)
{
	const struct inet_connection_sock *connection = (const struct inet_connection_sock *)sk;
	const void *ulp = NULL;

	if (sockmap_is_mapped(sk))
		return EXCLUSION_SPLICE;
	if (sockmap_is_told_more(sk))
		return EXCLUSION_CONTROL;
	bpf_core_read(&ulp, sizeof(ulp), &connection->icsk_ulp_ops);
	if (ulp)
		return EXCLUSION_ULP;
	return sockmap_has_flag(sk, bpf_core_enum_value(enum sock_flags, SOCK_ZEROCOPY)) ? EXCLUSION_ZEROCOPY
											 : EXCLUSION_NONE;
}

/* Makes a connection wait whose end the kernel did not take, longer each time. If the map is full,
 * there is room again once others have ended. Else the map of another version of these programs may
 * still have it, and will release it; a map of another program never does. */
static __always_inline void sockmap_refuse(struct pair *pair, long err)
{
	if (err == -E2BIG || err == -ENOMEM) {
		sockmap_tally(TALLY_FULL, 0);
		pair->needed = pair->needed < TURNS_MOST / 4 ? pair->needed * 4 : TURNS_MOST;
	} else {
		pair->needed *= 16;
		if (++pair->refused > REFUSALS_MOST) {
			sockmap_exclude(pair, EXCLUSION_REFUSED);
			return;
		}
	}
	if (!pair->inside)
		sockmap_watch_again(pair, PAIR_CHOSEN);
	else if (__sync_val_compare_and_swap(&pair->state, PAIR_CHOSEN, PAIR_LEAVING) == PAIR_CHOSEN)
		sockmap_wake(WAKE_LEAVE);
}

/* Puts conversing sockets into the map. The agent reads this iterator when it is woken for it. */
SEC("iter/bpf_sk_storage_map")
int sockmap_admit(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	__u64 *value = ctx->value;
	struct sock *sk = ctx->sk;
	struct end *end;
	enum exclusion why;
	struct pair *pair;
	__u64 cookie;
	__u32 bit;
	long err;

	if (!sk || !value)
		return 0;
	cookie = *value;
	end = bpf_sk_storage_get(&ends, sk, NULL, 0);
	pair = end && end->cookie == cookie ? sockmap_pair_of(end) : NULL;
	if (!pair || pair->state != PAIR_CHOSEN || bpf_get_socket_cookie(sk) != cookie ||
	    sk->__sk_common.skc_state != ESTABLISHED || !sockmap_is_end_of(bpf_skc_to_tcp_sock(sk), end))
		goto out;
	bit = 1 << (end->side & 1);
	if (!sockmap_is_on()) {
		sockmap_watch_again(pair, PAIR_CHOSEN);
		goto out;
	}
	sockmap_edge_begin(end, sockmap_is_edge(sk));
	why = sockmap_is_allowed(end, pair) ? sockmap_socket_way(sk) : EXCLUSION_RULES;
	if (why == EXCLUSION_NONE && end->edge && !sockmap_read_control(CONTROL_SEEN))
		why = EXCLUSION_EDGE;
	if (why != EXCLUSION_NONE) {
		sockmap_exclude(pair, why);
		goto out;
	}
	err = sockmap_psock_of(sk) ? -EBUSY : bpf_map_update_elem(&socks, &cookie, sk, BPF_NOEXIST);
	if (err) {
		sockmap_refuse(pair, err);
		goto out;
	}
	sockmap_tally(TALLY_ADMITTED, 0);
	pair->turns = 0;
	if ((__sync_fetch_and_or(&pair->inside, bit) | bit) == 3)
		__sync_val_compare_and_swap(&pair->state, PAIR_CHOSEN, PAIR_ACCELERATED);
out:
	bpf_sk_storage_delete(&candidates, sk);
	return 0;
}

/* Takes sockets that should leave out of the map, once that loses no data. The agent reads this
 * iterator, and gets one byte for each socket that has to wait for the next sweep. */
SEC("iter/sockmap")
int sockmap_sweep(struct bpf_iter__sockmap *ctx)
{
	__u32 look = sockmap_read_control(CONTROL_LOOK);
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
	pair = sockmap_pair_of(end);
	if (pair && !sockmap_is_allowed(end, pair))
		sockmap_exclude(pair, EXCLUSION_RULES);
	if (pair && !end->edge && sockmap_is_edge(sk)) { /* since it is in the map */
		sockmap_edge_begin(end, true);
		__sync_fetch_and_and(&pair->ready, ~(1 << (end->side & 1)));
		if (!sockmap_read_control(CONTROL_SEEN))
			sockmap_exclude(pair, EXCLUSION_EDGE);
	}
	if (!sockmap_is_leaving(pair, sockmap_is_on())) {
		end->left = 0;
		return 0;
	}
	if (!end->left)
		end->left = look;
	if (end->left != look && sockmap_is_quiet(sk, end, pair) && !bpf_map_delete_elem(&socks, &cookie))
		sockmap_leave(end, pair);
	else
		bpf_seq_write(ctx->meta->seq, &end->side, 1);
	return 0;
}

/* Reports how many sockets are in the map, as counted by the kernel. This iterator walks another map,
 * which has few rows, and reports once, at the end. */
SEC("iter/bpf_map_elem")
int sockmap_count(struct bpf_iter__bpf_map_elem *ctx)
{
	int sockets;

	if (ctx->key)
		return 0;
	sockets = ((struct bpf_shtab *)&socks)->count.counter;
	bpf_seq_write(ctx->meta->seq, &sockets, sizeof(sockets));
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
