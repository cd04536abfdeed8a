/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains how a process reads and sends, according to its current system call. */
#pragma once

#include <bpf/bpf_helpers.h>

#include "sockkernel.h"
#include "sockmaprows.h"

/* The current system call and its third and fourth argument. */
struct call {
	__u64 number;
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
