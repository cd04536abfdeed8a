package mapstats

import "time"

// lately is the shortest period that counts of recent events cover.
const lately = time.Minute

// recent tells by how much a counter grew lately.
type recent struct {
	is     uint64
	grew   time.Time // when it was found to have grown last
	marked [2]mark   // the older first
}

// mark records what the counter was at some moment.
type mark struct {
	at time.Time
	is uint64
}

// newRecent returns a recent of a counter that has this value now.
func newRecent(is uint64, now time.Time) recent {
	first := mark{now, is}
	return recent{is: is, marked: [2]mark{first, first}}
}

// count notes the counter's value. A lower one than before is ignored.
func (r *recent) count(is uint64, now time.Time) {
	if is > r.is {
		r.is, r.grew = is, now
	}
}

// lately returns by how much the counter grew in the last one or two minutes. Between looks that are
// further apart than that, only the last is known, and when it was found.
func (r *recent) lately(now time.Time) uint64 {
	if now.Sub(r.grew) >= 2*lately {
		return 0
	}
	if now.Sub(r.marked[1].at) >= lately {
		r.marked = [2]mark{r.marked[1], {now, r.is}}
	}
	return r.is - r.marked[0].is
}

// over returns when lately will return zero, if the counter grows no more.
func (r *recent) over() time.Time { return r.grew.Add(2 * lately) }
