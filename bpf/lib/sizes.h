/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This file contains the assertions about the layouts of maps. */
#pragma once

#include "types.h"

_Static_assert(sizeof(struct svc_key) == 24, "a key has no hidden padding");
_Static_assert(sizeof(struct service) == 32, "two services share a cache line");
_Static_assert(sizeof(struct slot) == 8, "a slot is loaded with one instruction");
_Static_assert(sizeof(struct backend) == 24, "a backend has no hidden padding");
_Static_assert(sizeof(struct range_key) == 24, "a key has no hidden padding");
_Static_assert(sizeof(struct affinity_key) == 24, "a key has no hidden padding");
_Static_assert(sizeof(struct affinity) == 16, "a value has no hidden padding");
_Static_assert(sizeof(struct optout_key) == 16, "a key has no hidden padding");
_Static_assert(sizeof(struct doomed) == 88, "a row has no hidden padding");
_Static_assert(sizeof(struct carried) == 48, "a row has no hidden padding");
_Static_assert(sizeof(struct collect_run) == 80, "a row has no hidden padding");
_Static_assert(sizeof(struct flow) == 40, "a key has no hidden padding");
_Static_assert(sizeof(struct ct_entry) == 72, "key and row of an element are in three cache lines");
_Static_assert(sizeof(struct datagram) == 40, "a key has no hidden padding");
_Static_assert(sizeof(struct datagram_flow) == 16, "a value has no hidden padding");
_Static_assert(sizeof(struct lru_stats) == 16, "a value has no hidden padding");
_Static_assert(sizeof(struct late) == 56, "a row has no hidden padding");
_Static_assert(sizeof(struct early_mark) == 16, "a row has no hidden padding");
_Static_assert(sizeof(struct allowance) == 16, "a value has no hidden padding");
_Static_assert(sizeof(struct watch) == 56, "a value has no hidden padding");
_Static_assert(sizeof(struct event) == 112, "an event has no hidden padding");
