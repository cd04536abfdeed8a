package lb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// portsOf lists the host ports a pod gets and the reasons of its problems.
func portsOf(w *Wanted) string {
	var list []string
	for i := range w.Services {
		s := &w.Services[i]
		list = append(list, fmt.Sprintf("%s %v", s.ID, maps.BackendAddrPort(s.Backends[0])))
	}
	for _, p := range w.Problems {
		list = append(list, p.Reason)
	}
	return strings.Join(list, "; ")
}

func TestPodPorts(t *testing.T) {
	name := model.Name{Namespace: "shop", Name: "web"}
	addrs := func(texts ...string) (list []netip.Addr) {
		for _, text := range texts {
			list = append(list, netip.MustParseAddr(text))
		}
		return list
	}
	port := func(host string, port, to uint16, protocol model.Protocol) model.HostPort {
		addr, _ := netip.ParseAddr(host)
		return model.HostPort{HostIP: addr, Port: port, ContainerPort: to, Protocol: protocol}
	}
	pod := &model.Pod{Name: name, Addrs: addrs("10.1.0.9"), HostPorts: []model.HostPort{port("", 90, 9, model.TCP)}}
	attached := func(device string, addrs []netip.Addr, ports ...model.HostPort) *model.Attachment {
		return &model.Attachment{Pod: name, Device: device, Addrs: addrs, HostPorts: ports}
	}
	lost := func(texts ...string) *model.Attachment {
		return &model.Attachment{Pod: name, Device: "fl1", Addrs: addrs(texts...), Lost: true}
	}
	for _, tt := range []struct {
		name     string
		pod      *model.Pod
		attached []*model.Attachment
		runtime  bool
		want     string
	}{
		{"a Pod", pod, nil, false, "pod:shop/web:0.0.0.0:90/tcp4 10.1.0.9:9"},
		{"a Pod where the runtime tells", pod, nil, true, ""},
		{"nothing", nil, nil, false, ""},
		{"the runtime before the Pod", nil, []*model.Attachment{attached("fl1", addrs("10.1.0.1"), port("", 80, 8, model.TCP))}, true, "pod:shop/web:0.0.0.0:80/tcp4 10.1.0.1:8"},
		{"both", pod, []*model.Attachment{attached("fl1", addrs("10.1.0.1"), port("", 80, 8, model.TCP))}, false, "pod:shop/web:0.0.0.0:80/tcp4 10.1.0.1:8"},
		{
			"both families, and protocols", nil,
			[]*model.Attachment{attached("fl1", addrs("10.1.0.1", "fd00::1"), port("", 80, 8, model.UDP), port("", 80, 8, model.SCTP))}, true,
			"pod:shop/web:0.0.0.0:80/udp4 10.1.0.1:8; pod:shop/web:[::]:80/udp6 [fd00::1]:8; pod:shop/web:0.0.0.0:80/sctp4 10.1.0.1:8; pod:shop/web:[::]:80/sctp6 [fd00::1]:8",
		},
		{
			"addresses of the node", nil,
			[]*model.Attachment{attached("fl1", addrs("10.1.0.1", "fd00::1"), port("127.0.0.1", 80, 8, model.TCP), port("::1", 80, 8, model.TCP), port("192.0.2.1", 80, 8, model.TCP))}, true,
			"pod:shop/web:127.0.0.1:80/tcp4 10.1.0.1:8; pod:shop/web:[::1]:80/tcp6 [fd00::1]:8; pod:shop/web:192.0.2.1:80/tcp4 10.1.0.1:8",
		},
		{
			"one that is not the node's", nil,
			[]*model.Attachment{attached("fl1", addrs("10.1.0.1"), port("8.8.8.8", 53, 53, model.UDP), port("192.0.2.1", 53, 53, model.UDP))}, true,
			"pod:shop/web:192.0.2.1:53/udp4 10.1.0.1:53; HostIPNotLocal",
		},
		{
			"two interfaces, two addresses, the same twice", nil,
			[]*model.Attachment{
				attached("fl1", addrs("10.1.0.1", "10.1.0.2"), port("", 80, 8, model.TCP), port("", 80, 9, model.TCP)),
				attached("fl2", addrs("10.2.0.1"), port("", 80, 8, model.TCP), port("", 81, 8, model.TCP)),
			}, true,
			"pod:shop/web:0.0.0.0:80/tcp4 10.1.0.1:8; pod:shop/web:0.0.0.0:81/tcp4 10.2.0.1:8",
		},
		{
			"lost, and the Pod says which", &model.Pod{Name: name, Addrs: addrs("10.1.0.1"), HostPorts: []model.HostPort{port("", 80, 8, model.TCP)}},
			[]*model.Attachment{lost("10.1.0.1", "fd00::1")}, true,
			"pod:shop/web:0.0.0.0:80/tcp4 10.1.0.1:8; pod:shop/web:[::]:80/tcp6 [fd00::1]:8; PodRecordLost",
		},
		{
			"lost, and the Pod is another", &model.Pod{Name: name, Addrs: addrs("10.1.0.2"), HostPorts: []model.HostPort{port("", 80, 8, model.TCP)}},
			[]*model.Attachment{lost("10.1.0.1")}, true, "PodRecordLost",
		},
		{"lost, and there were none", &model.Pod{Name: name, Addrs: addrs("10.1.0.1")}, []*model.Attachment{lost("10.1.0.1")}, true, ""},
		{"lost, and the Pod is not known", nil, []*model.Attachment{lost("10.1.0.1")}, true, ""},
		{"no address of the family", nil, []*model.Attachment{attached("fl1", addrs("fd00::1"), port("127.0.0.1", 80, 8, model.TCP))}, true, ""},
	} {
		c := NewCompiler(Facts{
			Node: &model.Node{}, RuntimePorts: tt.runtime,
			Local: func(addr netip.Addr) bool { return slices.Contains(addrs("192.0.2.1"), addr) },
		})
		if got := portsOf(c.Pod(name, tt.pod, tt.attached)); got != tt.want {
			t.Errorf("%s:\n%s, want\n%s", tt.name, got, tt.want)
		}
	}
}

