package podnetwork

import (
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/config"
)

// TestWhyUsual checks that if the way of packets does not allow a larger size, they keep the usual
// one.
func TestWhyUsual(t *testing.T) {
	for _, test := range []struct {
		cfg        config.Config
		why4, why6 string
	}{
		{config.Config{Routing: "native", DSR: "off", HostRouting: "bpf"}, "", ""},
		{config.Config{Routing: "vxlan", DSR: "off", HostRouting: "bpf"}, "--routing=vxlan", "--routing=vxlan"},
		{config.Config{Routing: "none", DSR: "geneve", HostRouting: "bpf"}, "--dsr=geneve", "--dsr=geneve"},
		{config.Config{Routing: "native", DSR: "off", HostRouting: "stack"}, "", "--host-routing=stack"},
	} {
		why4, why6 := WhyUsual(&test.cfg)
		if !strings.Contains(why4, test.why4) || !strings.Contains(why6, test.why6) || (why4 == "") != (test.why4 == "") || (why6 == "") != (test.why6 == "") {
			t.Errorf("%+v: %q, %q", test.cfg, why4, why6)
		}
	}
}
