package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Config is what a Reconciler needs.
type Config struct {
	Store  *model.Store
	Tables *Tables
	Facts  lb.Facts // without Node, which comes from the Store

	NamespaceQuota lb.Quota // bounds what the Services of one namespace take

	// Barrier returns once every BPF program that was running when it was called has ended.
	Barrier func() error
	// Grow replaces the maps with ones of at least the given sizes and the same content, and
	// returns them.
	Grow func(maps.Sizes) (*Tables, error)
	// Prepare attaches the programs needed by frontends that are about to be written. It may be
	// nil.
	Prepare func([]maps.SvcKey, []maps.Svc) error
	// RangeEpochs is told when the clients allowed at load balancer addresses change. It is nil if the
	// programs check every packet.
	RangeEpochs RangeEpochs
	// Report is called with each new problem of an object. It must not block.
	Report func(key model.Key, uid string, problem model.Problem)
	// Checked is called when the health checks of a Service change. It must not block and must not
	// keep the list. It is nil if nothing serves health checks.
	Checked func(key model.Key, uid string, checks []lb.HealthCheck)
	// Left is called after a pass in which backends or frontends of a protocol left, and once when
	// the sources are complete. The answers of Stale may be different from then on. It must not
	// block, and may be nil.
	Left  func(model.Protocol)
	Meter Meter // may be nil
	Log   *slog.Logger
}

// Reconciler keeps the maps in step with a Store. It belongs to one goroutine: Run, or the caller
// of Pass and Drain. Only methods that say so may be called from others; Stats and Problems are
// among them.
type Reconciler struct {
	*frontendRows
	objects objects
	backlog backlog

	adoption adoption
	held     []model.Key             // waiting for the sources to sync
	idle     map[model.Key]time.Time // Services without endpoints, and since when, until reported
	backoff  time.Duration
	triggers []model.Trigger // of changes that are not in the maps yet

	verifier *verifier
	stale    *staleness
	arrivals chan *arrival
	awaited  []*arrival    // not in the maps yet
	ended    chan struct{} // closed when Run has ended

	problems problems
	mu       sync.Mutex // guards shown
	shown    Stats
}

// Stats are counters that show how a Reconciler is doing.
type Stats struct {
	Passes       uint64
	Compiled     uint64
	Writes       uint64 // rows stored in any map
	Errors       uint64
	Growths      uint64
	Barriers     uint64
	Services     int
	Frontends    int
	Slots        int // including what rounding table lengths up added
	Backends     int
	Quotas       [lb.QuotaFields]QuotaUse // of namespaces
	Pending      int                      // keys and rows waiting for a retry, a grace period or the sync
	Synced       bool
	LastError    string
	LastPass     time.Time // the last pass that compiled something
	LastDuration time.Duration
	LastApplied  time.Time // when a pass last left nothing to do
	LastProgress time.Time // the end of the last pass after which nothing waits for a retry
	GraceSince   time.Time // start of the current grace period; zero if there is none

	Checks            uint64 // repairing checks of the maps against the objects
	Damage            uint64 // differences found by them
	Repaired          uint64 // and those that were repaired
	LastCheck         time.Time
	LastCheckDuration time.Duration
}

const (
	// ColdWait is how long a Reconciler waits for every source before it starts with what it has:
	// an object that cannot be read must not keep the others from being served.
	ColdWait   = 5 * time.Second
	minBackoff = 50 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// New returns a Reconciler for the tables after adopting what it finds there.
func New(cfg Config) (*Reconciler, error) {
	cfg.Facts.IsNode, cfg.Facts.Node = cfg.Store.IsNode, cfg.Store.Self()
	cfg.Facts.Claims, cfg.Facts.Local, cfg.Facts.MayUncheck = cfg.Store, cfg.Store.Local, cfg.Store.MayUncheck
	r := &Reconciler{
		frontendRows: &frontendRows{
			rows:      newRows(&cfg),
			frontends: newFrontends(cfg.Store.MarkDirty),
			grace:     grace{done: make(chan error, 1)},
		},
		objects: objects{
			store:    cfg.Store,
			compiler: lb.NewCompiler(cfg.Facts),
			quotas:   quotas{limit: cfg.NamespaceQuota, namespaces: map[string]*share{}},
			known:    map[model.Key]*object{},
			failed:   map[model.Key]struct{}{},
		},
		backlog:  backlog{late: map[model.Key]time.Time{}},
		idle:     map[model.Key]time.Time{},
		arrivals: make(chan *arrival),
		ended:    make(chan struct{}),
		problems: problems{cfg: &cfg, byObject: map[model.Key]noted{}, byReason: map[string]int{}},
	}
	r.adoption = adoption{frontendRows: r.frontendRows, log: cfg.Log, found: map[string]*service{}}
	r.verifier = newVerifier(r.frontendRows, &r.objects, cfg.Log, r.ended)
	r.stopWalk = r.verifier.stopWalk
	r.stale = &staleness{frontendRows: r.frontendRows, objects: &r.objects, questions: make(chan question), ended: r.ended}
	r.rangeEpochs.begin() // an earlier agent may have died in the middle of a change
	// A slot that was never written is all zero, so service 0 must not exist.
	if err := r.services.Reserve(0); err != nil {
		return nil, fmt.Errorf("reserve service 0: %w", err)
	}
	if err := r.adoption.adopt(); err != nil {
		return nil, err
	}
	r.publish()
	return r, nil
}

// Run reconciles until the context ends.
func (r *Reconciler) Run(ctx context.Context) error {
	defer func() {
		close(r.ended)
		r.verifier.end()
	}()
	wait := time.NewTimer(ColdWait)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-r.cfg.Store.Synced():
	case <-wait.C:
		r.cfg.Log.Warn("the sources have not delivered everything yet: serving what is known, deleting nothing", "missing", r.cfg.Store.Unsynced())
	}
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		synced := r.cfg.Store.Synced()
		if r.synced {
			synced = nil
		}
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-synced:
		case <-r.cfg.Store.Wake():
		case waited := <-r.grace.done:
			err = r.release(waited)
		case <-retry.C:
			r.retry()
		case q := <-r.verifier.waiting():
			r.sync()
			r.verifier.begin(q)
		case <-r.verifier.timer.C:
			r.markIdle(time.Now())
			r.sync()
			r.verifier.onTimer()
		case rows := <-r.verifier.turns():
			r.verifier.turn(rows)
		case rows := <-r.verifier.rangeTurns():
			r.verifier.rangeTurn(rows)
		case q := <-r.stale.questions:
			q.answer <- r.stale.areStale(q.origins)
		case a := <-r.arrivals:
			r.awaited = append(r.awaited, a)
		}
		if err = cmp.Or(r.Pass(), err); err != nil {
			r.backoff = min(max(2*r.backoff, minBackoff), maxBackoff)
			retry.Reset(r.backoff)
			r.cfg.Log.Error("cannot reconcile the maps: trying again", "error", err, "in", r.backoff)
		} else {
			r.backoff = 0
		}
		r.finishCheck()
		r.announce()
	}
}

