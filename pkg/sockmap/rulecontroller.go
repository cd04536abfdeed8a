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
	// A pod's network may appear shortly before or after its object says so.
	retryAfter = time.Second
	// mostUncovered is how many pods a RuleStatus names.
	mostUncovered = 32
)

// ErrUnknown is wrapped by errors about pods whose network namespace is not known.
var ErrUnknown = errors.New("its network namespace is not known")

// Past TCP nothing of this would be enforced.
var (
	errRated  = errors.New("it has a rate")
	errJudged = errors.New("policies are about it")
)

// RuleConfig is what a RuleController needs.
type RuleConfig struct {
	Sockmap  *Sockmap
	Store    *model.Store
	Selector model.Selector // selects pods that take part without an annotation
	Host     uint64         // cookie of the node's own network namespace
	// Limited reports whether a pod has a rate. Past TCP no rate would be enforced.
	Limited func(*model.Pod) bool
	// Judged reports whether network policies are about a pod, which past TCP no program would ask, and
	// whether that is known yet. Nil if nobody asks what policies say.
	Judged func(model.Name) (judged, known bool)
	// Namespaces returns a function that finds the cookies of pods' network namespaces at this
	// moment; its errors wrap ErrUnknown.
	Namespaces func() func(*model.Pod) ([]uint64, error)
	// Complain reports a problem with a policy.
	Complain func(Complaint)
	Log      *slog.Logger
}

// RuleController sets the rules of a Sockmap according to the objects. Run may be called once; the other
// methods may be called concurrently.
type RuleController struct {
	cfg  RuleConfig
	wake chan struct{}

	passing sync.Mutex      // held during a pass: no older one ends after a newer one
	logged  map[string]bool // complaints of the last pass

	mu     sync.Mutex
	status RuleStatus
}

// RuleStatus is which pods take part.
type RuleStatus struct {
	Pods       int               `json:"pods"`                 // that may take part
	Waiting    int               `json:"waiting,omitempty"`    // those of them that have no network yet
	Rated      int               `json:"rated,omitempty"`      // that do not take part, because they have a rate
	Judged     int               `json:"judged,omitempty"`     // likewise, because network policies are about them
	NotCovered int               `json:"notCovered,omitempty"` // that should take part and cannot
	Uncovered  map[string]string `json:"uncovered,omitempty"`  // the first of those, and why
	Stale      string            `json:"stale,omitempty"`      // why the programs do not know yet which pods may take part now
	// Complaints are the problems with policies.
	Complaints []Complaint `json:"-"`
	Applied    bool        `json:"-"` // all objects were known, and the rules are set accordingly
}

