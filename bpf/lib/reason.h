/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the hooks and the reasons that are counted: one list, from which Go's names are generated. */
#pragma once

enum hook {
	HOOK_SOCK,
	HOOKS,
};

enum reason {
	REASON_NONE,
	REASON_NO_BACKEND, /* the service has no usable backend in the scope that applies: refused */
	REASON_TABLE_RACE, /* the table was switched more often than a reader tries: refused */
	REASON_BAD_TABLE,  /* a row points outside its map: refused, and worth a bug report */
	REASON_NO_MEMORY,  /* no record of the dialled address: carried on, but replies and getpeername show the
			      backend */
	REASON_NODE_PORT,  /* a process of the node bound a port that is a NodePort: refused */
	REASONS,
};
