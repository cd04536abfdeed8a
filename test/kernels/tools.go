package main

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
)

// findTools returns the path of a static busybox once all required tools are there. If run as root,
// it installs the missing ones.
func findTools(ctx context.Context) (busybox string, err error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("find tools: the kernels are for amd64, so this machine must be amd64 too")
	}
	missing := missingPackages()
	if len(missing) > 0 {
		if err := install(ctx, missing); err != nil {
			return "", err
		}
	}
	if missing := missingPackages(); len(missing) > 0 {
		return "", fmt.Errorf("find tools: %s is installed, but its tools are still missing", strings.Join(missing, " "))
	}
	return exec.LookPath("busybox")
}

// missingPackages returns the packages of Debian and Ubuntu that provide the missing tools.
func missingPackages() []string {
	var missing []string
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		missing = append(missing, "qemu-system-x86")
	}
	if path, err := exec.LookPath("busybox"); err != nil || !isStatic(path) {
		missing = append(missing, "busybox-static")
	}
	return missing
}

// isStatic reports whether a program runs without this machine's libraries.
func isStatic(path string) bool {
	file, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	return !slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

func install(ctx context.Context, packages []string) error {
	list := strings.Join(packages, " ")
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("find tools: missing packages: %s (Debian's names); as root, run apt-get install %s", list, list)
	}
	fmt.Printf("installing %s\n", list)
	for _, args := range [][]string{
		{"update", "-qq"},
		append([]string{"install", "-qq", "-y", "--no-install-recommends"}, packages...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		// The output names the machine's mirror, so it is not shown; run apt-get by hand to see it.
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("install %s: apt-get %s: %w", list, args[0], err)
		}
	}
	return nil
}