// NewRuleController returns a RuleController.
func NewRuleController(cfg RuleConfig) *RuleController {
	return &RuleController{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Wake says that Judged may return something else.
func (k *RuleController) Wake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Expel makes connections of pods use TCP that policies are about by now. Once it has returned nil, no
// message of theirs begins to bypass it.
func (k *RuleController) Expel() error {
	if err := k.update(); err != nil {
		return err
	}
	return k.cfg.Sockmap.exclude()
}

// Status returns the status after the last pass.
func (k *RuleController) Status() RuleStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// Run keeps the rules up to date until the context ends, then returns nil.
func (k *RuleController) Run(ctx context.Context) error {
	synced := k.cfg.Store.Synced()
	for {
		err := k.update()
		if err != nil {
			k.cfg.Log.Error("cannot update which connections may bypass TCP, trying again", "error", err)
		}
		status := k.Status()
		var again <-chan time.Time
		if err != nil || status.Waiting > 0 || status.NotCovered > 0 {
			again = time.After(retryAfter)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-synced:
			synced = nil
		case <-k.cfg.Store.AcceleratedChanged():
		case <-k.wake:
		case <-again:
		}
	}
}

// update sets the rules, and notes which pods take part.
func (k *RuleController) update() error {
	k.passing.Lock()
	defer k.passing.Unlock()
	status, err := k.pass()
	if err != nil {
		status.Stale = err.Error()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status = status
	return err
}

// pass sets the rules that the latest objects require. Until all objects are known, and which pods
// policies are about, the rules that the previous agent set remain, but for those of pods that policies
// are known to be about.
func (k *RuleController) pass() (RuleStatus, error) {
	policies, all := k.cfg.Store.Accelerations()
	select {
	case <-k.cfg.Store.Synced():
	default:
		all = false
	}
	if !k.knowsJudged() {
		return k.Status(), nil
	}
	if !all {
		return k.Status(), k.keepUnjudged()
	}
	selection := Select(k.cfg.Store.Pods(), k.cfg.Store.Namespaces(), policies, k.cfg.Selector)
	k.complain(selection.Complaints)
	status := RuleStatus{Uncovered: map[string]string{}, Complaints: selection.Complaints}
	rules := map[Endpoint]Rules{}
	add(rules, k.cfg.Host, "node", selection.Node)
	find := k.cfg.Namespaces()
	for _, member := range selection.Pods {
		cookies, err := k.find(find, member.Pod)
		switch {
		case err == nil:
			status.Pods++
		case errors.Is(err, errRated):
			status.Rated++
		case errors.Is(err, errJudged):
			status.Judged++
		case len(member.Pod.Addrs) == 0:
			status.Waiting++
		default:
			if status.NotCovered++; len(status.Uncovered) < mostUncovered {
				status.Uncovered[member.Pod.Name.String()] = err.Error()
			}
		}
		for _, cookie := range cookies {
			add(rules, cookie, member.Pod.Name.String(), member.Part)
		}
	}
	err := k.cfg.Sockmap.SetRules(rules)
	status.Applied = err == nil
	return status, err
}

func (k *RuleController) find(find func(*model.Pod) ([]uint64, error), pod *model.Pod) ([]uint64, error) {
	if k.cfg.Limited(pod) {
		return nil, errRated
	}
	if k.isJudged(pod.Name) {
		return nil, errJudged
	}
	cookies, err := find(pod)
	for _, cookie := range cookies {
		if cookie == k.cfg.Host {
			return nil, fmt.Errorf("%w: it was reported as the node's own", ErrUnknown)
		}
	}
	return cookies, err
}

func (k *RuleController) isJudged(pod model.Name) bool {
	if k.cfg.Judged == nil {
		return false
	}
	judged, known := k.cfg.Judged(pod)
	return judged || !known
}

// knowsJudged reports whether it is known which pods policies are about.
func (k *RuleController) knowsJudged() bool {
	if k.cfg.Judged == nil {
		return true
	}
	_, known := k.cfg.Judged(model.Name{})
	return known
}

// keepUnjudged keeps only the rules of the node, and of pods that no policy is about.
func (k *RuleController) keepUnjudged() error {
	if k.cfg.Judged == nil {
		return nil
	}
	kept := map[uint64]bool{k.cfg.Host: true}
	find := k.cfg.Namespaces()
	for _, pod := range k.cfg.Store.Pods() {
		cookies, err := k.find(find, pod)
		if err != nil {
			continue
		}
		for _, cookie := range cookies {
			kept[cookie] = true
		}
	}
	return k.cfg.Sockmap.keepRules(func(netns uint64) bool { return kept[netns] })
}

// add adds the rules of a network namespace.
func add(rules map[Endpoint]Rules, netns uint64, pod string, part Part) {
	if part.From|part.To != 0 {
		rules[Endpoint{Netns: netns}] = Rules{From: part.From, To: part.To, Pod: pod}
	}
	for port, bits := range part.Ports {
		rules[Endpoint{Netns: netns, Port: port}] = Rules{To: bits, Pod: pod}
	}
}

// complain reports each problem with a policy once for as long as it persists.
func (k *RuleController) complain(list []Complaint) {
	logged := map[string]bool{}
	for _, c := range list {
		text := fmt.Sprintf("%s %s %s", c.Policy.Name, c.Policy.UID, c.Message)
		if logged[text] = true; !k.logged[text] {
			k.cfg.Complain(c)
		}
	}
	k.logged = logged
}
