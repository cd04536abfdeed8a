package config

import (
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

func TestPorts(t *testing.T) {
	for _, tt := range []struct {
		args  []string
		wrong string // part of the error; "" for none
	}{
		{[]string{"--nodeport-range=1-65535"}, ""},
		{[]string{"--nodeport-range=30000"}, ""},
		{[]string{"--nodeport-range=30000 - 30001"}, ""},
		{[]string{"--nodeport-range="}, "not a range of ports"},
		{[]string{"--nodeport-range=-"}, "not a range of ports"},
		{[]string{"--nodeport-range=0-5"}, "not a range of ports"},
		{[]string{"--nodeport-range=40000-30000"}, "not a range of ports"},
		{[]string{"--nodeport-range=1-65536"}, "not a range of ports"},
		{[]string{"--nodeport-range=a-b"}, "not a range of ports"},
		{[]string{"--nodeport-range=1-2-3"}, "not a range of ports"},
		{[]string{"--snat-ports="}, ""},
		{[]string{"--snat-ports=1024-29999"}, ""},
		{[]string{"--snat-ports=1023-2000"}, "option snat-ports: 1023-2000 begins with ports that are the node's own: begin at 1024"},
		{[]string{"--snat-ports=5-4"}, "option snat-ports: \"5-4\" from flag is not a range of ports"},
		{[]string{"--snat-ports=29000-30000"}, "option snat-ports: 29000-30000 overlaps with the NodePorts, 30000-32767"},
		{[]string{"--snat-ports=32767-40000"}, "overlaps with the NodePorts"},
		{[]string{"--snat-ports=29000-30000", "--nodeport-range=31000-32000"}, ""},
		{[]string{"--snat-ports=60000-61000"}, ""},
		{[]string{"--snat-ports=60000-61000", "--routing=vxlan"}, "option snat-ports: 60000-61000 overlaps with 61000-65535, from which nodes send through the tunnel"},
		{[]string{"--nodeport-range=65000-65535", "--routing=vxlan"}, "option nodeport-range: 65000-65535 overlaps with 61000-65535"},
		{[]string{"--snat-ports=60000-60999", "--routing=vxlan"}, ""},
		{[]string{"--nodeport-addresses=192.0.2.0/24, 2001:db8::/64"}, ""},
		{[]string{"--nodeport-addresses="}, "neither primary nor a list of networks"},
		{[]string{"--nodeport-addresses=primary,192.0.2.0/24"}, "neither primary nor a list of networks"},
		{[]string{"--nodeport-addresses=999.1.1.1/99"}, "neither primary nor a list of networks"},
	} {
		_, _, err := environment{args: tt.args}.load(t)
		if (err == nil) != (tt.wrong == "") || err != nil && !strings.Contains(err.Error(), tt.wrong) {
			t.Errorf("%q: %v, want %q", tt.args, err, tt.wrong)
		}
	}
	cfg, _, err := environment{args: []string{"--snat-ports=1024-2047", "--nodeport-range=30000"}}.load(t)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.NodePorts() != (model.PortRange{First: 30000, Last: 30000}) || cfg.SourcePorts() != (model.PortRange{First: 1024, Last: 2047}) {
		t.Errorf("%v, %v", cfg.NodePorts(), cfg.SourcePorts())
	}
}
