// Package policies keeps what the programs judge by in step with the policies, pods and namespaces of the
// cluster. It feeds a compiler from the store and hands each change of its tables to a writer.
//
// Nothing is compiled before everything that it depends on has been delivered: until then, and while the
// API server cannot be reached, what was enforced stays enforced.
package policies

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// Writer writes tables to the maps of the programs. If Apply fails, what was in force stays in force, and
// the next call writes what is missing.
type Writer interface {
	Generation() (uint32, error)
	// SetAny says whether there may be a pod that a policy is about.
	SetAny(any bool) error
	// Rows returns how many rows of each map are in use, by the map's name.
	Rows() map[string]int
	Apply(change *policy.Change, tables *policy.Tables, devices map[netip.Addr][]uint32) error
	// Verify compares the maps with what the last Apply wrote, and mends them if it is to.
	Verify(tables *policy.Tables, devices map[netip.Addr][]uint32, repair bool) (policy.Comparison, error)
}

// Device is a device of a pod of this node, with the addresses that the pod has there.
type Device struct {
	Pod   model.Name
	UID   string // as this node's runtime knows it; empty if that does not say
	Index uint32 // of the host's end
	Addrs []netip.Addr
}

// Config is what a Controller needs.
type Config struct {
	Store *model.Store
	Node  string // this one's name
	Mode  string // enforce or audit
	Quota policy.Quota
	// Report reports a problem of an object.
	Report func(model.Key, string, model.Problem)
	Log    *slog.Logger
}

// Controller keeps the tables of policies up to date. Its methods are safe for concurrent use.
type Controller struct {
	Config
	changed   chan struct{}       // signaled when pods of the cluster or devices change
	verifying chan *verifyRequest // for Run
	ended     chan struct{}       // closed when Run has ended

	mu       sync.Mutex // guards what follows
	compiler *policy.Compiler
	fed      fed
	needed   bool // the pods of all nodes are
	listed   bool // and they were delivered
	reported map[model.Key][]model.Problem
	unread   bool // the store may have other objects than those that were fed
	expelled bool // nothing of a pod that is judged passes the programs by
	stale    bool // the pods' devices do not yet say which pods are judged

	// The pod network asks while it holds its own lock, which devices are read under.
	answers sync.Mutex // guards what follows, and is never held for long
	judged  map[model.Name]bool
	matched map[model.Name][]string // the UIDs by which the runtime knows those that were judged
	coming  map[model.Name]bool     // as judged, for what is about to be written
	none    bool                    // there is no policy
	status  Status
	names   names
	lag     lag
	loaded  bool          // something was compiled
	why     func() string // the pods of all nodes do not come; nil if nobody knows
}

// New returns a Controller that only collects until it runs.
func New(cfg *Config) *Controller {
	return &Controller{
		Config: *cfg, changed: make(chan struct{}, 1), verifying: make(chan *verifyRequest), ended: make(chan struct{}), compiler: policy.New(cfg.Node, cfg.Quota, 0), fed: newFed(),
		judged: map[model.Name]bool{}, reported: map[model.Key][]model.Problem{}, status: Status{Mode: cfg.Mode}, expelled: true, unread: true,
	}
}

// SetPod stores a new or changed pod of the cluster.
func (c *Controller) SetPod(pod *model.PolicyPod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compiler.SetPod(pod)
	c.Wake()
}

// DeletePod forgets a pod of the cluster.
func (c *Controller) DeletePod(name model.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compiler.DeletePod(name)
	c.Wake()
}

// ReplacePods makes the pods of the cluster exactly the given ones.
func (c *Controller) ReplacePods(pods []*model.PolicyPod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compiler.ReplacePods(pods)
	c.listed = c.needed
	c.Wake()
}

// ForgetPods forgets the pods of the cluster until they are delivered again.
func (c *Controller) ForgetPods() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compiler.ReplacePods(nil)
	c.listed = false
	c.Wake()
}

