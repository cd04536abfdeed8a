package kube

import "net/http"

// asker is the key of the context value by which a request tells which kind it is for: a *state.
type asker struct{}

// observed tells each kind how its requests went. What the client returns would not do: it repeats some of them ten
// times before it says anything, and a watch that could not be opened because the connection broke or took too long is
// no error to it but a watch that has ended.
type observed struct{ next http.RoundTripper }

// RoundTrip sends a request.
func (o observed) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := o.next.RoundTrip(request)
	ctx := request.Context()
	if s, ok := ctx.Value(asker{}).(*state); ok && ctx.Err() == nil {
		s.answered(response, err, request.URL.Query().Get("watch") != "")
	}
	return response, err
}

// WrappedRoundTripper returns what sends the requests, for those who must reach it.
func (o observed) WrappedRoundTripper() http.RoundTripper { return o.next }
