// Package acceleration lets connections of pods bypass TCP, if the options and the kernel allow it.
package acceleration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/agent/life"
	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/optout"
	"fairlead.io/fairlead/pkg/sockmap"
	objects "fairlead.io/fairlead/pkg/source"
)

// Config is what an Accelerator needs.
type Config struct {
	Options *config.Config
	Store   *model.Store
	Host    uint64 // the cookie of the host's network namespace
	// Limited reports whether a pod has a rate limit; Own returns the network namespace cookies of
	// the pods that the plugin has set up, and is nil without the plugin.
	Limited func(*model.Pod) bool
	// Judged reports whether policies are about a pod, and whether that is known. Nil without policies.
	Judged func(model.Name) (judged, known bool)
	Own    func() map[cni.Pod]uint64
	// Records finds pods' network namespaces in the records of the runtime's CNI library.
	Records func() *optout.CNI
	// Report reports problems of policies.
	Report func(model.Key, string, model.Problem)
	Log    *slog.Logger
}

// Accelerator lets connections of pods bypass TCP, if the options say so. It is part of every
// agent, and in accelerate-only mode all there is of it.
type Accelerator struct {
	Config
	pause       time.Duration // until it tries again after an error
	wanted      bool          // the options say so, and the kernel is fit
	selector    model.Selector
	differences []string // from TCP, as "fairlead init" found them on this kernel

	mu      sync.Mutex
	unfit   string        // why nothing bypasses TCP although the option says so
	stale   string        // why connections may do so all the same, by what an earlier agent left
	running *acceleration // nil while everything uses TCP, or as long as an earlier agent's rules hold
	retired bool          // everything uses TCP
	settled chan struct{} // closed once one of the two holds
}

// New returns an accelerator that does nothing until it runs.
func New(cfg *Config) (*Accelerator, error) {
	a := &Accelerator{Config: *cfg, pause: accelerateEvery, settled: make(chan struct{})}
	if cfg.Options.Sockmap != "true" {
		return a, nil
	}
	if a.unfit, a.differences = Unfit(cfg.Options); a.unfit != "" {
		return a, nil
	}
	var err error
	if a.selector, err = objects.ParseSelector(cfg.Options.AccelerateSelector); err != nil {
		return nil, config.UsageError{Err: fmt.Errorf("option accelerate-selector: %w", err)}
	}
	a.wanted = true
	return a, nil
}

// acceleration is what runs while connections may bypass TCP.
type acceleration struct {
	*sockmap.Sockmap
	rules       *sockmap.RuleController
	differences []string // from TCP, on this kernel
}

// accelerateEvery is how soon to try again after an error.
const accelerateEvery = time.Minute

// Run lets connections of pods bypass TCP until the context ends. If the option is off or the kernel is unfit,
// it retires what an earlier agent left. No error ends the agent, which serves Services too: it is reported,
// everything uses TCP, and the agent tries again.
func (a *Accelerator) Run(ctx context.Context) error {
	if !a.wanted {
		a.retire(ctx)
		return nil
	}
	for ctx.Err() == nil {
		err := a.accelerate(ctx)
		if ctx.Err() != nil {
			return nil
		}
		a.Log.Error("connections cannot bypass TCP, trying again", "in", a.pause, "error", err)
		a.set(nil, err.Error())
		limited, cancel := context.WithTimeout(ctx, a.pause)
		a.retire(limited)
		<-limited.Done()
		cancel()
	}
	return nil
}

// accelerate lets connections of pods bypass TCP until the context ends or something fails.
func (a *Accelerator) accelerate(ctx context.Context) (err error) {
	s, err := sockmap.Open(sockmap.Config{BPFFS: a.Options.BPFFS, Limits: limitsOf(a.Options), Log: a.Log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	rules := sockmap.NewRuleController(sockmap.RuleConfig{
		Sockmap: s, Store: a.Store, Selector: a.selector, Host: a.Host, Limited: a.Limited, Judged: a.Judged, Namespaces: a.namespaces(), Log: a.Log,
		Complain: func(c sockmap.Complaint) {
			a.Report(model.Key{Kind: model.KindAcceleration, Name: c.Policy.Name}, c.Policy.UID, c.Problem)
		},
	})
	if err := s.Switch(true); err != nil {
		return err
	}
	differences := a.differences
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
	running.Start("sockmap checks", func(ctx context.Context) error { return s.RunChecks(ctx, a.Host) })
	return running.Wait()
}

// retire returns to TCP what an earlier agent let bypass it, once no data waits there. It tries again
// after errors, until the context ends.
func (a *Accelerator) retire(ctx context.Context) {
	for {
		left, err := sockmap.Retire(a.Options.BPFFS, a.Log)
		a.leave(err)
		limited, cancel := ctx, func() {}
		if err != nil {
			a.Log.Error("cannot return all connections to TCP, trying again", "error", err)
			limited, cancel = context.WithTimeout(ctx, a.pause)
		}
		if left != nil {
			if err := errors.Join(left.Run(limited), left.Close()); err != nil {
				a.Log.Error("cannot return connections to TCP", "error", err)
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
func (a *Accelerator) leave(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stale = ""; err != nil {
		a.stale = "cannot return all connections to TCP: " + err.Error()
	}
	if a.retired = err == nil; a.retired {
		a.settle()
	}
}

func (a *Accelerator) set(running *acceleration, unfit string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running, a.unfit, a.stale, a.retired = running, unfit, "", false
	if running != nil {
		a.settle()
	}
}

// settle notes that it is known who may bypass TCP.
func (a *Accelerator) settle() {
	select {
	case <-a.settled:
	default:
		close(a.settled)
	}
}

// Rated reports whether a pod has a rate of its own, enforced by fairlead or by another pod
// network.
func Rated(pod *model.Pod) bool { return pod.Egress != 0 || pod.Ingress != 0 }

// namespaces returns a function that finds the cookies of pods' network namespaces. The plugin
// knows those of the pods that it set up; the others are found in the records of the runtime's CNI
// library.
func (a *Accelerator) namespaces() func() func(*model.Pod) ([]uint64, error) {
	noted := a.Records()
	return func() func(*model.Pod) ([]uint64, error) {
		var own map[cni.Pod]uint64
		if a.Own != nil {
			own = a.Own()
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
func (a *Accelerator) state() (*acceleration, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running, a.unfit
}
