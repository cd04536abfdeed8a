package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	stdmaps "maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/agent/life"
	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/sockmap"
	objects "fairlead.io/fairlead/pkg/source"
)

// accelerator lets connections of pods bypass TCP, if the options say so. It is part of every
// agent, and in accelerate-only mode all there is of it.
type accelerator struct {
	cfg   *config.Config
	store *model.Store
	host  uint64 // the cookie of the host's network namespace
	// limited reports whether a pod has a rate limit; own returns the network namespace cookies of
	// the pods that the plugin has set up, and is nil without the plugin.
	limited func(*model.Pod) bool
	own     func() map[cni.Pod]uint64
	log     *slog.Logger
	pause   time.Duration // until it tries again after an error; zero: accelerateEvery

	mu      sync.Mutex
	unfit   string        // why nothing bypasses TCP although the option says so
	stale   string        // why connections may do so all the same, by what an earlier agent left
	running *acceleration // nil while everything uses TCP
}

// acceleration is what runs while connections may bypass TCP.
type acceleration struct {
	*sockmap.Sockmap
	rules       *sockmap.Keeper
	differences []string // from TCP, on this kernel
}

func (a *agent) newAccelerator(log *slog.Logger) *accelerator {
	return &accelerator{
		cfg: a.cfg, store: a.store, host: a.path.HostNetns(), limited: a.limited, own: a.cookies, log: log,
	}
}

// cookies returns the network namespace cookies of the pods that the plugin has set up.
func (a *agent) cookies() map[cni.Pod]uint64 {
	a.mu.Lock()
	network := a.network
	a.mu.Unlock()
	if network == nil {
		return nil
	}
	return network.Cookies()
}

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

// sockmapFile is where "fairlead init" records the result of its test, because an agent may lack
// the privileges for the test's network namespace.
func sockmapFile(cfg *config.Config) string { return filepath.Join(cfg.StateDir, "sockmap") }

const sockmapFit = "fit"

