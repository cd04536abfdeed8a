package snapshot

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"net/netip"
	"text/tabwriter"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
)

// MaglevTable describes a service's Maglev table of one scope.
type MaglevTable struct {
	Service  string        `json:"service"`
	Scope    string        `json:"scope"`
	Slots    int           `json:"slots"`
	Backends []MaglevShare `json:"backends"` // by address
	// Even is how many slots each backend had if all had the same number.
	Even float64 `json:"evenSlots"`
	// Affinity says that the client's address alone determines the slot.
	Affinity bool `json:"affinity"`
	// Fingerprint is the same for tables that lead every flow to the same backend.
	Fingerprint string `json:"fingerprint"`
	Damage      string `json:"damage,omitempty"`
	Changing    bool   `json:"changing,omitempty"` // the backends are changing right now
}

// MaglevShare is one backend's share of a table.
type MaglevShare struct {
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	Local    bool           `json:"local,omitempty"` // on this node
	// Terminating says that the backend is about to go, as in Share.
	Terminating bool    `json:"terminating,omitempty"`
	Slots       int     `json:"slots"`
	Percent     float64 `json:"percent"`   // of the slots
	Deviation   float64 `json:"deviation"` // from an even share, in percent of it
}

// MaglevTables returns the Maglev tables of a service. The error says why it has none, and how to
// get one.
func MaglevTables(s *Service) ([]MaglevTable, error) {
	if s.Algorithm != lb.Maglev {
		return nil, fmt.Errorf("%s has no Maglev table: its algorithm is %s; annotate the Service with fairlead.io/algorithm=maglev, "+
			"or run the agents with --algorithm=maglev for all that name none", s.Label(), s.Algorithm)
	}
	outside := false
	for _, f := range s.Frontends {
		outside = outside || f.Row.Kind != maps.ClusterIP
	}
	if !outside {
		return nil, fmt.Errorf("%s has no Maglev table: it is reached by its ClusterIP alone, and sockets choose a slot at random; a NodePort, "+
			"an external IP or a load balancer gives it one", s.Label())
	}
	var tables []MaglevTable
	most := 0
	for _, scope := range s.Scopes() {
		most = max(most, len(scope.Backends))
		if len(scope.Backends) > 1 || scope.Damage != "" {
			tables = append(tables, maglevTable(s, scope))
		}
	}
	switch {
	case len(tables) > 0:
		return tables, nil
	case most == 0:
		return nil, fmt.Errorf("%s has no Maglev table: it has no usable backend; \"fairlead service get\" shows its endpoints", s.Label())
	}
	return nil, fmt.Errorf("%s has no Maglev table: it has one backend, which gets every flow", s.Label())
}

func maglevTable(s *Service, scope NamedScope) MaglevTable {
	t := MaglevTable{
		Service: s.Label(), Scope: scope.Name, Slots: scope.Length, Affinity: s.AffinitySeconds > 0, Fingerprint: fingerprint(s, scope.Scope),
		Damage: scope.Damage, Changing: scope.Changing, Backends: []MaglevShare{},
	}
	if len(scope.Backends) == 0 {
		return t
	}
	t.Even = float64(scope.Length) / float64(len(scope.Backends))
	for _, share := range scope.Backends {
		t.Backends = append(t.Backends, MaglevShare{
			Address: share.Address, Protocol: share.Protocol, Local: share.Local, Terminating: share.Terminating, Slots: share.Slots,
			Percent: 100 * float64(share.Slots) / float64(scope.Length), Deviation: 100 * (float64(share.Slots)/t.Even - 1),
		})
	}
	return t
}

// fingerprint is a digest of everything that leads from a flow's hash to its backend: the backend
// of each slot, but not its place in the maps, and what is hashed.
func fingerprint(s *Service, scope *Scope) string {
	sum := sha256.New()
	byClient := byte(0)
	if s.AffinitySeconds > 0 {
		byClient = 1
	}
	sum.Write([]byte{byte(s.Algorithm), byClient})
	rows := map[uint32][]byte{}
	for _, share := range scope.Backends {
		addr := share.Address.Addr().As16()
		rows[share.Backend] = append(binary.BigEndian.AppendUint16(addr[:], share.Address.Port()), share.Protocol...)
	}
	for _, backend := range scope.Slots {
		sum.Write(rows[backend])
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// WriteMaglev writes a table as text. The seed is the agent's description of its hash, or empty if
// no agent answers.
func WriteMaglev(w io.Writer, t *MaglevTable, seed string) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "%s, scope %s\n", t.Service, t.Scope)
	lines := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(lines, "  fingerprint\t%s\n", t.Fingerprint)
	if seed != "" {
		fmt.Fprintf(lines, "  hash seed\t%s\n", seed)
	}
	fmt.Fprintf(lines, "  slots\t%d for %d backends, %.1f each\n", t.Slots, len(t.Backends), t.Even)
	if len(t.Backends) > 0 {
		fmt.Fprintf(lines, "  deviation\t%s\n", t.spread())
	}
	if t.Affinity {
		fmt.Fprintf(lines, "  affinity\tthe client's address alone leads to the slot\n")
	}
	if err := lines.Flush(); err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\n  BACKEND\tSLOTS\tSHARE\tDEVIATION\tNODE\tSTATE")
	for _, b := range t.Backends {
		where, state := "-", "-"
		if b.Local {
			where = "this"
		}
		if b.Terminating {
			state = "terminating"
		}
		fmt.Fprintf(table, "  %s/%s\t%d\t%.2f%%\t%+.1f%%\t%s\t%s\n", b.Address, b.Protocol, b.Slots, b.Percent, b.Deviation, where, state)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if t.Changing {
		fmt.Fprintf(out, "\n  The backends are changing right now: ask again.\n")
	}
	if t.Damage != "" {
		fmt.Fprintf(out, "\n  damage: %s\n", t.Damage)
	}
	return out.Flush()
}

// spread says how far the shares are from an even one.
func (t *MaglevTable) spread() string {
	least, most, squares := t.Backends[0].Deviation, t.Backends[0].Deviation, 0.0
	for _, b := range t.Backends {
		least, most, squares = min(least, b.Deviation), max(most, b.Deviation), squares+b.Deviation*b.Deviation
	}
	return fmt.Sprintf("from an even share %+.1f%% to %+.1f%%, standard deviation %.1f%%", least, most,
		math.Sqrt(squares/float64(len(t.Backends))))
}
