package optout

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// maxUncovered is how many pods a Status lists.
const maxUncovered = 32

// Status says how many pods have opted out, and which of them cannot be recognized.
type Status struct {
	Pods       int         `json:"pods"`                // pods whose sockets are left alone
	Waiting    int         `json:"waiting"`             // pods that have not been set up yet
	NotCovered int         `json:"notCovered"`          // pods whose sockets are balanced although they should not be
	Uncovered  []Uncovered `json:"uncovered,omitempty"` // the first of the pods not covered
	Damage     uint64      `json:"-"`                   // rows that checks found different from what they should be
	Mended     uint64      `json:"-"`                   // of those, the rows that were repaired
}

// Uncovered is a pod that should be left alone and is not.
type Uncovered struct {
	Pod    string `json:"pod"`
	Why    string `json:"why"`    // why it has opted out
	Reason string `json:"reason"` // why it is not covered
}

func (s *Status) uncovered(pod model.Name, why string, err error) {
	s.NotCovered++
	if len(s.Uncovered) < maxUncovered {
		s.Uncovered = append(s.Uncovered, Uncovered{pod.String(), why, err.Error()})
	}
}

// Status returns the state after the last pass.
func (k *Controller) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	status := k.status
	status.Damage, status.Mended = k.damage, k.mended
	return status
}

// Problems returns the problems of namespaces, by name. Those of a pod are reported with its other
// problems.
func (k *Controller) Problems() map[string][]model.Problem {
	found := map[string][]model.Problem{}
	for _, namespace := range k.cfg.Store.Namespaces() {
		if len(namespace.Problems) > 0 {
			found[namespace.Name] = namespace.Problems
		}
	}
	return found
}

// warn logs the problems of an object, once while they persist.
func (k *Controller) warn(key, object string, problems []model.Problem) {
	for _, problem := range problems {
		id := key + " " + problem.Message
		_, before := k.warned[id]
		_, now := k.warning[id]
		k.warning[id] = struct{}{}
		if !before && !now {
			k.cfg.Log.Warn(problem.Message, "object", object)
		}
	}
}

// Difference is a row of the map that is not as it should be.
type Difference struct {
	Where, Want, Have string
	Mended            bool
}

// ErrEnded is returned by Verify once Run has ended.
var ErrEnded = errors.New("verify which pods have opted out: the agent is ending")

type checkRequest struct {
	repair bool
	answer chan checked // buffered, for one answer
}

type checked struct {
	differences []Difference
	err         error
}

// Verify compares the map with what should be in it and, if repair is set, repairs it. It is safe
// for concurrent use, and waits for its turn in Run.
func (k *Controller) Verify(ctx context.Context, repair bool) ([]Difference, error) {
	request := checkRequest{repair, make(chan checked, 1)}
	select {
	case k.checking <- request:
	case <-k.ended:
		return nil, ErrEnded
	case <-ctx.Done():
		return nil, fmt.Errorf("verify which pods have opted out: %w", context.Cause(ctx))
	}
	answer := <-request.answer
	return answer.differences, answer.err
}

// check is the Controller's own Verify.
func (k *Controller) check() {
	found, err := k.compare(true)
	if err != nil {
		k.cfg.Log.Error("cannot check which pods have opted out", "error", err)
		return
	}
	for _, d := range found[:min(len(found), maxUncovered)] {
		k.cfg.Log.Warn("found a wrong row in map optout", "row", d.Where, "want", d.Want, "have", d.Have, "mended", d.Mended)
	}
}

// compare returns the rows that differ from what the last pass wrote. Unwanted rows may stay until
// the sources have delivered everything.
func (k *Controller) compare(repair bool) ([]Difference, error) {
	k.mu.Lock()
	want, synced := k.want, k.synced
	k.mu.Unlock()
	have, err := k.cfg.Table.Optouts()
	if err != nil {
		return nil, err
	}
	var found []Difference
	for key, row := range want {
		if had, ok := have[key]; !ok || had != row {
			found = append(found, Difference{Where: keyText(key), Want: rowText(row, true), Have: rowText(had, ok)})
		}
	}
	for key, row := range have {
		if _, ok := want[key]; !ok && synced {
			found = append(found, Difference{Where: keyText(key), Want: rowText(row, false), Have: rowText(row, true)})
		}
	}
	slices.SortFunc(found, func(a, b Difference) int { return strings.Compare(a.Where, b.Where) })
	mended := uint64(0)
	if repair {
		// Write even if no row differs: the map of kinds may be wrong.
		if _, err := k.cfg.Table.SetOptouts(want, synced); err != nil {
			return found, err
		}
		for i := range found {
			found[i].Mended = true
		}
		mended = uint64(len(found))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.damage += uint64(len(found))
	k.mended += mended
	return found, nil
}

func keyText(key maps.OptoutKey) string {
	switch key.Kind {
	case maps.OptoutNetns:
		return fmt.Sprintf("netns %d", key.Id)
	case maps.OptoutCgroup:
		return fmt.Sprintf("cgroup %d", key.Id)
	}
	return fmt.Sprintf("kind %d, %d", key.Kind, key.Id)
}

func rowText(row maps.Optout, there bool) string {
	if !there {
		return "no row"
	}
	pod, addrs := maps.OptoutPod(row)
	return fmt.Sprintf("%q %s", pod, joined(addrs))
}

func joined(addrs []netip.Addr) string {
	texts := make([]string, 0, len(addrs))
	for _, addr := range addrs {
		texts = append(texts, addr.String())
	}
	return strings.Join(texts, " ")
}
