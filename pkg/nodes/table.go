package nodes

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

const (
	// retry is the pause after an error.
	retry = 5 * time.Second
	// checkEvery is the interval between looks for rows that somebody else has changed.
	checkEvery = time.Minute
	// pause is the time between two changes: a Node that changes all the time must not keep the
	// agent busy with all of them.
	pause = 200 * time.Millisecond
)

// Programs is the part of the datapath that has the rows.
type Programs interface {
	Cluster() (maps.Cluster, error)
	SetCluster(maps.Cluster) error
}

// Table keeps the rows about the cluster's nodes.
type Table struct {
	programs Programs
	store    *model.Store
	own      func() ([]netip.Prefix, error)
	log      *slog.Logger

	mu       sync.Mutex
	accepted Claims
	refused  []string
	written  *maps.Cluster // what the programs have, unless somebody else changed it; nil if unknown
}

// New returns a Table that does nothing until Run. own returns the networks of this node's pods;
// without them, its Node object tells.
func New(programs Programs, store *model.Store, own func() ([]netip.Prefix, error), log *slog.Logger) *Table {
	return &Table{programs: programs, store: store, own: own, log: log}
}

// Run keeps the rows right until the context ends, and then leaves them in place. Until all Nodes
// are known, what an earlier agent wrote stays.
func (t *Table) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-t.store.Synced():
	}
	look := time.NewTicker(checkEvery)
	defer look.Stop()
	for {
		again := time.After(pause)
		if err := t.Write(); err != nil {
			t.log.Warn("cannot tell the programs who is a node of the cluster, trying again", "error", err)
			again = time.After(retry)
		} else {
			select {
			case <-ctx.Done():
				return nil
			case <-look.C:
				t.forget()
				continue
			case <-t.store.ClusterChanged():
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again: // at once, unless the last change was just now
		}
	}
}

// forget has the next write read what the programs have.
func (t *Table) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written = nil
}

// WriteClaims writes the rows with the claims to pods' networks that are accepted for routes, before
// anything is sent by these.
func (t *Table) WriteClaims(claims Claims) error {
	t.mu.Lock()
	t.accepted = claims
	t.mu.Unlock()
	return t.Write()
}

// Refused returns the claims of nodes that are not believed, and why.
func (t *Table) Refused() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refused
}

// Verify returns what the programs have and what they should have, and corrects the difference if
// asked.
func (t *Table) Verify(repair bool) (have, want maps.Cluster, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if have, err = t.programs.Cluster(); err != nil {
		return have, want, err
	}
	want = t.compile(have)
	if repair {
		err = t.set(want)
	}
	return have, want, err
}

func (t *Table) compile(have maps.Cluster) maps.Cluster {
	own, err := t.own()
	if err != nil {
		own = t.store.Self().PodCIDRs
	}
	was := t.refused
	want, refused := compile(input{self: t.store.Self(), nodes: t.store.Others(), own: own, accepted: t.accepted, have: have})
	t.refused = refused
	for _, why := range refused {
		if _, known := slices.BinarySearch(was, why); !known {
			t.log.Warn("ignoring what a node says about itself", "claim", why)
		}
	}
	return want
}

// Write brings the rows up to date. It reads them only if it does not know them, and leaves them
// alone if they are right: both take a lock that other work of the agent
// waits for, such as setting up pods.
func (t *Table) Write() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.written == nil {
		have, err := t.programs.Cluster()
		if err != nil {
			return err
		}
		t.written = &have
	}
	want := t.compile(*t.written)
	if want.Equal(*t.written) {
		return nil
	}
	return t.set(want)
}

func (t *Table) set(want maps.Cluster) error {
	t.written = nil // until it is known to be right
	if err := t.programs.SetCluster(want); err != nil {
		return err
	}
	t.written = &want
	return nil
}
