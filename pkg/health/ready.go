package health

import (
	"fmt"
	"net/http"
	"strings"
)

// Check is one thing that has to be so before this node is ready.
type Check struct {
	Name string       // lower case, with "-" between words
	Run  func() error // nil when it is so; cheap, since anybody on the node may ask often
}

// Ready answers /readyz: 200 when all checks pass and 503 otherwise. With "?verbose", and whenever one fails, the answer
// lists them in the form that Kubernetes' own components have.
func Ready(checks []Check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var list strings.Builder
		failed := 0
		for _, c := range checks {
			if err := c.Run(); err != nil {
				failed++
				fmt.Fprintf(&list, "[-]%s failed: %v\n", c.Name, err)
			} else {
				fmt.Fprintf(&list, "[+]%s ok\n", c.Name)
			}
		}
		switch {
		case failed > 0:
			plain(w, http.StatusServiceUnavailable, list.String()+"readyz check failed\n")
		case r.URL.Query().Has("verbose"):
			plain(w, http.StatusOK, list.String()+"readyz check passed\n")
		default:
			plain(w, http.StatusOK, "ok")
		}
	})
}