// finishCheck ends the running check if nothing is left to do.
func (r *Reconciler) finishCheck() {
	if r.verifier.finish() {
		r.show()
	}
}

// Pass brings the maps up to date with the dirty keys, or as many as one pass may take. Keys that
// fail are kept for the next retry and do not stop the others.
func (r *Reconciler) Pass() error {
	start, before := time.Now(), r.stats.Compiled
	var first error
	fail := func(err error) {
		r.stats.Errors++
		r.stats.LastError = err.Error()
		first = cmp.Or(first, err)
	}
	r.objects.compiler.SetNode(r.cfg.Store.Self())
	r.sync()
	r.applyDirty(start, fail)
	if r.synced {
		r.adoption.sweep()
	}
	if err := r.writeRows(); err != nil {
		fail(err)
	}
	if err := r.writeReserved(); err != nil {
		fail(err)
	}
	if err := r.teardown(); err != nil {
		fail(err)
	}
	if err := r.rangeEpochs.end(); err != nil {
		fail(err)
	}
	r.startGrace()
	if r.stats.Compiled > before {
		r.stats.LastPass, r.stats.LastDuration = start, time.Since(start)
		r.measure(start)
	}
	r.reportApplied(first)
	r.reportLeft()
	r.publish()
	return first
}

// Drain repeats Pass until nothing is left to do, waiting for grace periods. It is for callers
// that do not use Run.
func (r *Reconciler) Drain() error {
	for {
		r.retry()
		if err := r.Pass(); err != nil {
			return err
		}
		if len(r.backlog.late) > 0 {
			continue
		}
		if !r.grace.running {
			return nil
		}
		if err := r.release(<-r.grace.done); err != nil {
			return err
		}
	}
}

// sync checks whether the sources are complete. Once they are, keys that were held back become due
// and unclaimed rows may be deleted.
func (r *Reconciler) sync() {
	if r.synced {
		return
	}
	select {
	case <-r.cfg.Store.Synced():
		r.synced = true
		r.left[model.UDP], r.left[model.TCP] = true, true
		r.cfg.Store.MarkDirty(r.held...)
		r.held = nil
	default:
	}
}

// retry makes failed keys due again.
func (r *Reconciler) retry() {
	for key := range r.objects.failed {
		r.cfg.Store.MarkDirty(key)
	}
}

// Stats returns the counters as of the last pass. It is safe for concurrent use.
func (r *Reconciler) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shown
}

func (r *Reconciler) publish() {
	r.stats.Passes++
	r.stats.Services = int(r.services.Used()) - 1
	r.stats.Frontends = r.frontends.present - r.frontends.hosted
	r.stats.Slots = int(r.extents.Used())
	r.stats.Backends = int(r.backends.Used())
	r.stats.Quotas = r.objects.quotas.uses()
	r.stats.Pending = len(r.backlog.late) + len(r.objects.failed) + len(r.held) + len(r.frontends.touched) + len(r.frontends.unsure) + len(r.retired)
	r.stats.Synced = r.synced
	if len(r.objects.failed) == 0 && len(r.frontends.touched) == 0 && !r.rangeEpochs.begun {
		r.stats.LastError = ""
	}
	r.show()
}

// show makes the counters visible to Stats.
func (r *Reconciler) show() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shown = *r.stats
}
