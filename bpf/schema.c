// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* This file contains no program: from this object the maps are created and Go's types generated. */

#include "lib/config.h"
#include "lib/count.h"
#include "lib/maps.h"
#include "lib/pod_maps.h"
#include "lib/policy_maps.h"
#include "lib/reason.h"
#include "lib/types.h"

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
_Static_assert(sizeof(struct early_slot) == 56, "a row has no hidden padding");
_Static_assert(sizeof(struct early_mark) == 16, "a row has no hidden padding");
_Static_assert(sizeof(struct allowance) == 16, "a value has no hidden padding");
_Static_assert(sizeof(struct watch) == 56, "a value has no hidden padding");
_Static_assert(sizeof(struct event) == 112, "an event has no hidden padding");

const enum hook *hook_type __attribute__((unused));
const enum reason *reason_type __attribute__((unused));
const enum counter_room *counter_room_type __attribute__((unused));
const enum svc_kind *svc_kind_type __attribute__((unused));
const enum svc_scope *svc_scope_type __attribute__((unused));
const enum service_flag *service_flag_type __attribute__((unused));
const enum dsr_mode *dsr_mode_type __attribute__((unused));
const enum range_bits *range_bits_type __attribute__((unused));
const enum algorithm *algorithm_type __attribute__((unused));
const enum backend_flag *backend_flag_type __attribute__((unused));
const enum pod_flag *pod_flag_type __attribute__((unused));
const enum pod_proxy *pod_proxy_type __attribute__((unused));
const enum policy_direction *policy_direction_type __attribute__((unused));
const struct policy_ports *policy_ports_type __attribute__((unused));
const struct policy_subject *policy_subject_type __attribute__((unused));
const enum policy_subject_flag *policy_subject_flag_type __attribute__((unused));
const enum policy_protocol *policy_protocol_type __attribute__((unused));
const enum policy_rule *policy_rule_type __attribute__((unused));
const enum policy_flow_flag *policy_flow_flag_type __attribute__((unused));
const enum policy_flow_end *policy_flow_end_type __attribute__((unused));
const enum pace_kind *pace_kind_type __attribute__((unused));
const enum pod_class *pod_class_type __attribute__((unused));
const struct receive_window *receive_window_type __attribute__((unused));
const enum hosted *hosted_type __attribute__((unused));
const enum node_addr_flag *node_addr_flag_type __attribute__((unused));
const enum cluster_node_flag *cluster_node_flag_type __attribute__((unused));
const enum snat_addr *snat_addr_type __attribute__((unused));
const enum flow_kind *flow_kind_type __attribute__((unused));
const enum flow_flag *flow_flag_type __attribute__((unused));
const enum ct_state *ct_state_type __attribute__((unused));
const enum ct_class *ct_class_type __attribute__((unused));
const enum ct_phase *ct_phase_type __attribute__((unused));
const enum doom *doom_type __attribute__((unused));
const enum doom_outcome *doom_outcome_type __attribute__((unused));
const struct doomed *doomed_type __attribute__((unused));
const struct collect_run *collect_run_type __attribute__((unused));
const enum watched_kind *watched_kind_type __attribute__((unused));
const struct event *event_type __attribute__((unused));
const enum table_stage *table_stage_type __attribute__((unused));
const enum carry_outcome *carry_outcome_type __attribute__((unused));
const struct carried *carried_type __attribute__((unused));
const struct sweep_run *sweep_run_type __attribute__((unused));
const enum lru *lru_type __attribute__((unused));
const enum optout_kind *optout_kind_type __attribute__((unused));
const enum optout_why *optout_why_type __attribute__((unused));

char _license[] SEC("license") = "Dual BSD/GPL";
