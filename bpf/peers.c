// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the program by which the agent reads `sock_origins`: the records are in socket
 * storage, which only an iterator can read from outside. It is attached to nothing that carries
 * traffic. */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lib/maps.h"

struct seq_file;
struct sock;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

/* The context of the program; in the last call socket and value are NULL. */
struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	struct sock_origin *value;
};

SEC("iter/bpf_sk_storage_map")
int peers_list(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	/* The verifier treats each load from the context as a new pointer, so there is only one. */
	const struct sock_origin *peer = ctx->value;
	struct sock *sk = ctx->sk;
	struct conn_origin out = {};

	if (!sk || !peer)
		return 0;
	out.cookie = bpf_get_socket_cookie(sk);
	out.peer = *peer;
	bpf_seq_write(ctx->meta->seq, &out, sizeof(out));
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