// A pod that asks to go unchecked without its namespace's permission gets a problem that says so.
func TestSourceCheckKept(t *testing.T) {
	for _, tt := range []struct {
		asks bool
		may  func(string) bool
		want string
	}{
		{false, nil, ""}, {true, nil, "SourceCheckKept"},
		{true, func(namespace string) bool { return namespace == "shop" }, ""},
		{true, func(namespace string) bool { return namespace != "shop" }, "SourceCheckKept"},
	} {
		name := model.Name{Namespace: "shop", Name: "web"}
		c := NewCompiler(Facts{Node: &model.Node{}, MayUncheck: tt.may})
		if got := portsOf(c.Pod(name, &model.Pod{Name: name, Unchecked: tt.asks}, nil)); got != tt.want {
			t.Errorf("asks %t: %q, want %q", tt.asks, got, tt.want)
		}
	}
}

// A pod that asks for a proxy it cannot have is told why and what follows from that.
func TestProxyOfPod(t *testing.T) {
	for _, tt := range []struct {
		pod     model.Pod
		proxies []string
		want    string
	}{
		{model.Pod{}, nil, ""}, {model.Pod{}, []string{}, ""}, {model.Pod{Proxy: "envoy"}, []string{"other", "envoy"}, ""},
		{model.Pod{Proxy: "envoy"}, []string{"other"}, "UnknownProxy"}, {model.Pod{Proxy: "envoy"}, []string{}, "UnknownProxy"},
		{model.Pod{Proxy: "envoy"}, nil, "ProxyIgnored"}, {model.Pod{Proxy: "envoy", HostNetwork: true}, []string{"envoy"}, "ProxyIgnored"},
	} {
		name := model.Name{Namespace: "shop", Name: "web"}
		c := NewCompiler(Facts{Node: &model.Node{}, Proxies: tt.proxies})
		if got := portsOf(c.Pod(name, &tt.pod, nil)); got != tt.want {
			t.Errorf("%q of %q: %q, want %q", tt.pod.Proxy, tt.proxies, got, tt.want)
		}
	}
}
