package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	stdmaps "maps"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/optout"
	"fairlead.io/fairlead/pkg/sockmap"
	objects "fairlead.io/fairlead/pkg/source"
)

// acceleration is what lets connections of pods go past TCP, while an agent runs that has the option.
type acceleration struct {
	*sockmap.Sockmap
	keeper *sockmap.Keeper
}

func limitsOf(cfg *config.Config) sockmap.Limits {
	limits := sockmap.DefaultLimits()
	limits.Blocking, limits.Except = cfg.SockmapBlocking == "true", cfg.ExceptedPrograms()
	return limits
}

// fitness is what is noted of a kernel, and of the programs that were tried on it; anything behind the first word says why not.
func fitness(limits sockmap.Limits) (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("ask for the kernel's version: %w", err)
	}
	programs, err := sockmap.Fingerprint(limits)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s", unix.ByteSliceToString(name.Release[:]), programs), nil
}

// sockmapFile is where "fairlead init" notes what came of it: an agent may not make the namespace that it takes to find out.
func sockmapFile(cfg *config.Config) string { return filepath.Join(cfg.StateDir, "sockmap") }

const sockmapFit = "fit"

// trySockmap finds out whether the kernel is fit to have connections go past TCP, if any are to, and notes that. It returns what it has found.
func trySockmap(cfg *config.Config, cgroup string) (found string, err error) {
	if cfg.Sockmap != "true" {
		if err := os.Remove(sockmapFile(cfg)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		return "", nil
	}
	of, err := fitness(limitsOf(cfg))
	if err != nil {
		return "", err
	}
	found = sockmapFit
	if err := sockmap.Prove(cgroup, limitsOf(cfg)); err != nil {
		found = err.Error()
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(sockmapFile(cfg), []byte(of+"\n"+found+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("note whether connections may go past TCP: %w", err)
	}
	return found, nil
}

// unfit returns why connections may not go past TCP; empty if they may.
func unfit(cfg *config.Config) string {
	of, err := fitness(limitsOf(cfg))
	if err != nil {
		return err.Error()
	}
	noted, err := os.ReadFile(sockmapFile(cfg))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err.Error()
	}
	tried, found, _ := strings.Cut(strings.TrimSpace(string(noted)), "\n")
	switch {
	case tried != of:
		return `nobody has tried whether this kernel is fit for these programs: run "fairlead init --sockmap=true" with the options of the agent, and restart it`
	case found != sockmapFit:
		return "this kernel is not fit: " + found
	}
	return ""
}

// startSockmap starts what lets connections of pods go past TCP. Without the option, or where the kernel is not fit, what an agent before has left goes
// once nothing waits there.
func (a *agent) startSockmap(start func(string, func(context.Context) error), report func(model.Key, string, model.Problem), log *slog.Logger) error {
	if a.cfg.Sockmap != "true" {
		return a.endSockmap(start, log)
	}
	if a.unfit = unfit(a.cfg); a.unfit != "" {
		return a.endSockmap(start, log)
	}
	selector, err := objects.ParseSelector(a.cfg.AccelerateSelector)
	if err != nil {
		return usageError{fmt.Errorf("option accelerate-selector: %w", err)}
	}
	s, err := sockmap.Open(sockmap.Config{BPFFS: a.cfg.BPFFS, Cgroup: a.path.CgroupRoot(), Limits: limitsOf(a.cfg), Log: log})
	if err != nil {
		return fmt.Errorf("let connections go past TCP: %w", err)
	}
	keeper := sockmap.NewKeeper(sockmap.KeeperConfig{
		Sockmap: s, Store: a.store, Selector: selector, Host: a.path.HostNetns(), Limited: a.limited, Namespaces: a.namespaces(log), Log: log,
		Complain: func(c sockmap.Complaint) {
			report(model.Key{Kind: model.KindAcceleration, Name: c.Policy.Name}, c.Policy.UID, c.Problem)
		},
	})
	if err := s.Switch(true); err != nil {
		return errors.Join(err, s.Close())
	}
	a.mu.Lock()
	a.acceleration = &acceleration{s, keeper}
	a.mu.Unlock()
	start("sockmap", func(ctx context.Context) error { return errors.Join(s.Run(ctx), s.Close()) })
	start("accelerate", keeper.Run)
	start("sockmap checks", func(ctx context.Context) error { return s.RunChecks(ctx, a.path.HostNetns()) })
	return nil
}

// endSockmap has what is left of an agent before go, in its own time.
func (a *agent) endSockmap(start func(string, func(context.Context) error), log *slog.Logger) error {
	left, err := sockmap.Retire(a.cfg.BPFFS, log)
	if err != nil || left == nil {
		return err
	}
	start("former sockmap", func(ctx context.Context) error { return errors.Join(left.Run(ctx), left.Close()) })
	return nil
}

// limited reports whether what a pod sends or gets is kept to a rate, its own or one that it shares.
func (a *agent) limited(pod *model.Pod) bool {
	if a.cfg.Bandwidth != "true" {
		return false
	}
	if pod.Egress != 0 || pod.Ingress != 0 || a.store.Self().Egress != 0 {
		return true
	}
	for _, namespace := range a.store.Namespaces() {
		if namespace.Name == pod.Namespace {
			return namespace.Egress != 0
		}
	}
	return false
}

// namespaces returns what finds the cookies of pods' network namespaces: the plugin has told those of the pods that it has set up, and those of others are
// in what the runtime's library notes.
func (a *agent) namespaces(log *slog.Logger) func() func(*model.Pod) ([]uint64, error) {
	noted := optout.NewCNI(a.cfg.CNICache, netnsDir, a.path.HostNetns(), log)
	return func() func(*model.Pod) ([]uint64, error) {
		own := map[cni.Pod]uint64{}
		a.mu.Lock()
		network := a.network
		a.mu.Unlock()
		if network != nil {
			own = network.Cookies()
		}
		noted.Refresh()
		return func(pod *model.Pod) ([]uint64, error) {
			for _, uid := range []string{pod.UID, pod.LocalUID, ""} {
				if cookie := own[cni.Pod{Namespace: pod.Namespace, Name: pod.Name.Name, UID: uid}]; cookie != 0 {
					return []uint64{cookie}, nil
				}
			}
			keys, err := noted.Find(pod)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", sockmap.ErrUnknown, err)
			}
			var cookies []uint64
			for _, key := range keys {
				cookies = append(cookies, key.Id)
			}
			return cookies, nil
		}
	}
}

func (a *agent) accelerating() *acceleration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.acceleration
}

