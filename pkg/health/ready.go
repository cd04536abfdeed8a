package health

import (
	"fmt"
	"net/http"
	"strings"
)

// Check is one condition that must hold before this node is ready.
type Check struct {
	Name string // lower case, with "-" between words
	// Run returns nil if the condition holds. It must be cheap, because anyone on the node may ask
	// often.
	Run func() error
}

// Ready serves /readyz: 200 if all checks pass, 503 otherwise. With "?verbose", or if a check
// fails, the answer lists the checks in the format of Kubernetes' own components.
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
