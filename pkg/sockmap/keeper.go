package sockmap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/model"
)

const (
	// A pod's network is there a moment before or after its object says so.
	lookAgain = time.Second
	// mostUncovered is how many pods a KeeperStatus names.
	mostUncovered = 32
)

// ErrUnknown is wrapped by the error of a pod of which nobody knows the network namespace.
var ErrUnknown = errors.New("its network namespace is not known")

// KeeperConfig is what a Keeper needs.
type KeeperConfig struct {
	Sockmap  *Sockmap
	Store    *model.Store
	Selector model.Selector // of pods that take part without saying so
	Host     uint64         // the cookie of the node's own network namespace
	// Limited reports whether a pod is kept to a rate. What goes past TCP would be kept to none.
	Limited func(*model.Pod) bool
	// Namespaces returns what finds the cookies of pods' network namespaces now; its errors wrap ErrUnknown.
	Namespaces func() func(*model.Pod) ([]uint64, error)
	// Complain tells what is wrong with a policy.
	Complain func(Complaint)
	Log      *slog.Logger
}

// Keeper says to a Sockmap who may take part, as objects say it. Run alone uses it; Status may be called from others.
type Keeper struct {
	cfg  KeeperConfig
	told map[string]bool // complaints of the last pass

	mu     sync.Mutex
	status KeeperStatus
}

// KeeperStatus is who takes part.
type KeeperStatus struct {
	Pods      int               // that do
	Waiting   int               // that will when they have a network
	Uncovered map[string]string // the first of those that should and cannot, and why
	Error     string            // why the programs have not been told
	// Complaints are what is wrong with policies.
	Complaints []Complaint
	Told       bool // all objects were known, and the programs have been told what they say
}

// NewKeeper returns a Keeper.
func NewKeeper(cfg KeeperConfig) *Keeper { return &Keeper{cfg: cfg} }

// Status returns the state after the last pass.
func (k *Keeper) Status() KeeperStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// Run keeps the rules until the context ends, then returns nil.
func (k *Keeper) Run(ctx context.Context) error {
	synced := k.cfg.Store.Synced()
	for {
		status, err := k.pass()
		if err != nil {
			k.cfg.Log.Error("who may go past TCP is not up to date, trying again", "error", err)
			status.Error = err.Error()
		}
		k.mu.Lock()
		k.status = status
		k.mu.Unlock()
		var again <-chan time.Time
		if err != nil || status.Waiting > 0 || len(status.Uncovered) > 0 {
			again = time.After(lookAgain)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-synced:
			synced = nil
		case <-k.cfg.Store.AcceleratedChanged():
		case <-again:
		}
	}
}

// pass tells the programs what the latest objects say. What an agent before has told them holds until all objects are known.
func (k *Keeper) pass() (KeeperStatus, error) {
	policies, all := k.cfg.Store.Accelerations()
	select {
	case <-k.cfg.Store.Synced():
	default:
		all = false
	}
	if !all {
		return k.Status(), nil
	}
	selection := Select(k.cfg.Store.Pods(), k.cfg.Store.Namespaces(), policies, k.cfg.Selector)
	k.complain(selection.Complaints)
	status := KeeperStatus{Uncovered: map[string]string{}, Complaints: selection.Complaints}
	rules := map[Place]Rules{}
	add(rules, k.cfg.Host, "node", selection.Node)
	find := k.cfg.Namespaces()
	for _, member := range selection.Pods {
		cookies, err := k.find(find, member.Pod)
		switch {
		case err == nil:
			status.Pods++
		case len(member.Pod.Addrs) == 0:
			status.Waiting++
		case len(status.Uncovered) < mostUncovered:
			status.Uncovered[member.Pod.Name.String()] = err.Error()
		}
		for _, cookie := range cookies {
			add(rules, cookie, member.Pod.Name.String(), member.Part)
		}
	}
	err := k.cfg.Sockmap.SetRules(rules)
	status.Told = err == nil
	return status, err
}

func (k *Keeper) find(find func(*model.Pod) ([]uint64, error), pod *model.Pod) ([]uint64, error) {
	if k.cfg.Limited(pod) {
		return nil, errors.New("it has a rate, which would not be enforced past TCP")
	}
	cookies, err := find(pod)
	for _, cookie := range cookies {
		if cookie == k.cfg.Host {
			return nil, fmt.Errorf("%w: it is said to be the node's own", ErrUnknown)
		}
	}
	return cookies, err
}

// add gives a network namespace its rules.
func add(rules map[Place]Rules, netns uint64, pod string, part Part) {
	if part.From|part.To != 0 {
		rules[Place{Netns: netns}] = Rules{From: part.From, To: part.To, Pod: pod}
	}
	for port, bits := range part.Ports {
		rules[Place{Netns: netns, Port: port}] = Rules{To: bits, Pod: pod}
	}
}

// complain tells what is wrong with policies, once for as long as it is.
func (k *Keeper) complain(list []Complaint) {
	told := map[string]bool{}
	for _, c := range list {
		text := fmt.Sprintf("%s %s %s", c.Policy.Name, c.Policy.UID, c.Message)
		if told[text] = true; !k.told[text] {
			k.cfg.Complain(c)
		}
	}
	k.told = told
}
