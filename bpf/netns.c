// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains the program that finds the cookie of a network namespace by the inode number
 * of its file. Before Linux 6.18 the kernel tells the cookie only to processes inside the
 * namespace. The program is attached to nothing. */

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* A bound for the loop, more than any machine has. */
#define NAMESPACES 65536

struct list_head {
	struct list_head *next;
} __attribute__((preserve_access_index));

struct proc_ns_operations;

struct ns_common {
	const struct proc_ns_operations *ops;
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct list_head list;
	struct ns_common ns;
	__u64 net_cookie;
} __attribute__((preserve_access_index));

struct nsproxy {
	struct net *net_ns;
} __attribute__((preserve_access_index));

struct task_struct {
	struct nsproxy *nsproxy;
} __attribute__((preserve_access_index));

__u32 netns_number; /* the inode number to look for */
__u64 netns_cookie; /* 0 if not found */

struct walk {
	struct net *own, *at;
	const struct proc_ns_operations *ops;
};

static long netns_walk_on(__u32 index __attribute__((unused)), struct walk *walk)
{
	const struct proc_ns_operations *ops = NULL;
	struct list_head *next = NULL;
	struct net *net = walk->at;
	__u32 number = 0;

	/* The list also contains its head, which is not part of a namespace, hence the checked
	 * reads. */
	bpf_core_read(&ops, sizeof(ops), &net->ns.ops);
	bpf_core_read(&number, sizeof(number), &net->ns.inum);
	if (ops == walk->ops && number == netns_number) {
		bpf_core_read(&netns_cookie, sizeof(netns_cookie), &net->net_cookie);
		return 1;
	}
	if (bpf_core_read(&next, sizeof(next), &net->list.next))
		return 1;
	walk->at = (void *)next - bpf_core_field_offset(net->list);
	return walk->at == walk->own;
}

/* A raw tracepoint program runs under RCU, which also protects the list of namespaces. */
SEC("raw_tp")
int netns_find(void *ctx __attribute__((unused)))
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct net *own = BPF_CORE_READ(task, nsproxy, net_ns);
	struct walk walk = { own, own, BPF_CORE_READ(own, ns.ops) };

	netns_cookie = 0;
	bpf_loop(NAMESPACES, netns_walk_on, &walk, 0);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
