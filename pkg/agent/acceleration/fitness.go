package acceleration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/sockmap"
)

func limitsOf(cfg *config.Config) sockmap.Limits {
	limits := sockmap.DefaultLimits()
	limits.Blocking, limits.Except = cfg.SockmapBlocking == "true", cfg.ExceptedPrograms()
	return limits
}

// fitness identifies what was tested: the kernel's release, and the programs for these limits.
func fitness(limits sockmap.Limits) (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("read the kernel's version: %w", err)
	}
	programs, err := sockmap.Fingerprint(limits)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s", unix.ByteSliceToString(name.Release[:]), programs), nil
}

// File is where "fairlead init" records the result of its test, because an agent may lack
// the privileges for the test's network namespace.
func File(cfg *config.Config) string { return filepath.Join(cfg.StateDir, "sockmap") }

const sockmapFit = "fit"

// TryKernel tests whether connections can bypass TCP on this kernel, if the options want that, and
// records and returns the result.
func TryKernel(cfg *config.Config) (found string, err error) {
	if cfg.Sockmap != "true" {
		if err := os.Remove(File(cfg)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		return "", nil
	}
	of, err := fitness(limitsOf(cfg))
	if err != nil {
		return "", err
	}
	differences, err := sockmap.Prove(limitsOf(cfg))
	found = strings.Join(append([]string{sockmapFit}, differences...), "\n")
	if err != nil {
		found = err.Error()
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(File(cfg), []byte(of+"\n"+found+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("record whether connections may bypass TCP: %w", err)
	}
	return strings.ReplaceAll(found, "\n", ", "), nil
}

// Unfit returns why connections must not bypass TCP, or "" if they may. It also returns the differences
// from TCP that "fairlead init" found on this kernel.
func Unfit(cfg *config.Config) (why string, differences []string) {
	of, err := fitness(limitsOf(cfg))
	if err != nil {
		return err.Error(), nil
	}
	noted, err := os.ReadFile(File(cfg))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err.Error(), nil
	}
	tried, found, _ := strings.Cut(strings.TrimSpace(string(noted)), "\n")
	rest, fit := strings.CutPrefix(found+"\n", sockmapFit+"\n")
	switch {
	case tried != of:
		return `this kernel has not been tested for these programs: run "fairlead init --sockmap=true" with the agent's options, and restart the agent`, nil
	case !fit:
		return "this kernel has not passed the test: " + found, nil
	}
	return "", strings.FieldsFunc(rest, func(c rune) bool { return c == '\n' })
}
