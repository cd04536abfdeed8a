/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how a process reads and sends, according to its current system call. */
#pragma once

#include <bpf/bpf_helpers.h>

#include "sockkernel.h"
#include "sockmaprows.h"

/* The current system call and some of its arguments. */
struct call {
	__u64 number;
	__u64 arg2;
	__u64 arg3;
	__u64 arg4;
};

static __always_inline struct call call_now(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	void *regs = (void *)bpf_task_pt_regs(task);
	struct pt_regs___x86 *x86 = regs;
	struct pt_regs___arm *arm = regs;

	if (bpf_core_field_exists(x86->orig_ax))
		return (struct call) { x86->orig_ax, x86->si, x86->dx, x86->r10 };
	if (bpf_core_field_exists(arm->syscallno))
		return (struct call) { arm->syscallno, arm->regs[1], arm->regs[2], arm->regs[3] };
	return (struct call) {};
}

/* As a process passes them to its calls. */
struct iovec {
	__u64 base;
	__u64 len;
};

struct msghdr {
	__u64 name;
	__u64 namelen;
	__u64 iov;
	__u64 iovlen;
};

enum {
	PIECES_MOST = 32, /* of the memory to read into that are counted */
};

/* Returns how many bytes the pieces of memory have that a process reads into, or fewer. */
static __always_inline __u64 room_in(__u64 iov, __u64 count)
{
	struct iovec piece;
	__u64 room = 0;

	for (__u32 i = 0; i < PIECES_MOST && i < count; i++) {
		if (bpf_probe_read_user(&piece, sizeof(piece), (struct iovec *)iov + i))
			break;
		room += piece.len;
	}
	return room;
}

/* Returns how many bytes the current call asks for at most, or fewer; zero if that is not known. */
static __always_inline __u64 asked_now(void)
{
	struct call call = call_now();
	struct msghdr header;

	if (call.number == cfg.reads[0] || call.number == cfg.recv)
		return call.arg3;
	if (call.number == cfg.reads[1])
		return room_in(call.arg2, call.arg3);
	if (call.number == cfg.recvmsg && !bpf_probe_read_user(&header, sizeof(header), (void *)call.arg2))
		return room_in(header.iov, header.iovlen);
	return 0;
}

enum {
	FLAG_OOB = 1,
	FLAG_PEEK = 2,
	FLAG_DONTROUTE = 4,
	FLAG_DONTWAIT = 0x40,
	FLAG_NOSIGNAL = 0x4000,
	FLAG_MORE = 0x8000,
	FLAG_CMSG_CLOEXEC = 0x40000000,
	FLAGS_READ = FLAG_PEEK | FLAG_DONTWAIT | FLAG_NOSIGNAL | FLAG_CMSG_CLOEXEC,
	FLAGS_SEND = FLAG_DONTROUTE | FLAG_DONTWAIT | FLAG_NOSIGNAL | FLAG_MORE,
	NONBLOCK = 04000, /* O_NONBLOCK */
};

/* Reports whether the process is known to splice, or is on the list of programs that may, whatever
 * it does now. The process name is that of its main thread. */
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

	if (!bpf_map_lookup_elem(&splicers, &process))
		bpf_map_update_elem(&splicers, &process, &one, BPF_ANY);
}