// Wake says that devices of pods have come or gone.
func (c *Controller) Wake() {
	c.see()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// see notes that something changed.
func (c *Controller) see() {
	c.answers.Lock()
	defer c.answers.Unlock()
	c.lag.see(time.Now())
}

// Judged reports whether the programs have to ask what policies say about a pod. was is the answer
// before, which holds until it is known. A pod of which nothing is known yet is judged, so that it is
// denied everything until then. If policies are only audited nothing is denied, so it is not judged.
// The UID is the runtime's: of a pod that was created again under its name nothing is known.
func (c *Controller) Judged(pod model.Name, uid string, was bool) bool {
	any, complete := c.Store.AnyNetworkPolicy()
	c.answers.Lock()
	defer c.answers.Unlock()
	switch {
	case c.Mode == "audit":
		return c.judged[pod]
	case !c.loaded:
		return was
	case complete && !any:
		return false
	}
	return c.judged[pod] || !slices.Contains(c.matched[pod], uid)
}

const (
	// batch is how long to wait for more changes. It bounds what a storm of them costs.
	batch = 20 * time.Millisecond
	// retry is the longest pause after an error.
	minRetry, maxRetry = 100 * time.Millisecond, 30 * time.Second
)

// Around is what a Controller runs with, once there is something to write to.
type Around struct {
	Writer  Writer
	Devices func() []Device
	// NeedPods says whether the pods of all nodes are needed. Nil if they are always delivered.
	NeedPods func(bool)
	// PodsError says why they do not come, or returns "". Nil if there is nothing to say.
	PodsError func() string
	// Decided is called when Judged and Passing may return something else. A change counts as written once it
	// has returned: the programs ask about no pod whose device does not say so. If it fails it is called again.
	Decided func() error
	// Expel has what pods send and get pass the programs that Passing denies it to, before a change is
	// written by which a policy comes to be about one. Nil if nothing ever passes by.
	Expel func() error
	// Applied gets how long a change waited from when it was seen until it was in force. Nil if nobody asks.
	Applied func(waited time.Duration)
}

// Run keeps the maps up to date until the context ends, and leaves them as they are.
func (c *Controller) Run(ctx context.Context, around *Around) error {
	if err := c.start(around); err != nil {
		return err
	}
	defer close(c.ended)
	regular := time.NewTicker(checkEvery)
	defer regular.Stop()
	pause, asked, goesOn := time.Duration(0), (*verifyRequest)(nil), false
	for {
		err := c.step(around, asked)
		asked.end(Checked{Waiting: true}, nil)
		if err != nil {
			pause = min(max(2*pause, minRetry), maxRetry)
			c.Log.Error("cannot write policies, what was enforced stays enforced", "error", err, "again in", pause)
		} else {
			pause = 0
		}
		if asked, goesOn = c.await(ctx, pause, regular.C); !goesOn {
			return nil
		}
	}
}

// start goes on where an agent before ended.
func (c *Controller) start(around *Around) error {
	generation, err := around.Writer.Generation()
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.compiler.StartAt(generation)
	c.mu.Unlock()
	c.see()
	c.answers.Lock()
	c.why = around.PodsError
	c.answers.Unlock()
	return around.Writer.SetAny(true)
}

// await returns when there is something to do, with what was asked, or false if the context has ended.
func (c *Controller) await(ctx context.Context, pause time.Duration, regular <-chan time.Time) (asked *verifyRequest, goesOn bool) {
	var again <-chan time.Time
	if pause > 0 {
		again = time.After(pause)
	}
	select {
	case <-ctx.Done():
		return nil, false
	case <-again:
		return nil, true
	case <-regular:
		c.mu.Lock()
		c.unread = true
		c.mu.Unlock()
		return &verifyRequest{repair: true}, true
	case asked = <-c.verifying:
		return asked, true
	case <-c.Store.PoliciesChanged():
		c.objectsChanged()
	case <-c.changed:
	}
	select {
	case <-ctx.Done():
		return nil, false
	case <-time.After(batch):
		return nil, true
	}
}

// objectsChanged notes that the store signaled a change.
func (c *Controller) objectsChanged() {
	c.see()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unread = true
}

// podsOfAllNodes are what may not come for reasons that only their source knows.
const podsOfAllNodes = "the pods of all nodes"

// step compiles and writes what changed, if everything that it depends on is known, and then compares the maps if
// that is asked for. What it does for a pod of another node must not depend on how many policies, namespaces and
// nodes there are: in a large cluster a hundred such pods change in a second.
func (c *Controller) step(around *Around, asked *verifyRequest) error {
	select {
	case <-c.Store.PoliciesChanged():
		c.objectsChanged()
	default:
	}
	c.take()
	list := around.Devices()
	c.mu.Lock()
	defer c.mu.Unlock()
	if missing := c.missing(); missing != "" {
		c.wait(missing)
		return nil
	}
	anew := c.unread
	if c.unread {
		c.feed()
		c.unread = false
	}
	devices := c.feedLocal(list)
	if c.compiler.Due() {
		c.need(around, c.compiler.NeedsPods())
		anew = true
	}
	if c.needed && !c.listed {
		c.wait(podsOfAllNodes)
		return nil
	}
	begun := time.Now()
	change := c.compiler.Update()
	any := len(c.fed.policies) > 0
	stays := c.expel(around, any)
	err := around.Writer.Apply(change, c.compiler.Tables(), devices)
	if err == nil {
		err = around.Writer.SetAny(any)
	}
	if err == nil {
		err = c.tell(around, any)
	}
	if anew || len(c.compiler.Tables().Problems) > 0 {
		c.report()
	}
	c.note(change, begun, around, errors.Join(err, stays))
	if err == nil {
		err = c.check(around, devices, asked)
	}
	return errors.Join(err, stays)
}

// tell says which pods are judged, if that changed since it was last told.
func (c *Controller) tell(around *Around, any bool) error {
	c.stale = c.decide(any) || c.stale
	if !c.stale || around.Decided == nil {
		return nil
	}
	if err := around.Decided(); err != nil {
		return fmt.Errorf("tell the pods' devices which of them policies are about: %w", err)
	}
	c.stale = false
	return nil
}

// take notes that what changed so far is being compiled.
func (c *Controller) take() {
	c.answers.Lock()
	defer c.answers.Unlock()
	c.lag.take()
}

// wait notes what has to be delivered first.
func (c *Controller) wait(missing string) {
	c.answers.Lock()
	defer c.answers.Unlock()
	c.status.Waiting = missing
}

// missing says what has not been delivered yet.
func (c *Controller) missing() string {
	select {
	case <-c.Store.Synced():
	default:
		return "services, nodes, namespaces and pods of this node"
	}
	if _, complete := c.Store.AnyNetworkPolicy(); !complete {
		return "policies"
	}
	return ""
}

// need asks for the pods of all nodes, or no longer.
func (c *Controller) need(around *Around, needed bool) {
	if around.NeedPods == nil {
		c.needed, c.listed = true, true
		return
	}
	if c.needed == needed {
		return
	}
	c.needed = needed
	around.NeedPods(needed)
}

// judges returns which pods of this node the tables judge.
func (c *Controller) judges() map[model.Name]bool {
	judged := map[model.Name]bool{}
	for _, row := range c.compiler.Tables().Pods {
		judged[row.Pod] = row.Subject != 0
	}
	return judged
}

// decide notes which pods are judged, and reports whether that changed.
func (c *Controller) decide(any bool) bool {
	judged, matched := c.judges(), maps.Clone(c.fed.local)
	c.answers.Lock()
	defer c.answers.Unlock()
	changed := !c.loaded || c.none == any || len(judged) != len(c.judged) || !maps.EqualFunc(matched, c.matched, slices.Equal)
	for name, is := range judged {
		was, known := c.judged[name]
		changed = changed || !known || was != is
	}
	c.judged, c.matched, c.coming, c.none, c.loaded = judged, matched, judged, !any, true
	return changed
}
