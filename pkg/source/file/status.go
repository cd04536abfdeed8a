package file

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Status says what a Source has loaded, and what keeps it from loading more.
type Status struct {
	Path string `json:"path"`
	// Synced says that all files have been valid at the same time, so that objects in none of them
	// may be deleted.
	Synced bool `json:"synced"`
	// Watching says that changes are noticed at once, and not only by rescanning from time to time.
	Watching   bool        `json:"watching"`
	LastReload time.Time   `json:"lastReload,omitzero"`
	Files      int         `json:"files"`
	Objects    Objects     `json:"objects"`
	Errors     []FileError `json:"errors,omitempty"`
}

// Objects counts the objects of each kind that were delivered.
type Objects struct {
	Services            int `json:"services"`
	EndpointSlices      int `json:"endpointSlices"`
	Nodes               int `json:"nodes"`
	Namespaces          int `json:"namespaces"`
	Pods                int `json:"pods"`
	SocketAccelerations int `json:"socketAccelerations"`
	ServiceCIDRs        int `json:"serviceCIDRs"`
	NetworkPolicies     int `json:"networkPolicies"` // and ClusterNetworkPolicies
	// Ignored counts valid objects that the agent does not use, such as headless Services and pods
	// of other nodes.
	Ignored int `json:"ignored"`
}

// FileError says what is wrong with a file, and where. Line is 0 if unknown.
type FileError struct {
	File    string    `json:"file"`
	Line    int       `json:"line,omitempty"`
	Message string    `json:"message"`
	Since   time.Time `json:"since,omitzero"`
}

// Error returns "file:line: message".
func (e *FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Message)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
}

// same reports whether both errors say the same.
func (e *FileError) same(o *FileError) bool {
	return e != nil && o != nil && e.Error() == o.Error()
}

// Status returns the current state. It may be called from any goroutine, even before Run.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Errors = slices.Clone(status.Errors)
	return status
}

// publish stores the result of a scan in Status, and logs what is new in it.
func (s *Source) publish(watching bool) {
	var errs []FileError
	if s.pathErr != nil {
		errs = append(errs, *s.pathErr)
	}
	for _, f := range s.sorted() {
		if f.err != nil {
			errs = append(errs, *f.err)
		}
	}
	s.report(errs)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Watching = watching
	s.status.Synced = s.synced
	s.status.LastReload = s.lastReload
	s.status.Files = len(s.files)
	s.status.Errors = errs
}

func (s *Source) report(errs []FileError) {
	reported := make(map[string]string, len(errs))
	for i := range errs {
		e := &errs[i]
		reported[e.File] = e.Error()
		if s.lastReported[e.File] != e.Error() {
			s.log.Error("cannot load manifests, keeping the last good state", "file", e.File, "line", e.Line, "error", e.Message)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.lastReported)) {
		if _, ok := reported[name]; !ok {
			s.log.Info("manifests are valid again", "file", name)
		}
	}
	s.lastReported = reported
}