// trySockmap tests whether connections can bypass TCP on this kernel, if the options want that, and
// records and returns the result.
func trySockmap(cfg *config.Config) (found string, err error) {
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
	differences, err := sockmap.Prove(limitsOf(cfg))
	found = strings.Join(append([]string{sockmapFit}, differences...), "\n")
	if err != nil {
		found = err.Error()
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(sockmapFile(cfg), []byte(of+"\n"+found+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("record whether connections may bypass TCP: %w", err)
	}
	return strings.ReplaceAll(found, "\n", ", "), nil
}

// unfit returns why connections must not bypass TCP, or "" if they may. It also returns the differences
// from TCP that "fairlead init" found on this kernel.
func unfit(cfg *config.Config) (why string, differences []string) {
	of, err := fitness(limitsOf(cfg))
	if err != nil {
		return err.Error(), nil
	}
	noted, err := os.ReadFile(sockmapFile(cfg))
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

// accelerateEvery is how soon to try again after an error.
const accelerateEvery = time.Minute

// start starts letting connections of pods bypass TCP. If the option is off or the kernel is unfit,
// it retires what an earlier agent left. No error but a wrong option ends the agent, which serves
// Services too: it is reported, everything uses TCP, and the agent tries again.
func (a *accelerator) start(start func(string, func(context.Context) error), report func(model.Key, string, model.Problem)) error {
	if a.cfg.Sockmap != "true" {
		start("former sockmap", func(ctx context.Context) error { a.retire(ctx); return nil })
		return nil
	}
	why, differences := unfit(a.cfg)
	if why != "" {
		a.set(nil, why)
		start("former sockmap", func(ctx context.Context) error { a.retire(ctx); return nil })
		return nil
	}
	selector, err := objects.ParseSelector(a.cfg.AccelerateSelector)
	if err != nil {
		return config.UsageError{Err: fmt.Errorf("option accelerate-selector: %w", err)}
	}
	start("sockmap", func(ctx context.Context) error {
		for ctx.Err() == nil {
			err := a.accelerate(ctx, selector, differences, report)
			if ctx.Err() != nil {
				return nil
			}
			pause := cmp.Or(a.pause, accelerateEvery)
			a.log.Error("connections cannot bypass TCP, trying again", "in", pause, "error", err)
			a.set(nil, err.Error())
			limited, cancel := context.WithTimeout(ctx, pause)
			a.retire(limited)
			<-limited.Done()
			cancel()
		}
		return nil
	})
	return nil
}

// accelerate lets connections of pods bypass TCP until the context ends or something fails.
func (a *accelerator) accelerate(
	ctx context.Context, selector model.Selector, differences []string, report func(model.Key, string, model.Problem),
) (err error) {
	s, err := sockmap.Open(sockmap.Config{BPFFS: a.cfg.BPFFS, Limits: limitsOf(a.cfg), Log: a.log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	rules := sockmap.NewKeeper(sockmap.KeeperConfig{
		Sockmap: s, Store: a.store, Selector: selector, Host: a.host, Limited: a.limited, Namespaces: a.namespaces(), Log: a.log,
		Complain: func(c sockmap.Complaint) {
			report(model.Key{Kind: model.KindAcceleration, Name: c.Policy.Name}, c.Policy.UID, c.Problem)
		},
	})
	if err := s.Switch(true); err != nil {
		return err
	}
	for _, found := range s.Differences {
		if !slices.Contains(differences, found) {
			differences = append(slices.Clip(differences), found)
		}
	}
	a.set(&acceleration{s, rules, differences}, "")
	running := life.NewTasks(ctx)
	defer running.End()
	running.Start("sockmap", s.Run)
	running.Start("accelerate", rules.Run)
	running.Start("sockmap checks", func(ctx context.Context) error { return s.RunChecks(ctx, a.host) })
	return running.Wait()
}

// retire returns to TCP what an earlier agent let bypass it, once no data waits there. It tries again
// after errors, until the context ends.
func (a *accelerator) retire(ctx context.Context) {
	for {
		left, err := sockmap.Retire(a.cfg.BPFFS, a.log)
		a.leave(err)
		limited, cancel := ctx, func() {}
		if err != nil {
			a.log.Error("cannot return all connections to TCP, trying again", "error", err)
			limited, cancel = context.WithTimeout(ctx, cmp.Or(a.pause, accelerateEvery))
		}
		if left != nil {
			if err := errors.Join(left.Run(limited), left.Close()); err != nil {
				a.log.Error("cannot return connections to TCP", "error", err)
			}
		}
		if err == nil || ctx.Err() != nil {
			cancel()
			return
		}
		<-limited.Done()
		cancel()
	}
}

// leave notes why connections may still bypass TCP although they should not.
func (a *accelerator) leave(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stale = ""; err != nil {
		a.stale = "cannot return all connections to TCP: " + err.Error()
	}
}

func (a *accelerator) set(running *acceleration, unfit string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running, a.unfit, a.stale = running, unfit, ""
}

// limited reports whether a rate limits what a pod sends or receives, its own or a shared one.
func (a *agent) limited(pod *model.Pod) bool {
	if a.cfg.Bandwidth != "true" {
		return a.cfg.PodNetwork != "main" && rated(pod)
	}
	if rated(pod) || a.store.Self().Egress != 0 {
		return true
	}
	for _, namespace := range a.store.Namespaces() {
		if namespace.Name == pod.Namespace {
			return namespace.Egress != 0
		}
	}
	return false
}

// rated reports whether a pod has a rate of its own, enforced by fairlead or by another pod
// network.
func rated(pod *model.Pod) bool { return pod.Egress != 0 || pod.Ingress != 0 }

// namespaces returns a function that finds the cookies of pods' network namespaces. The plugin
// knows those of the pods that it set up; the others are found in the records of the runtime's CNI
// library.
func (a *accelerator) namespaces() func() func(*model.Pod) ([]uint64, error) {
	noted := newCNI(a.cfg, a.host, a.log)
	return func() func(*model.Pod) ([]uint64, error) {
		var own map[cni.Pod]uint64
		if a.own != nil {
			own = a.own()
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

// state returns what is running, or nil, and why nothing runs although it should.
func (a *accelerator) state() (*acceleration, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running, a.unfit
}

// status returns the state of connections that bypass TCP. It is nil if the option is off, and
// before anything runs.
func (a *accelerator) status() *observe.SockmapStatus {
	if a == nil || a.cfg.Sockmap != "true" {
		return nil
	}
	s, unfit := a.state()
	if unfit != "" {
		a.mu.Lock()
		defer a.mu.Unlock()
		return &observe.SockmapStatus{Error: unfit, Stale: a.stale}
	}
	if s == nil {
		return nil
	}
	status := &observe.SockmapStatus{}
	if err := fillSockmapStatus(status, s); err != nil {
		status.Unread = err.Error()
	}
	return status
}

// problems lists the problems of policies for this node's pods, sorted by name.
func (a *accelerator) problems() (list []observe.Problem) {
	if a == nil {
		return nil
	}
	s, _ := a.state()
	if s == nil {
		return nil
	}
	for _, c := range s.rules.Status().Complaints {
		key := model.Key{Kind: model.KindAcceleration, Name: c.Policy.Name}
		list = append(list, observe.Problem{Object: key.String(), Reason: c.Reason, Message: c.Message})
	}
	slices.SortFunc(list, func(a, b observe.Problem) int { return strings.Compare(a.Object, b.Object) })
	return list
}

func fillSockmapStatus(status *observe.SockmapStatus, s *acceleration) error {
	kept, checked := s.rules.Status(), s.Checked()
	status.Pods, status.Waiting, status.Rated = kept.Pods, kept.Waiting, kept.Rated
	status.NotCovered, status.Uncovered = kept.NotCovered, stdmaps.Clone(kept.Uncovered)
	status.Differences = s.differences
	status.Error, status.Stale = checked.Fault, kept.Error
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
