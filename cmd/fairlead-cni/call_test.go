package main

import (
	"errors"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"fairlead.io/fairlead/pkg/cni"
)

func TestPodOf(t *testing.T) {
	for args, want := range map[string]cni.Pod{
		"": {}, ";;=;": {}, "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=1-2": {Namespace: "shop", Name: "web", UID: "1-2"},
		"K8S_POD_NAME=a=b": {Name: "a=b"}, "K8S_POD_NAME": {},
	} {
		if got := podOf(args); got != want {
			t.Errorf("%q: %+v, want %+v", args, got, want)
		}
	}
}

// Whatever the runtime passes, the plugin's errors have a code of the specification.
func FuzzCall(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"pods","socket":"/run/x","runtimeConfig":{"ips":["10.1.0.1/24","fd00::1"],"mac":"02:00:00:00:00:01",
		"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"tcp"}],"bandwidth":{"ingressRate":1}}}`), "K8S_POD_NAME=web")
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"pods","prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}],
		"ips":[{"interface":0,"address":"10.1.0.1/24"},{"interface":7,"address":"10.1.0.1/24"}]}}`), "")
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		c, err := newCall(&skel.CmdArgs{ContainerID: "c", IfName: "eth0", Args: args, StdinData: stdin}, 0)
		if err != nil {
			requireCode(t, err)
			return
		}
		if _, _, err := c.config.asked(); err != nil {
			requireCode(t, err)
		}
		previous, err := c.previous()
		if err != nil {
			requireCode(t, err)
			return
		}
		if previous != nil {
			if _, err := c.addressesOf(previous); err != nil {
				requireCode(t, err)
			}
		}
		c.describe(&cni.Device{Index: 1, Name: "x"})
	})
}

func requireCode(t *testing.T, err error) {
	t.Helper()
	var refusal *types.Error
	if !errors.As(err, &refusal) || refusal.Code == 0 || refusal.Code == types.ErrInternal {
		t.Errorf("error without a usable code: %v", err)
	}
}