// sockmapStatus returns how connections go past TCP; nil where all are to go by it.
func (a *agent) sockmapStatus() *observe.SockmapStatus {
	if a.cfg.Sockmap != "true" {
		return nil
	}
	if a.unfit != "" {
		return &observe.SockmapStatus{Error: a.unfit}
	}
	s := a.accelerating()
	if s == nil {
		return nil
	}
	status := &observe.SockmapStatus{}
	err := fillSockmapStatus(status, s)
	if err != nil {
		status.Error = err.Error()
	}
	return status
}

func fillSockmapStatus(status *observe.SockmapStatus, s *acceleration) error {
	kept, checked := s.keeper.Status(), s.Checked()
	status.Pods, status.Waiting, status.Uncovered = kept.Pods, kept.Waiting, stdmaps.Clone(kept.Uncovered)
	status.Error = strings.Join(slicesOf(kept.Error, checked.Fault), "; ")
	status.Checks = observe.SockmapChecks{Passed: checked.Passed, Failed: checked.Failed, LastTime: checked.Last, Unable: checked.Unable}
	view, err := s.State()
	if err != nil {
		return err
	}
	status.On, status.Held, status.Sockets = view.On, view.Held, view.Sockets
	t, err := s.Tallies()
	if err != nil {
		return err
	}
	status.Watched, status.Admitted, status.Left, status.Full, status.Excluded = t.Watched, t.Admitted, t.Left, t.Full, t.Excluded
	status.Redirected = observe.SockmapTally(t.Redirected)
	status.Passed = map[string]observe.SockmapTally{}
	for why, tally := range t.Passed {
		status.Passed[why] = observe.SockmapTally(tally)
	}
	return nil
}

// slicesOf returns the words that are not empty.
func slicesOf(words ...string) (list []string) {
	for _, word := range words {
		if word != "" {
			list = append(list, word)
		}
	}
	return list
}
