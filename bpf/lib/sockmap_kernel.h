/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the parts of the kernel's sockets and processes that the programs read, relocated
 * by BTF. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

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
	__u32 eval; /* what a program has decided of the message being sent, or of the next; may become shorter */
	refcount_t refcnt;
} __attribute__((preserve_access_index));

struct rb_node;

struct rb_root {
	struct rb_node *rb_node;
} __attribute__((preserve_access_index));

struct rb_root_cached {
	struct rb_root rb_root;
} __attribute__((preserve_access_index));

struct address_space {
	struct rb_root_cached i_mmap;
} __attribute__((preserve_access_index));

struct file {
	unsigned int f_flags;
	struct address_space *f_mapping;
} __attribute__((preserve_access_index));

struct socket {
	unsigned long flags;
	struct file *file;
} __attribute__((preserve_access_index));

struct wait_queue_head {
	struct list_head head;
} __attribute__((preserve_access_index));

struct socket_wq {
	struct wait_queue_head wait;
} __attribute__((preserve_access_index));

/* Placeholders; the values are relocated. */
enum sock_flags {
	SOCK_RCVTSTAMP = 8,
	SOCK_ZEROCOPY = 18,
};

struct netns_ipv4 {
	__u32 sysctl_tcp_notsent_lowat;
} __attribute__((preserve_access_index));

struct net {
	__u64 net_cookie;
	struct netns_ipv4 ipv4;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	__u32 word[4];
} __attribute__((preserve_access_index));

struct sock_common {
	unsigned long skc_flags;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	int sk_rcvlowat;
	int sk_peek_off;
	int sk_sndbuf;
	int sk_wmem_queued;
	__u32 sk_tsflags; /* shorter on older kernels */
	__u8 sk_shutdown;
	void *sk_user_data;
	struct socket *sk_socket;
	struct socket_wq *sk_wq;
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
	__u32 notsent_lowat;
	__u32 copied_seq;
	__u32 write_seq;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 rcv_nxt;
	__u32 data_segs_in;
	__u32 data_segs_out;
	__u64 bytes_sent;
	__u64 bytes_retrans;
	__u64 bytes_acked;
	__u64 bytes_received;
	bool is_mptcp;
	void *md5sig_info;
	void *ao_info;
} __attribute__((preserve_access_index));

struct pt_regs___x86 {
	unsigned long orig_ax, si, dx, r10;
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

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	void *key;
	void *value;
};

/* The kernel's own of a map of sockets. */
struct bpf_shtab {
	atomic_t count;
} __attribute__((preserve_access_index));

static __always_inline struct sk_psock *sockmap_psock_of(const struct sock *sk)
{
	void *data = NULL;

	bpf_core_read(&data, sizeof(data), &sk->sk_user_data);
	return (void *)((__u64)data & ~7ULL); /* the lowest bits are flags */
}

/* Reports whether no data waits at a socket past TCP. */
static __always_inline bool sockmap_psock_is_empty(struct sk_psock *psock)
{
	struct list_head *next = NULL;

	if (!psock)
		return true; /* the socket is not in the map, or no longer */
	if (bpf_core_read(&next, sizeof(next), &psock->ingress_msg.next))
		return false;
	return next == (void *)psock + bpf_core_field_offset(psock->ingress_msg);
}

/* Reports whether everything that the other end has sent has been read, by TCP and past it. */
static __always_inline bool sockmap_has_heard(const struct tcp_sock *tp)
{
	return tp->copied_seq == tp->rcv_nxt && sockmap_psock_is_empty(sockmap_psock_of((const struct sock *)tp));
}

static __always_inline bool sockmap_has_flag(const struct sock *sk, enum sock_flags flag)
{
	unsigned long flags = 0;

	bpf_core_read(&flags, sizeof(flags), &sk->__sk_common.skc_flags);
	return flags >> flag & 1;
}

/* Reports whether reads of a socket tell when data came, or peek from where the last peek ended. */
static __always_inline bool sockmap_is_told_more(const struct sock *sk)
{
	__u32 stamps = 0;
	int peeked = -1;

	bpf_core_read(&stamps, bpf_core_field_size(sk->sk_tsflags), &sk->sk_tsflags);
	bpf_core_read(&peeked, sizeof(peeked), &sk->sk_peek_off);
	return stamps || peeked >= 0 || sockmap_has_flag(sk, bpf_core_enum_value(enum sock_flags, SOCK_RCVTSTAMP));
}

/* Reports whether a process has mapped a socket, as required for zero-copy receive. */
static __always_inline bool sockmap_is_mapped(const struct sock *sk)
{
	return BPF_CORE_READ(sk, sk_socket, file, f_mapping, i_mmap.rb_root.rb_node);
}
