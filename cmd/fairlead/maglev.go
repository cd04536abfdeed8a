package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/snapshot"
)

// maglevView is what the command shows: the tables of one port in each family, and the agent's hash
// seed.
type maglevView struct {
	// HashSeed is "none", or a digest; empty if no agent answers.
	HashSeed string                 `json:"hashSeed,omitempty"`
	Tables   []snapshot.MaglevTable `json:"tables"`
}

func newMaglevCommand(inv *invocation) *cobra.Command {
	show := &cobra.Command{
		Use:   "show SERVICE",
		Short: "Show a service's Maglev table: its size, each backend's share, its fingerprint",
		Long: `Show the Maglev table of a service: how many slots it has, how many of them each backend has, how far that is from an
even share, and which backends are on this node or draining. SERVICE is NAMESPACE/NAME, with :PORT (the port's name) if
the Service has several ports; or a name as in "fairlead service list", such as shop/web:http/tcp4. Without the last part,
the tables of both families are shown. A Service with a traffic policy of Local also has a table of only this node's
backends: scope local.

The fingerprint is a digest of the table. For flows that they do not remember, nodes with the same fingerprint and the
same hash seed choose the same backends, in the scope of that table. The seed is shown as a digest too, which needs an
agent.

The maps hold the result of weights (fairlead.io/weight), not the weights themselves, so the deviation is from a share
that is equal for all backends. Backends that are not ready or are terminating have no slots and are not shown. Only if
there are no others, terminating backends that still serve have all slots.`,
		Example: `  fairlead maglev show shop/web
  fairlead maglev show shop/web:http
  fairlead maglev show shop/web:http/tcp6 -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, pinned, err := inv.pins(cmd)
			if err != nil {
				return err
			}
			view, err := maglevOf(pinned.Services, args[0])
			if err != nil {
				return err
			}
			if view.HashSeed, err = hashSeed(cmd.Context(), cfg); err != nil {
				return err
			}
			if err := inv.print(view, view.write); err != nil {
				return err
			}
			return view.damage()
		},
	}
	return noun("maglev", "Show Maglev tables, by which nodes agree on backends", show)
}

// maglevOf returns the tables of the one port that name stands for, in each family.
func maglevOf(services []snapshot.Service, name string) (*maglevView, error) {
	found, err := oneService(services, name)
	if err != nil {
		return nil, err
	}
	view := &maglevView{}
	var missing error
	for i := range found {
		tables, err := snapshot.MaglevTables(&found[i])
		if err != nil {
			missing = err
		}
		view.Tables = append(view.Tables, tables...)
	}
	if len(view.Tables) == 0 {
		return nil, missing
	}
	return view, nil
}

// oneService returns the services of one port of an object, one per family.
func oneService(services []snapshot.Service, name string) ([]snapshot.Service, error) {
	var found []snapshot.Service
	var ports []string
	for _, s := range services {
		port := portOf(s.Name)
		if s.Name == "" || name != s.Name && name != port && name != unprotocoled(port) && name != objectOf(s.Name) {
			continue
		}
		found = append(found, s)
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	switch {
	case len(found) == 0 && !strings.Contains(name, "/"):
		return nil, config.UsageError{Err: fmt.Errorf("no service %q in the maps: write NAMESPACE/NAME, such as default/%s", name, name)}
	case len(found) == 0:
		return nil, fmt.Errorf("no service %q in the maps: \"fairlead service list\" shows what is there", name)
	case len(ports) > 1:
		return nil, config.UsageError{Err: fmt.Errorf("%s has several ports: name one of %s", name, strings.Join(ports, ", "))}
	}
	return found, nil
}

// portOf returns a service's name without the family: "shop/web:http/tcp" for "shop/web:http/tcp4".
func portOf(name string) string { return strings.TrimRight(name, "46") }

// unprotocoled returns the result of portOf without the protocol.
func unprotocoled(port string) string {
	if at := strings.LastIndexByte(port, '/'); at >= 0 {
		return port[:at]
	}
	return port // only a damaged row has such a name
}

// hashSeed asks the agent for its hash seed and returns a digest of it, or "" if no agent answers.
func hashSeed(ctx context.Context, cfg *config.Config) (string, error) {
	origins, err := client(cfg).Config(ctx)
	if unreachable(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the agent's hash seed: %w", err)
	}
	for _, o := range origins {
		if o.Name == "hash-seed" && o.Value != "" {
			sum := sha256.Sum256([]byte(o.Value))
			return hex.EncodeToString(sum[:4]), nil
		}
	}
	return "none", nil
}

func (v *maglevView) write(w io.Writer) error {
	for i := range v.Tables {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := snapshot.WriteMaglev(w, &v.Tables[i], v.HashSeed); err != nil {
			return err
		}
	}
	return nil
}

func (v *maglevView) damage() error {
	var findings []string
	for _, t := range v.Tables {
		if t.Damage != "" {
			findings = append(findings, fmt.Sprintf("service %s, scope %s: %s", t.Service, t.Scope, t.Damage))
		}
	}
	if findings == nil {
		return nil
	}
	return degradedError{findings}
}
