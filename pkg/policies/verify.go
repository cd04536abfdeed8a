package policies

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"fairlead.io/fairlead/pkg/policy"
)

const (
	// checkEvery is how often the maps are compared with the policies.
	checkEvery = time.Minute
	// maxLogged is how many damaged rows of one comparison are logged.
	maxLogged = 10
)

// ErrEnded is returned by Verify once Run has ended.
var ErrEnded = errors.New("verify policies: the agent is shutting down")

// Checked is the result of a comparison of the maps with the policies.
type Checked struct {
	Damage []policy.Damage
	// Waiting says that changes are not written yet, so that nothing was compared.
	Waiting bool
}

// verifyRequest asks Run for a comparison.
type verifyRequest struct {
	repair bool
	done   bool
	answer chan verifyAnswer // buffered, for one; nil if nobody waits
}

type verifyAnswer struct {
	checked Checked
	err     error
}

func (q *verifyRequest) end(checked Checked, err error) {
	if q == nil || q.done {
		return
	}
	q.done = true
	if q.answer != nil {
		q.answer <- verifyAnswer{checked, err}
	}
}

// Verify compares the maps with the policies and, if repair is set, mends what differs. It is safe for concurrent
// use, and waits for its turn in Run.
func (c *Controller) Verify(ctx context.Context, repair bool) (Checked, error) {
	q := &verifyRequest{repair: repair, answer: make(chan verifyAnswer, 1)}
	select {
	case c.verifying <- q:
	case <-c.ended:
		return Checked{}, ErrEnded
	case <-ctx.Done():
		return Checked{}, fmt.Errorf("verify policies: %w", context.Cause(ctx))
	}
	a := <-q.answer
	return a.checked, a.err
}

// check compares the maps with what has just been written. What damaged rows have accepted is judged again once they
// are mended. The error says that this cannot be had.
func (c *Controller) check(around *Around, devices map[netip.Addr][]uint32, q *verifyRequest) error {
	if q == nil {
		return nil
	}
	found, err := around.Writer.Verify(c.compiler.Tables(), devices, q.repair)
	if err != nil {
		c.Log.Error("cannot compare policies with the maps", "error", err)
	}
	var stays error
	if len(found.Widened) > 0 {
		c.compiler.Renew(found.Widened)
		begun, change := time.Now(), c.compiler.Update()
		stays = around.Writer.Apply(change, c.compiler.Tables(), devices)
		c.note(change, begun, around, stays)
		c.Log.Warn("verify: damaged rows accepted too much, flows of pods are judged again", "pods", len(found.Widened))
	}
	q.end(Checked{Damage: found.Damage}, errors.Join(err, stays))
	if q.repair {
		c.noteDamage(found.Damage)
	}
	return stays
}

// noteDamage counts and logs what was found.
func (c *Controller) noteDamage(found []policy.Damage) {
	mended := uint64(0)
	for i, d := range found {
		if d.Mended {
			mended++
		}
		if i < maxLogged {
			c.Log.Warn("verify: found a damaged row in the maps", "map", d.Map, "where", d.Where, "want", d.Want, "have", d.Have, "mended", d.Mended)
		}
	}
	c.answers.Lock()
	defer c.answers.Unlock()
	c.status.Damage += uint64(len(found))
	c.status.Mended += mended
}
