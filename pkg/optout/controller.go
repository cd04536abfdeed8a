// Package optout makes the programs leave alone the sockets of pods that must not be balanced at
// the socket: because an annotation of the pod or its namespace says so, because their traffic
// never passes a socket of this kernel, or because a sidecar redirects it and needs to see the
// address of the Service. It decides which pods these are, finds the keys by which programs
// recognize their processes, and keeps the programs' map up to date.
//
// A pod that should be left alone but cannot be recognized shows in Status, with the reason.
package optout

import (
	"context"
	"fmt"
	"log/slog"
	stdmaps "maps"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

const (
	checkEvery = time.Minute // between comparisons with the map
	retryAfter = time.Second // after an error
	maxScans   = 4           // until no new directory appears
)

// Table is the map that the programs read.
type Table interface {
	// SetOptouts makes the map equal to want and returns how many rows it changed. It deletes rows
	// that are not in want only if remove is set.
	SetOptouts(want map[maps.OptoutKey]maps.Optout, remove bool) (changed int, err error)
	// Optouts returns the rows of the map.
	Optouts() (map[maps.OptoutKey]maps.Optout, error)
}

// Config configures a Controller.
type Config struct {
	Store      *model.Store
	Rules      Rules
	Identities []Identity // tried in order
	Table      Table
	Log        *slog.Logger
}

// Controller keeps the map of pods that have opted out. Status and Verify are safe to call while Run is
// running.
type Controller struct {
	cfg      Config
	watch    *watch
	warned   map[string]struct{} // problems of pods and namespaces at the last pass
	warning  map[string]struct{} // those at the current pass
	checking chan checkRequest
	ended    chan struct{}

	mu     sync.Mutex
	want   map[maps.OptoutKey]maps.Optout
	synced bool
	status Status

	damage, mended uint64
}

// New returns a Controller.
func New(cfg Config) *Controller {
	return &Controller{cfg: cfg, checking: make(chan checkRequest), ended: make(chan struct{})}
}

// Run keeps the map up to date until the context ends, then returns nil. It waits for changes of
// pods, namespaces and the directories of the Identities, and compares the map with what should be
// in it once a minute.
func (k *Controller) Run(ctx context.Context) error {
	watch := newWatch(k.cfg.Log)
	defer watch.close()
	return k.run(ctx, watch)
}

func (k *Controller) run(ctx context.Context, watch *watch) error {
	defer close(k.ended)
	k.watch = watch
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	synced := k.cfg.Store.Synced()
	for {
		var retry <-chan time.Time
		if err := k.pass(); err != nil {
			k.cfg.Log.Error("cannot update which pods have opted out: trying again", "error", err)
			retry = time.After(retryAfter)
		}
		events, errs := k.watch.events()
		select {
		case <-ctx.Done():
			return nil
		case <-synced:
			synced = nil
		case <-k.cfg.Store.PodsChanged():
		case <-events:
		case <-errs: // events were lost
		case <-retry:
		case <-check.C:
			k.check()
		case request := <-k.checking:
			report, err := k.compare(request.repair)
			request.answer <- checked{report, err}
		}
	}
}

// pass makes the map hold what the latest objects require.
func (k *Controller) pass() error {
	synced := isClosed(k.cfg.Store.Synced())
	k.warned, k.warning = k.warning, map[string]struct{}{}
	pods := k.chosen()
	var want map[maps.OptoutKey]maps.Optout
	var status Status
	k.watch.drain()
	for range maxScans {
		want, status = k.scan(pods)
		if !k.watch.set(k.dirs(pods)) {
			break
		} // otherwise events in new directories before this were missed, so look again
	}
	k.mu.Lock()
	same := k.want != nil && synced == k.synced && stdmaps.Equal(k.want, want)
	k.mu.Unlock()
	var changed int
	if !same {
		var err error
		if changed, err = k.cfg.Table.SetOptouts(want, synced); err != nil {
			return err
		}
	}
	k.mu.Lock()
	k.want, k.synced, k.status = want, synced, status
	k.mu.Unlock()
	if changed > 0 {
		k.cfg.Log.Info("changed which pods have opted out of socket balancing", "pods", status.Pods, "rows", len(want), "changed", changed)
	}
	return nil
}

// chosen is a pod that has opted out.
type chosen struct {
	*model.Pod
	reason
	ambiguous bool // another pod claims the same local UID
}

// chosen returns the pods that have opted out, sorted by name.
func (k *Controller) chosen() []chosen {
	said := map[string]model.SocketLB{}
	for _, namespace := range k.cfg.Store.Namespaces() {
		said[namespace.Name] = namespace.SocketLB
		k.warn("namespace:"+namespace.Name, "namespace:"+namespace.Name, namespace.Problems)
	}
	var list []chosen
	known := map[string]int{}
	for _, pod := range k.cfg.Store.Pods() {
		known[pod.LocalUID]++
		if reason, out := k.cfg.Rules.decide(pod, said[pod.Namespace]); out && !pod.Finished {
			list = append(list, chosen{Pod: pod, reason: reason})
		}
	}
	for i := range list {
		list[i].ambiguous = list[i].LocalUID != "" && known[list[i].LocalUID] > 1
	}
	return list
}

// scan finds the keys of the pods.
func (k *Controller) scan(pods []chosen) (map[maps.OptoutKey]maps.Optout, Status) {
	want := map[maps.OptoutKey]maps.Optout{}
	status := Status{}
	if len(pods) == 0 {
		return want, status
	}
	for _, identity := range k.cfg.Identities {
		identity.Refresh()
	}
	for _, pod := range pods {
		keys, err := k.find(pod)
		switch {
		case err == nil:
			status.Pods++
		case len(pod.Addrs) == 0:
			status.Waiting++ // no sandbox yet
		default:
			status.uncovered(pod.Name, pod.text, err)
			k.warn(pod.UID, pod.Name.String(), []model.Problem{{Message: "a pod that has opted out of socket balancing is " + err.Error()}})
		}
		addrs := pod.Addrs
		if pod.HostNetwork {
			addrs = nil // the node's addresses: other pods would seem to match the row
		}
		for _, key := range keys {
			want[key] = maps.MakeOptout(pod.Name.String(), addrs, pod.why)
		}
	}
	return want, status
}

func (k *Controller) find(pod chosen) ([]maps.OptoutKey, error) {
	if pod.ambiguous {
		return nil, fmt.Errorf("%w: another pod of this node claims to be known by its UID %.64q", ErrUnknown, pod.LocalUID)
	}
	return identities(k.cfg.Identities).find(pod.Pod)
}

// dirs returns the directories to watch for the pods.
func (k *Controller) dirs(pods []chosen) []string {
	var dirs []string
	for _, identity := range k.cfg.Identities {
		if len(pods) > 0 {
			dirs = append(dirs, identity.Dirs()...)
		}
	}
	return dirs
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
