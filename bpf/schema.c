// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains no program: it is the object from which the maps are created and Go's types are generated. */

#include "lib/maps.h"

const enum hook *hook_type __attribute__((unused));
const enum reason *reason_type __attribute__((unused));
const enum svc_kind *svc_kind_type __attribute__((unused));
const enum svc_scope *svc_scope_type __attribute__((unused));
const enum service_flag *service_flag_type __attribute__((unused));
const enum algorithm *algorithm_type __attribute__((unused));
const enum optout_kind *optout_kind_type __attribute__((unused));
const enum optout_why *optout_why_type __attribute__((unused));

char _license[] SEC("license") = "Dual BSD/GPL";
