package agent

import (
	"context"
	"fmt"
	"log/slog"
	stdmaps "maps"
	"slices"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/optout"
	"fairlead.io/fairlead/pkg/reconcile"
	objects "fairlead.io/fairlead/pkg/source"
)

// netnsDir is where container runtimes keep the network namespaces of pods.
const netnsDir = "/run/netns"

// rulesOf returns the rules by which pods opt out without an annotation.
func rulesOf(cfg *config.Config) (optout.Rules, error) {
	rules, err := optout.ParseRules(cfg.OptOutRuntimes, cfg.OptOutMeshes, objects.Meshes())
	if err != nil {
		return rules, fmt.Errorf("options opt-out-runtimes and opt-out-meshes: %w", err)
	}
	rules.Proxies = len(cfg.Proxies()) > 0
	return rules, nil
}

// newCNI returns a finder of pods' network namespaces, which reads the records of the runtime's CNI
// library.
func newCNI(cfg *config.Config, host uint64, log *slog.Logger) *optout.CNI {
	return optout.NewCNI(cfg.CNICache, netnsDir, host, func() (optout.Finder, error) { return datapath.NewNetnsFinder() }, log)
}

// optOuts are the pods that have opted out of balancing at the socket.
type optOuts struct{ controller *optout.Controller }

func newOptOuts(cfg *config.Config, rules optout.Rules, store *model.Store, path *datapath.Datapath, log *slog.Logger) *optOuts {
	return &optOuts{optout.New(optout.Config{
		Store: store, Rules: rules, Table: path, Log: log,
		Identities: []optout.Identity{
			newCNI(cfg, path.HostNetns(), log),
			optout.NewCgroups(path.CgroupRoot()),
		},
	})}
}

// run keeps their rows until the context ends.
func (o *optOuts) run(ctx context.Context) error { return o.controller.Run(ctx) }

// status returns which pods have opted out, or nil until the maps exist.
func (o *optOuts) status() *optout.Status {
	if o == nil {
		return nil
	}
	status := o.controller.Status()
	return &status
}

// problems lists the problems of namespaces, sorted by name.
func (o *optOuts) problems() []model.ObjectProblem {
	if o == nil {
		return nil
	}
	found := o.controller.Problems()
	var list []model.ObjectProblem
	for _, name := range slices.Sorted(stdmaps.Keys(found)) {
		for _, p := range found[name] {
			list = append(list, model.ObjectProblem{Object: "namespace:" + name, Problem: p})
		}
	}
	return list
}

// verify adds the differences in the rows of these pods to a verification.
func (o *optOuts) verify(ctx context.Context, v *observe.Verification) error {
	if o == nil {
		return nil
	}
	found, err := o.controller.Verify(ctx, v.Repair)
	for _, d := range found {
		v.Found++
		if d.Mended {
			v.Mended++
		}
		v.Differences = append(v.Differences, reconcile.Difference{
			Kind: "optout", Where: d.Where, Want: d.Want, Have: d.Have, Mended: d.Mended,
		})
	}
	return err
}
