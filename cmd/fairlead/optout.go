package main

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

// newOptOutController returns the controller of the pods that have opted out of balancing at the socket.
func newOptOutController(cfg *config.Config, rules optout.Rules, store *model.Store, path *datapath.Datapath, log *slog.Logger) *optout.Keeper {
	return optout.New(optout.Config{
		Store: store, Rules: rules, Table: path, Log: log,
		Identities: []optout.Identity{
			newCNI(cfg, path.HostNetns(), log),
			optout.NewCgroups(path.CgroupRoot()),
		},
	})
}

func (a *agent) optOutController() *optout.Keeper {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.optOut
}

// optOuts returns how many pods have opted out, or nil until the maps exist.
func (a *agent) optOuts() *optout.Status {
	k := a.optOutController()
	if k == nil {
		return nil
	}
	status := k.Status()
	return &status
}

func optOutStatus(from *optout.Status) *observe.OptOutStatus {
	if from == nil {
		return nil
	}
	s := &observe.OptOutStatus{Pods: from.Pods, Waiting: from.Waiting, NotCovered: from.NotCovered}
	for _, u := range from.Uncovered {
		s.Uncovered = append(s.Uncovered, observe.UncoveredPod{Pod: u.Pod.String(), Why: u.Why, Reason: u.Reason})
	}
	return s
}

// namespaceProblems lists the problems of namespaces, sorted by name.
func (a *agent) namespaceProblems() []observe.Problem {
	k := a.optOutController()
	if k == nil {
		return nil
	}
	found := k.Problems()
	var list []observe.Problem
	for _, name := range slices.Sorted(stdmaps.Keys(found)) {
		for _, p := range found[name] {
			list = append(list, observe.Problem{Object: "namespace:" + name, Reason: p.Reason, Message: p.Message})
		}
	}
	return list
}

// verifyOptOuts adds the differences in the rows of opted-out pods to a verification.
func (a *agent) verifyOptOuts(ctx context.Context, v *observe.Verification) error {
	k := a.optOutController()
	if k == nil {
		return nil
	}
	found, err := k.Verify(ctx, v.Repair)
	for _, d := range found {
		v.Found++
		if d.Mended {
			v.Mended++
		}
		v.Differences = append(v.Differences, observe.Difference{
			Kind: "optout", Where: d.Where, Want: d.Want, Have: d.Have, Mended: d.Mended,
		})
	}
	return err
}
