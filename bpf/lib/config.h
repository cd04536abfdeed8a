/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the settings that the agent fixes at load time: constants by which the
 * verifier removes dead branches. */
#pragma once

#include <linux/types.h>

struct config {
	__u64 host_netns; /* cookie of the node's own network namespace */
	__u64 can_refuse; /* the kernel lets a cgroup program choose the errno (bpf_set_retval) */
	/* token in the dials by which the agent proves that these programs run */
	__u64 probe;
	__u64 congestion; /* first eight letters of the node's default congestion control */
};

const volatile struct config cfg;
