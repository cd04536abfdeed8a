// Package bpf holds the compiled BPF objects and the Go types of everything that their maps contain.
// Everything except this file is generated from bpf/ with a pinned clang ("make generate") and
// committed, so building needs only Go.
package bpf

// The schema object contains every map, and the types are generated from it. The other objects are
// loaded with its maps in place of their own.
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -type addr -type hook -type reason -type counter_room -type svc_kind -type svc_scope -type service_flag -type dsr_mode -type range_bits -type algorithm -type backend_flag -type node_addr_flag -type hosted -type snat_addr -type cluster_node_flag -type pod_flag -type pod_proxy -type policy_direction -type policy_subject -type policy_ports -type policy_subject_flag -type policy_protocol -type policy_rule -type policy_flow_flag -type policy_flow_end -type pace_kind -type receive_window -type pod_class -type flow_kind -type flow_flag -type ct_state -type ct_class -type ct_phase -type doom -type doom_outcome -type doomed -type collect_run -type watched_kind -type event -type table_stage -type carry_outcome -type carried -type sweep_run -type lru -type optout_kind -type optout_why Maps ../../bpf/schema.c
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -no-global-types Sock ../../bpf/sock.c
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -no-global-types Peers ../../bpf/peers.c
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -no-global-types Collect ../../bpf/collect.c
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -no-global-types Sweep ../../bpf/sweep.c
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -no-global-types Carry ../../bpf/carry.c
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -no-global-types Tc ../../bpf/tc.c
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -no-global-types Xdp ../../bpf/xdp.c
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -no-global-types Pod ../../bpf/pod.c
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel Netns ../../bpf/netns.c
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -type survival Survival ../../bpf/survival.c
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -type side -type pair_state -type exclusion -type control -type passing -type tally_row -type wake Sockmap ../../bpf/sockmap.c
