package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/cluster/plan"
)

func TestBridge(t *testing.T) {
	tests := map[plan.Family]struct{ ranges, routes string }{
		plan.IPv4: {"[[map[subnet:10.201.2.0/24]]]", "[map[dst:0.0.0.0/0]]"},
		plan.IPv6: {"[[map[subnet:fd00:10:201:2::/64]]]", "[map[dst:::/0]]"},
		plan.Dual: {"[[map[subnet:10.201.2.0/24]] [map[subnet:fd00:10:201:2::/64]]]", "[map[dst:0.0.0.0/0] map[dst:::/0]]"},
	}
	for family, want := range tests {
		text, err := Bridge(family.NodePods(2))
		if err != nil {
			t.Fatal(err)
		}
		var have struct {
			Plugins []struct {
				Type   string
				IPMasq bool
				IPAM   struct{ Ranges, Routes any }
			}
		}
		if err := json.Unmarshal(text, &have); err != nil {
			t.Fatal(err)
		}
		bridge := have.Plugins[0]
		if bridge.Type != "bridge" || bridge.IPMasq || fmt.Sprint(bridge.IPAM.Ranges) != want.ranges || fmt.Sprint(bridge.IPAM.Routes) != want.routes {
			t.Errorf("%s: %+v", family, bridge)
		}
	}
}

func TestMasquerade(t *testing.T) {
	const four = "\t\tip saddr 10.201.0.0/16 ip daddr != { 10.201.0.0/16, 10.200.0.0/24 } oifname eth0 masquerade\n"
	const six = "\t\tip6 saddr fd00:10:201::/48 ip6 daddr != { fd00:10:201::/48, fd00:10:200::/64 } oifname eth0 masquerade\n"
	for family, want := range map[plan.Family]string{plan.IPv4: four, plan.IPv6: six, plan.Dual: four + six} {
		_, rules, _ := strings.Cut(Masquerade(family), "+ 10;\n")
		if diff := cmp.Diff(want+"\t}\n}\n", rules); diff != "" {
			t.Errorf("%s (-want +have):\n%s", family, diff)
		}
	}
}

func TestKubelet(t *testing.T) {
	for family, dns := range map[plan.Family]string{plan.IPv4: "10.202.0.10", plan.Dual: "10.202.0.10", plan.IPv6: "fd00:10:202::a"} {
		text, err := Kubelet(KubeletConfig{Family: family, CgroupRoot: "/fl-node1", ClientCA: "/ca.crt"})
		if err != nil {
			t.Fatal(err)
		}
		var have struct {
			CgroupRoot               string
			ClusterDNS               []string
			ContainerRuntimeEndpoint string
			Authentication           struct{ X509 struct{ ClientCAFile string } }
		}
		if err := json.Unmarshal(text, &have); err != nil {
			t.Fatal(err)
		}
		if have.CgroupRoot != "/fl-node1" || len(have.ClusterDNS) != 1 || have.ClusterDNS[0] != dns ||
			have.Authentication.X509.ClientCAFile != "/ca.crt" || have.ContainerRuntimeEndpoint != "unix:///run/containerd/containerd.sock" {
			t.Errorf("%s: %+v", family, have)
		}
	}
}

// What a patch says is what the rig's own kubelets are told, and no more than what namespaces force.
func TestKubeletPatch(t *testing.T) {
	patch, err := KubeletPatch("/fl-node1")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := Kubelet(KubeletConfig{Family: plan.IPv4, CgroupRoot: "/fl-node1", ClientCA: "/ca.crt"})
	if err != nil {
		t.Fatal(err)
	}
	var have, all map[string]any
	if err := errors.Join(json.Unmarshal(patch, &have), json.Unmarshal(whole, &all)); err != nil {
		t.Fatal(err)
	}
	for key, value := range have {
		if !cmp.Equal(value, all[key]) {
			t.Errorf("%s is %v and %v", key, value, all[key])
		}
	}
	if have["cgroupRoot"] != "/fl-node1" || have["clusterDNS"] != nil || have["kind"] != nil {
		t.Errorf("%+v", have)
	}
}

func TestContainerd(t *testing.T) {
	text := Containerd("registry.example/pause:1")
	for _, want := range []string{"sandbox_image = \"registry.example/pause:1\"\n", "address = \"" + RuntimeSocket + "\"\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestInitIsForTheFirstProcess(t *testing.T) {
	if err := Init("node1", t.TempDir(), nil); err == nil {
		t.Error("a test binary laid out a node")
	}
}
