/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the probe by which the agent proves that its programs run: a dial that only
 * they answer, and that sends nothing if there is no program. */
#pragma once

#include <stdbool.h>
#include <bpf/bpf_endian.h>

#include "addr.h"
#include "config.h"

/* The errno that the dial fails with. The kernel never returns it from connect. */
#define PROBE_ANSWER ENOANO

#define PROBE_V4 0xc0000008 /* 192.0.0.8, the dummy address (RFC 7600) */
#define PROBE_V6 0x01000000 /* 100::/64, the discard prefix (RFC 6666) */

/* The port and the low half of an IPv6 address are the token of the agent that loaded the programs,
 * so programs of another agent do not answer. The check is made only for dials that are for no
 * service. */
static __always_inline bool probe_asks(const struct svc_key *to)
{
	if (to->port != (__be16)sock_cfg.probe)
		return false;
	if (addr_is_v4(&to->addr))
		return to->addr.word[3] == bpf_htonl(PROBE_V4);
	return to->addr.word[0] == bpf_htonl(PROBE_V6) && !to->addr.word[1] &&
	       to->addr.word[2] == (__u32)sock_cfg.probe && to->addr.word[3] == sock_cfg.probe >> 32;
}
