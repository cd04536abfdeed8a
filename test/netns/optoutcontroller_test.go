package netns

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/optout"
	"fairlead.io/fairlead/test/rig"
)

const podUID = "0f3a5b7c-1b0e-4b64-8c54-0d5f4f2b1a10"

// runOptOut runs the controller of the pods' opt-outs, for a runtime that leaves its files in results and
// netns.
func (n *node) runOptOut(store *model.Store, results, netns string) {
	n.t.Helper()
	own, err := cookieHere()
	if err != nil {
		n.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(n.t.Output(), nil))
	controller := optout.New(optout.Config{Store: store, Table: n, Log: log, Identities: []optout.Identity{
		optout.NewCNI(results, netns, own, findNetns, log), optout.NewCgroups(n.cgroup.Path()),
	}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- controller.Run(ctx) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
}

// attach does what a runtime does when a pod gets its network: it mounts the namespace on a file,
// and writes the pod's CNI result to another.
func attach(t *testing.T, ns *rig.Netns, pod *model.Pod, results, netns string) {
	t.Helper()
	path := filepath.Join(netns, "cni-1")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), unix.Mount(ns.Path(), path, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	content, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "netns": "/var/run/netns/cni-1", "cniArgs": [][]string{
			{"K8S_POD_NAMESPACE", pod.Namespace}, {"K8S_POD_NAME", pod.Name.Name}, {"K8S_POD_UID", pod.UID},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(results, "net-c1-eth0"), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func findNetns() (optout.Finder, error) { return datapath.NewNetnsFinder() }

// A pod that existed before the agent, under any CNI plugin, opts out and back in while it runs: by
// its network namespace where the kernel can identify it, otherwise by its cgroup.
func TestRunningPodOptsOut(t *testing.T) {
	n := newNode(t)
	n.add(service{vip: vip4, backends: back4[:1]})
	n.add(service{vip: vip6, backends: []netip.AddrPort{back6}})
	_, container := podCgroups(t, n.cgroup, "kubepods", "burstable", "pod"+podUID)
	ns := rig.NewNetns(t, "pod")
	p := &pod{t: t, process: rig.NewChild(t, container, ns, "pod")}
	p.listen(untouched(t, ns)...)
	p.listen(back4[0], back6)

	store, results, netns := model.NewStore("node"), t.TempDir(), t.TempDir()
	n.runOptOut(store, results, netns)
	says := func(what model.SocketLB) *model.Pod {
		return &model.Pod{
			Name: model.Name{Namespace: "shop", Name: "web"}, UID: podUID, LocalUID: podUID, SocketLB: what,
			Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.9")},
		}
	}
	attach(t, ns, says(model.SocketLBUnset), results, netns)
	soon := func(what string, balanced bool) {
		t.Helper()
		watch, began := rig.NewStopwatch(t), time.Now()
		want := map[netip.AddrPort]netip.AddrPort{vip4: vip4, vip6: vip6}
		if balanced {
			want = map[netip.AddrPort]netip.AddrPort{vip4: back4[0], vip6: back6}
		}
		for vip, server := range want {
			for p.do(order{Dial: vip}).Server != server {
				if time.Since(began) > 10*time.Second {
					t.Fatalf("%s: %s is not answered by %s", what, vip, server)
				}
			}
		}
		took := watch.Took()
		t.Logf("%s after %s", what, took)
		if took > time.Second {
			t.Errorf("%s after %s", what, took)
		}
	}
	soon("at first", true)
	store.SetPod(says(model.SocketLBOff))
	soon("opted out", false)
	own, err := cookieHere()
	if err != nil {
		t.Fatal(err)
	}
	cni := optout.NewCNI(results, netns, own, findNetns, slog.Default())
	cni.Refresh()
	if _, err := cni.Find(says(model.SocketLBOff)); err != nil {
		t.Logf("identified by its cgroup, because: %v", err)
	}
	rows, err := n.Optouts()
	if err != nil {
		t.Fatal(err)
	}
	for key := range rows {
		t.Logf("identified by kind %d", key.Kind)
		if key.Kind == maps.OptoutNetns && key.Id != netnsCookie(t, ns) {
			t.Errorf("identified by cookie %d, want %d", key.Id, netnsCookie(t, ns))
		}
	}
	store.ReplaceServices(nil)
	store.ReplaceSlices(nil)
	store.ReplaceNodes(nil)
	store.ReplaceNamespaces(nil)
	store.ReplacePods([]*model.Pod{says(model.SocketLBOn)})
	soon("opted in", true)
}
