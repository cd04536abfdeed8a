// Package bpf holds the compiled BPF objects and the Go types of everything that their maps contain. All but this
// file is generated from bpf/ with a pinned clang ("make generate") and committed, so building needs only Go.
package bpf

// The schema object holds every map and generates the types; the others load with its maps in place of their own.
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -type addr -type hook -type reason -type svc_kind -type svc_scope -type service_flag -type algorithm -type optout_kind -type optout_why Maps ../../bpf/schema.c
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -no-global-types Sock ../../bpf/sock.c
//go:generate go tool -modfile ../../test/tools/go.mod bpf2go -go-package bpf -target bpfel -no-global-types Peers ../../bpf/peers.c
