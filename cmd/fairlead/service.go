package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/snapshot"
)

// serviceView is a service as the commands show it: the content of the maps and, if an agent
// answers, the problems of the object.
type serviceView struct {
	snapshot.Service
	Problems []model.ObjectProblem `json:"problems,omitempty"`
}

func newServiceCommand(inv *invocation) *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "List the services in the maps",
		Long: `List the services in the maps: every port of a Service and every host port of a pod, for each family, with its frontends
and the number of ready backends.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, views, err := inv.services(cmd)
			if err != nil {
				return err
			}
			return inv.print(views, func(w io.Writer) error { return writeServices(w, views) })
		},
	}
	get := &cobra.Command{
		Use:   "get NAME",
		Short: "Show one service with its backends",
		Long: `Show one service with its backends. NAME is a name as in "fairlead service list", such as shop/web:http/tcp4, or only the
object's name, such as shop/web, for all of its ports.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pinned, views, err := inv.services(cmd)
			if err != nil {
				return err
			}
			views = slices.DeleteFunc(views, func(v serviceView) bool { return !named(v.Name, args[0]) })
			if len(views) == 0 {
				return fmt.Errorf("no service %q in the maps: \"fairlead service list\" shows what is there", args[0])
			}
			return inv.print(views, func(w io.Writer) error { return writeServiceDetails(w, pinned, views) })
		},
	}
	return noun("service", "Show the services in the maps", list, get)
}

// services returns the content of the maps, with the problems that the agent knows of.
func (inv *invocation) services(cmd *cobra.Command) (*mapstats.Pinned, []serviceView, error) {
	cfg, pinned, err := inv.pins(cmd)
	if err != nil {
		return nil, nil, err
	}
	problems, err := problemsByObject(cmd.Context(), client(cfg).Problems)
	if err != nil {
		return nil, nil, err
	}
	views := make([]serviceView, 0, len(pinned.Services))
	for _, s := range pinned.Services {
		views = append(views, serviceView{s, problems[objectOf(s.Name)]})
	}
	return pinned, views, nil
}

// problemsByObject asks the agent for problems. It is not an error if no agent answers.
func problemsByObject(ctx context.Context, ask func(context.Context) ([]model.ObjectProblem, error)) (map[string][]model.ObjectProblem, error) {
	list, err := ask(ctx)
	if err != nil && !unreachable(err) {
		return nil, fmt.Errorf("read the problems of objects from the agent: %w", err)
	}
	problems := map[string][]model.ObjectProblem{}
	for _, p := range list {
		problems[p.Object] = append(problems[p.Object], p)
	}
	return problems, nil
}

// objectOf returns the object of a service's name: "shop/web" for "shop/web:http/tcp4", and
// "pod:shop/web" for "pod:shop/web:0.0.0.0:80/tcp4".
func objectOf(name string) string {
	slash := strings.IndexByte(name, '/')
	if slash < 0 {
		return name
	}
	if end := strings.IndexAny(name[slash+1:], ":/"); end >= 0 {
		return name[:slash+1+end]
	}
	return name
}

func named(name, wanted string) bool {
	return name != "" && (name == wanted || objectOf(name) == wanted)
}

func writeServices(w io.Writer, views []serviceView) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SERVICE\tTYPE\tFRONTENDS\tREADY\tLOCAL\tALGORITHM\tPROBLEMS")
	for _, v := range views {
		var kinds, frontends, reasons []string
		for _, f := range v.Frontends {
			kinds = append(kinds, f.Kind)
			frontends = append(frontends, f.Text())
		}
		for _, p := range v.Problems {
			reasons = append(reasons, p.Reason)
		}
		ready, local := "-", "-"
		if v.UsesAll() {
			ready = fmt.Sprint(len(v.All.Backends))
		}
		if v.UsesLocal() {
			local = fmt.Sprint(len(v.Local.Backends))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(v.Name, "(unnamed)"), joined(slices.Compact(kinds)),
			joined(frontends), ready, local, v.Algorithm, joined(slices.Compact(reasons)))
	}
	return table.Flush()
}

func joined(words []string) string { return cmp.Or(strings.Join(words, ","), "-") }

func writeServiceDetails(w io.Writer, pinned *mapstats.Pinned, views []serviceView) error {
	for _, v := range views {
		if err := pinned.WriteService(w, &v.Service); err != nil {
			return err
		}
		for _, scope := range []struct {
			name string
			snapshot.Scope
		}{{"all", v.All}, {"local", v.Local}} {
			if scope.Damage != "" {
				fmt.Fprintf(w, "  damage in %s: %s\n", scope.name, scope.Damage)
			}
		}
		for _, p := range v.Problems {
			fmt.Fprintf(w, "  problem %s: %s\n", p.Reason, p.Message)
		}
	}
	return nil
}
