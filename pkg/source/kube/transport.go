package kube

import "net/http"

// asker is the key of the context value that says which kind a request is for: a *state.
type asker struct{}

// observed tells each kind the results of its requests. The errors that the client returns are not
// enough: it repeats some requests ten times before it reports anything, and it treats a watch that
// could not be opened, because the connection broke or took too long, as one that has ended without
// an error.
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

// WrappedRoundTripper returns the underlying transport, as client-go's wrappers do.
func (o observed) WrappedRoundTripper() http.RoundTripper { return o.next }
