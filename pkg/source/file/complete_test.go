package file

import (
	"net/netip"
	"testing"
	"unique"

	"fairlead.io/fairlead/pkg/model"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestDefaults checks that plain manifests mean what they would mean to an API server.
func TestDefaults(t *testing.T) {
	text := dedent(`
	apiVersion: v1
	kind: Service
	metadata:
	  name: web
	spec:
	  clusterIPs: [fd00::a, 10.96.0.10]
	  sessionAffinity: ClientIP
	  externalIPs: [203.0.113.1]
	  ports:
	  - port: 80
	    targetPort: http
	---
	apiVersion: discovery.k8s.io/v1
	kind: EndpointSlice
	metadata:
	  name: web-1
	  labels: {kubernetes.io/service-name: web}
	  annotations: {fairlead.io/weight: "3"}
	addressType: IPv4
	ports:
	- port: 8080
	endpoints:
	- addresses: [10.244.0.5]
	  nodeName: n1
	`)
	objects, err := parse("a.yaml", []byte(text), target{self: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	var got []any
	for _, o := range objects {
		got = append(got, o.value)
	}
	want := []any{
		&model.Service{
			Name:            model.Name{Namespace: "default", Name: "web"},
			ClusterIPs:      []netip.Addr{netip.MustParseAddr("fd00::a"), netip.MustParseAddr("10.96.0.10")},
			ExternalIPs:     []netip.Addr{netip.MustParseAddr("203.0.113.1")},
			Ports:           []model.Port{{Port: 80, Protocol: model.TCP}},
			AffinitySeconds: 10800,
		},
		&model.Slice{
			Name:    model.Name{Namespace: "default", Name: "web-1"},
			Service: "web",
			Family:  model.IPv4,
			Weight:  3,
			Ports:   []model.SlicePort{{Port: 8080, Protocol: model.TCP}},
			Endpoints: []model.Endpoint{{
				Addr: netip.MustParseAddr("10.244.0.5"), Node: unique.Make("n1"), Conditions: model.Ready | model.Serving,
			}},
		},
	}
	equal := cmp.Options{cmpopts.EquateComparable(netip.Addr{}, model.Label{}), cmpopts.EquateEmpty()}
	if diff := cmp.Diff(want, got, equal); diff != "" {
		t.Errorf("objects differ (-want +got):\n%s", diff)
	}
}

// TestServiceWithoutClusterIP covers Services for which nothing allocates an address.
func TestServiceWithoutClusterIP(t *testing.T) {
	tests := []struct {
		name    string
		spec    string
		ignored bool
		reason  string
	}{
		{"headless", "{clusterIP: None, ports: [{port: 80}]}", true, ""},
		{"headless by the list", "{clusterIPs: [None], ports: [{port: 80}]}", true, ""},
		{"no address at all", "{ports: [{port: 80}]}", false, "NoAddress"},
		{"an external IP", "{externalIPs: [203.0.113.1], ports: [{port: 80}]}", false, ""},
		{"families say what the addresses say", "{clusterIPs: [10.0.0.1, fd00::1], ipFamilies: [IPv4], ports: [{port: 80}]}", false, ""},
		{"families contradict", "{clusterIP: 10.0.0.1, ipFamilies: [IPv6], externalIPs: [203.0.113.1], ports: [{port: 80}]}", false, "InvalidClusterIP"},
		{"node port without a number", "{type: NodePort, clusterIP: 10.0.0.1, ports: [{port: 80}]}", false, "NoNodePort"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			objects, err := parse("a.yaml", []byte("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: "+test.spec), target{})
			if err != nil {
				t.Fatal(err)
			}
			service, ok := objects[0].value.(*model.Service)
			if ok == test.ignored {
				t.Fatalf("ignored: %v, want %v", !ok, test.ignored)
			}
			reason := ""
			if ok && len(service.Problems) > 0 {
				reason = service.Problems[0].Reason
			}
			if reason != test.reason {
				t.Errorf("got problem %q, want %q", reason, test.reason)
			}
		})
	}
}
