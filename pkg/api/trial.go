package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"

	"fairlead.io/fairlead/pkg/explain"
)

// try serves the programs' verdict on a packet.
func (h Handlers) try(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	source, err := netip.ParseAddrPort(v.Get("source"))
	destination, destinationErr := netip.ParseAddrPort(v.Get("destination"))
	if err := errors.Join(err, destinationErr); err != nil {
		answer(w, http.StatusBadRequest, failure{fmt.Sprintf("read question: %v", err)})
		return
	}
	trial, err := h.Try(explain.TrialQuestion{
		Source: source, Destination: destination, Protocol: v.Get("protocol"), Device: v.Get("device"), AtPod: v.Has("pod"),
	})
	if err != nil {
		answer(w, http.StatusServiceUnavailable, failure{err.Error()})
		return
	}
	answer(w, http.StatusOK, trial)
}

// Try returns what the programs do with the first packet of a flow. The packet is not
// sent anywhere and leaves no trace.
func (c *Client) Try(ctx context.Context, q *explain.TrialQuestion) (explain.Trial, error) {
	var trial explain.Trial
	values := url.Values{
		"source": {q.Source.String()}, "destination": {q.Destination.String()}, "protocol": {q.Protocol}, "device": {q.Device},
	}
	if q.AtPod {
		values.Set("pod", "")
	}
	patient := *c // a busy node takes long to load a program
	patient.http = &http.Client{Timeout: verifyTimeout, Transport: c.http.Transport}
	err := patient.do(ctx, http.MethodGet, "/v1/trial?"+values.Encode(), nil, &trial)
	return trial, err
}
