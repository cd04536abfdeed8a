package reconcile

// rivals are the claims to a frontend besides the owner's. There are few, except where somebody
// makes many: then none of them may make a change of another slow.
type rivals struct {
	few  []claim
	many map[*service]claim
}

// usualRivals is the largest number that is searched one by one.
const usualRivals = 16

func (r *rivals) add(c claim) {
	switch {
	case r.many != nil:
		r.many[c.service] = c
	case len(r.few) < usualRivals:
		r.few = append(r.few, c)
	default:
		r.many = make(map[*service]claim, 2*usualRivals)
		for _, c := range r.few {
			r.many[c.service] = c
		}
		r.many[c.service] = c
		r.few = nil
	}
}

func (r *rivals) remove(s *service) {
	delete(r.many, s)
	if r.many != nil && len(r.many) == 0 {
		r.many = nil
	}
	for i, c := range r.few {
		if c.service == s {
			r.few[i] = r.few[len(r.few)-1]
			r.few = r.few[:len(r.few)-1]
			break
		}
	}
	if len(r.few) == 0 {
		r.few = nil
	}
}

// best returns the claim with precedence over all others. If any will do, it need not look at many.
func (r *rivals) best(anyWillDo bool) (best claim) {
	for _, c := range r.few {
		if best.service == nil || c.before(best) {
			best = c
		}
	}
	for _, c := range r.many {
		if best.service == nil || c.before(best) {
			best = c
		}
		if anyWillDo {
			break
		}
	}
	return best
}

func (r *rivals) each(visit func(claim)) {
	for _, c := range r.few {
		visit(c)
	}
	for _, c := range r.many {
		visit(c)
	}
}
