package policies

import (
	"fmt"

	"fairlead.io/fairlead/pkg/model"
)

// Passing reports whether what a pod sends and gets has to pass the programs, since policies are about it,
// or are about to be, or nothing is known of it; and whether anything is known yet. Socket acceleration
// asks, whose messages pass no program.
func (c *Controller) Passing(pod model.Name) (passing, known bool) {
	c.answers.Lock()
	defer c.answers.Unlock()
	if c.coming == nil {
		return true, false
	}
	next, compiled := c.coming[pod]
	was, written := c.judged[pod]
	if compiled || written {
		return next || was, true
	}
	return !c.none, true
}

// expel has what pods send and get pass the programs if a policy comes to be about them. Until the next
// change is written, this holds as well for those that a policy was about before.
func (c *Controller) expel(around *Around, any bool) error {
	if c.come(any) {
		c.expelled = false
	}
	if c.expelled || around.Expel == nil {
		return nil
	}
	if err := around.Expel(); err != nil {
		return fmt.Errorf("have connections pass the programs that judge them: %w", err)
	}
	c.expelled = true
	return nil
}

// come notes what is about to be written, and reports whether a pod has to pass the programs by it that
// did not.
func (c *Controller) come(any bool) (more bool) {
	next := c.judges()
	c.answers.Lock()
	defer c.answers.Unlock()
	more = any && (c.coming == nil || c.none)
	for name, is := range next {
		more = more || is && !c.coming[name] && !c.judged[name]
	}
	c.coming, c.none = next, c.none && !any
	return more
}
