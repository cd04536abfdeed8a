package listwatch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Churn is the rate of changes per second.
type Churn struct {
	Changes float64 // changed slices, one after another
	Adds    float64 // added Services, with their pods and slices
	Deletes float64 // deleted Services, oldest first
	Pods    float64 // pods that go, the oldest first, each for another one; not together with Adds
}

// Done counts what has changed.
type Done struct{ Changes, Adds, Deletes, Pods int }

// Run changes the cluster at a rate until the context ends, and returns the number of changes. If
// it falls behind because the machine is busy, it catches up at once.
func (s *Server) Run(ctx context.Context, churn Churn) (Done, error) {
	var done Done
	var change, oldest int
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for {
		select {
		case <-ctx.Done():
			return done, nil
		case <-tick.C:
		}
		passed := time.Since(began).Seconds()
		for ; float64(done.Adds) < churn.Adds*passed; done.Adds++ {
			if _, err := s.AddService(); err != nil {
				return done, err
			}
		}
		for ; float64(done.Deletes) < churn.Deletes*passed; done.Deletes++ {
			oldest = s.next(oldest)
			if err := s.DeleteService(oldest); err != nil {
				return done, err
			}
		}
		for ; float64(done.Pods) < churn.Pods*passed; done.Pods++ {
			if err := s.ReplacePod(done.Pods); err != nil {
				return done, err
			}
		}
		for ; float64(done.Changes) < churn.Changes*passed; done.Changes++ {
			change = s.next(change + 1)
			if err := s.Change(Slices, change); err != nil {
				return done, err
			}
		}
	}
}

// next returns the first existing Service from a number on, wrapping around after the last. If
// there is none, it returns number itself.
func (s *Server) next(number int) int {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	t := s.state.tables[Slices]
	for i := range t.count {
		if n := (number + i) % t.count; !t.at(n).gone {
			return n
		}
	}
	return number
}

// control lets another process change the cluster: POST /control/change?number=N, /control/add,
// /control/delete?number=N and /control/expire. The answer is the resource version after the
// change.
func (s *Server) control(w http.ResponseWriter, r *http.Request) {
	var err error
	number := 0
	if text := r.URL.Query().Get("number"); text != "" {
		number, err = strconv.Atoi(text)
	}
	if err == nil {
		switch what := strings.TrimPrefix(r.URL.Path, "/control/"); what {
		case "change":
			err = s.Change(Slices, number)
		case "add":
			_, err = s.AddService()
		case "delete":
			err = s.DeleteService(number)
		case "expire":
			s.Expire()
		default:
			err = fmt.Errorf("%q is none of change, add, delete, expire", what)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]uint64{"resourceVersion": s.Revision()})
}
