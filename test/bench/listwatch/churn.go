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

// Churn is how much changes in a second.
type Churn struct {
	Changes float64 // of slices, one after the other
	Adds    float64 // of Services with what belongs to them
	Deletes float64 // of the oldest Services that are left
}

// Done is what has changed.
type Done struct{ Changes, Adds, Deletes int }

// Run changes the cluster at a rate until the context ends, and returns how often it did. What it is late with, because
// the machine was busy, it does at once.
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
		for ; float64(done.Changes) < churn.Changes*passed; done.Changes++ {
			change = s.next(change + 1)
			if err := s.Change(Slices, change); err != nil {
				return done, err
			}
		}
	}
}

// next returns the first Service from a number on, beginning again after the last. Without any it returns number itself.
func (s *Server) next(number int) int {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	t := s.world.tables[Slices]
	for i := range t.count {
		if n := (number + i) % t.count; !t.at(n).gone {
			return n
		}
	}
	return number
}

// control lets another process change the cluster: POST /control/change?number=N, /control/add, /control/delete?number=N
// and /control/expire. The answer is the resource version after it.
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
