package monitor

import (
	"errors"
	"time"

	"fairlead.io/fairlead/pkg/maps"
)

// reading reads events as long as there are clients.
type reading struct {
	hub     *Hub
	source  Source
	words   Words
	lost    uint64
	renewed time.Time
}

func (r *reading) run() {
	for {
		over, err := r.renew()
		if err == nil && !over {
			err = r.read()
		}
		if over || err != nil {
			r.end(err)
			return
		}
	}
}

// read hands on the events of one round.
func (r *reading) read() error {
	var event maps.Event
	late := time.Now().Add(round)
	for time.Now().Before(late) {
		there, err := r.source.Read(&event, late)
		if err != nil || !there {
			return err
		}
		words := r.words.Event(&event)
		r.hub.give(&words)
	}
	return nil
}

// renew reports lost events and renews the request to the programs. It returns true when no client
// is left; the source must not be used after that.
func (r *reading) renew() (over bool, err error) {
	lost, err := r.source.Lost()
	if err != nil {
		return false, err
	}
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	if len(r.hub.clients) == 0 {
		r.hub.source = nil
		return true, nil
	}
	r.hub.sendLost(lost - r.lost)
	r.lost = lost
	if time.Since(r.renewed) > renewal {
		r.renewed = time.Now()
		return false, r.hub.renew()
	}
	return false, nil
}

// end closes the source. If err is not nil, it ends every client's events first.
func (r *reading) end(err error) {
	if err != nil {
		r.hub.mu.Lock()
		r.hub.source = nil
		r.hub.endAll(err.Error())
		r.hub.mu.Unlock()
	}
	if err := errors.Join(r.source.Close(), r.words.Close()); err != nil {
		r.hub.cfg.Log.Warn("cannot close the source of packet events", "error", err)
	}
}
