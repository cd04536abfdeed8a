package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"fairlead.io/fairlead/pkg/model"
)

// problems are those of all objects. They are safe for concurrent use.
type problems struct {
	cfg *Config

	mu       sync.Mutex // guards the fields below
	byObject map[model.Key]noted
	byReason map[string]int // number of problems by reason
}

type noted struct {
	uid  string
	list []model.Problem
}

// maxProblems bounds how many problems one object can add to events and listings.
const maxProblems = 32

func bounded(list []model.Problem) []model.Problem {
	if len(list) <= maxProblems {
		return list
	}
	return append(list[:maxProblems], model.Problem{
		Reason:  "MoreProblems",
		Message: fmt.Sprintf("%d more: fix the listed ones to see the rest", len(list)-maxProblems),
	})
}

// set replaces the problems of an object.
func (p *problems) set(o *object, list []model.Problem) {
	list = bounded(list)
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.byObject[o.key]
	p.count(was.list, -1)
	p.count(list, 1)
	if len(list) == 0 {
		delete(p.byObject, o.key)
		return
	}
	p.byObject[o.key] = noted{o.uid, slices.Clone(list)}
	if p.cfg.Report == nil {
		return
	}
	for _, problem := range list {
		if !slices.Contains(was.list, problem) {
			p.cfg.Report(o.key, o.uid, problem)
		}
	}
}

// Problems returns the problems of each object that has any. It is safe for concurrent use.
func (r *Reconciler) Problems() map[model.Key][]model.Problem { return r.problems.list() }

func (p *problems) list() map[model.Key][]model.Problem {
	p.mu.Lock()
	defer p.mu.Unlock()
	problems := make(map[model.Key][]model.Problem, len(p.byObject))
	for key, noted := range p.byObject {
		problems[key] = noted.list
	}
	return problems
}

// count maintains the number of problems by reason. A notice is no problem: nobody has to act.
func (p *problems) count(list []model.Problem, by int) {
	for _, problem := range list {
		if problem.Notice() {
			continue
		}
		if p.byReason[problem.Reason] += by; p.byReason[problem.Reason] == 0 {
			delete(p.byReason, problem.Reason)
		}
	}
}

// Reasons returns the number of problems by reason. Reasons are defined in the code, so there are
// few. It is safe for concurrent use.
func (r *Reconciler) Reasons() map[string]int { return r.problems.reasons() }

func (p *problems) reasons() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.byReason)
}
