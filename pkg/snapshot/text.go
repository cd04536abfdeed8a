package snapshot

import (
	"fmt"
	"io"
	"strings"

	"fairlead.io/fairlead/pkg/lb"
)

// WriteService writes one service in the form of render.All.
func (s *Snapshot) WriteService(w io.Writer, service *Service) error {
	var out strings.Builder
	words := append([]string{service.Label(), service.Algorithm.String()}, service.Flags...)
	if service.AffinitySeconds > 0 {
		words = append(words, fmt.Sprintf("affinity=%ds", service.AffinitySeconds))
	}
	fmt.Fprintln(&out, strings.Join(words, " "))
	for _, f := range service.Frontends {
		fmt.Fprintf(&out, "  frontend %s %s\n", f.Text(), f.Kind)
	}
	if service.Has(FlagSourceRanges) {
		fmt.Fprintf(&out, "  sources %s\n", RangesText(service))
	}
	if service.UsesAll() {
		fmt.Fprintf(&out, "  all   %s\n", s.scopeText(service, &service.All))
	}
	if service.UsesLocal() {
		fmt.Fprintf(&out, "  local %s\n", s.scopeText(service, &service.Local))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// Text returns the address in the form used for dialing. A star stands for the node's own
// addresses.
func (f Frontend) Text() string {
	if f.Address.Addr().IsUnspecified() {
		return fmt.Sprintf("*:%d", f.Address.Port())
	}
	return f.Address.String()
}

// scopeText lists the backends, and marks the local and the terminating ones. If some have more
// slots than others, it adds the number of slots of each, and a digest of the order if that
// matters.
func (s *Snapshot) scopeText(service *Service, scope *Scope) string {
	switch {
	case scope.Changing:
		return "(changing)"
	case scope.Damage != "":
		return "(damaged)"
	case scope.Length == 0:
		return "none"
	}
	counted := scope.Length != len(scope.Backends)
	var words []string
	for _, share := range scope.Backends {
		word := share.Address.String()
		if share.Local {
			word += "(local)"
		}
		if share.Terminating {
			word += "(terminating)"
		}
		if counted {
			word = fmt.Sprintf("%s*%d", word, share.Slots)
		}
		words = append(words, word)
	}
	if counted && service.Algorithm != lb.Random {
		words = append(words, "order="+s.order(scope))
	}
	return strings.Join(words, " ")
}
