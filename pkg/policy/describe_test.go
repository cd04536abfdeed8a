package policy

import (
	"net/netip"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

func TestDescriptions(t *testing.T) {
	block := &model.Block{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Except: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16")}}
	selector := model.Selector{
		{Label: "a", Operator: model.In, Values: []string{"x", ""}}, {Label: "b", Operator: model.NotIn, Values: []string{"y"}}, {Label: "c", Operator: model.Present},
		{Label: "d", Operator: model.Absent}, {Label: "e", Operator: model.Greater, Values: []string{"1"}}, {Label: "f", Operator: model.In, Values: []string{"\x1b[2J"}},
	}
	rule := &model.PolicyRule{
		Peers: []model.PolicyPeer{
			{Block: block}, {Pods: &model.PodSet{Namespace: "shop", Pods: selector}}, {Pods: &model.PodSet{}}, {Nodes: &model.Selector{}},
			{Pods: &model.PodSet{Namespaces: model.Selector{{Label: "team", Operator: model.In, Values: []string{"a"}}}}},
		},
		Ports: []model.PortSpan{{Protocol: model.TCP, First: 80, Last: 80}, {Protocol: model.UDP, First: 1, Last: 65535}, {Protocol: model.SCTP, First: 5, Last: 9}},
		Named: []model.NamedPort{{Name: "dns", Protocol: model.UDP}, {Name: "web"}},
	}
	peers := "10.0.0.0/8 except 10.1.0.0/16, 10.2.0.0/16; pods a in (x,\"\"),b notin (y),c,!d,e>1,f=\"\\x1b[2J\" in namespace shop; all pods in all namespaces; all nodes; " +
		"all pods in namespaces team=a"
	if have := strings.Join(PeerWords(rule), "; "); have != peers {
		t.Errorf("have %s\nwant %s", have, peers)
	}
	ports := `tcp 80; all udp; sctp 5-9; udp "dns"; any protocol "web"`
	if have := strings.Join(PortWords(rule), "; "); have != ports {
		t.Errorf("have %s\nwant %s", have, ports)
	}
	all := &model.PolicyRule{AnyPeer: true, AnyPort: true}
	if have := PeerWords(all)[0] + " " + PortWords(all)[0]; have != "anybody anything" {
		t.Error(have)
	}
}
