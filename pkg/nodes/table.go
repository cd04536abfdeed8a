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
	// lookEvery is the interval between looks for rows that somebody else has changed.
	lookEvery = time.Minute
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

	mu      sync.Mutex
	settled Claims
	refused []string
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
	for {
		again := time.After(lookEvery)
		if err := t.write(); err != nil {
			t.log.Warn("cannot tell the programs who is a node of the cluster, trying again", "error", err)
			again = time.After(retry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again:
		case <-t.store.ClusterChanged():
		}
	}
}

// Settle writes the rows with the claims to pods' networks that are accepted for routes, before
// anything is sent by these.
func (t *Table) Settle(claims Claims) error {
	t.mu.Lock()
	t.settled = claims
	t.mu.Unlock()
	return t.write()
}

// Refused returns the claims of nodes that are not believed, and why.
func (t *Table) Refused() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refused
}

// Verify returns how many rows differ from the Nodes, and corrects them if asked.
func (t *Table) Verify(repair bool) (have, want maps.Cluster, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	have, want, err = t.compile()
	if err == nil && repair {
		err = t.programs.SetCluster(want)
	}
	return have, want, err
}

func (t *Table) compile() (have, want maps.Cluster, err error) {
	if have, err = t.programs.Cluster(); err != nil {
		return have, want, err
	}
	own, err := t.own()
	if err != nil {
		own = t.store.Self().PodCIDRs
	}
	was := t.refused
	want, t.refused = compile(input{self: t.store.Self(), nodes: t.store.Others(), own: own, settled: t.settled, have: have})
	for _, why := range t.refused {
		if _, known := slices.BinarySearch(was, why); !known {
			t.log.Warn("ignoring what a node says about itself", "claim", why)
		}
	}
	return have, want, nil
}

func (t *Table) write() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, want, err := t.compile()
	if err != nil {
		return err
	}
	return t.programs.SetCluster(want)
}
