package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// build describes this binary and the kernel it runs on.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Dirty   bool   `json:"dirty,omitempty"` // built with uncommitted changes
	Go      string `json:"go"`
	Kernel  string `json:"kernel,omitempty"`
}

func newVersionCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this command, Go and the kernel",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { b := currentBuild(); return inv.print(b, b.write) },
	}
}

// version returns the version of this binary, with the commit if it was built from a checkout.
func version() string {
	b := currentBuild()
	if b.Version != "(devel)" || b.Commit == "" {
		return b.Version
	}
	return b.Version + "-" + b.Commit[:min(len(b.Commit), 12)]
}

func currentBuild() build {
	b := build{Version: "(devel)", Go: runtime.Version(), Kernel: kernel()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			b.Commit = setting.Value
		case "vcs.modified":
			b.Dirty = setting.Value == "true"
		}
	}
	return b
}

func kernel() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

func (b build) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "version\t%s\n", b.Version)
	if b.Commit != "" {
		commit := b.Commit
		if b.Dirty {
			commit += ", with changes"
		}
		fmt.Fprintf(table, "commit\t%s\n", commit)
	}
	fmt.Fprintf(table, "go\t%s\n", b.Go)
	fmt.Fprintf(table, "kernel\t%s\n", b.Kernel)
	return table.Flush()
}
