package congestion

// Status says which connections use BBR congestion control.
type Status struct {
	Annotated bool   `json:"annotated"` // only pods that ask for it; otherwise all except those that opt out
	Pods      int    `json:"pods"`      // pods whose new connections use it
	Error     string `json:"error,omitempty"`
}
