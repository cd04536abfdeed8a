/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains what the agent decides once, at load: constants that the verifier folds dead branches with. */
#pragma once

#include <linux/types.h>

struct config {
	__u64 host_netns; /* the cookie of the node's own network namespace */
	__u64 can_refuse; /* the kernel lets a cgroup program choose the errno (bpf_set_retval) */
	__u64 probe;	  /* what the dials by which the agent proves these programs are told by */
	__u64 congestion; /* the first letters of the congestion control that who chooses none has */
};

const volatile struct config cfg;
