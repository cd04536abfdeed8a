package debian

import (
	"os/exec"
	"strings"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

// On every fetched kernel, modules follow the modules that they need.
func TestModules(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		rig.Lacking(t, "kernels", "no busybox found")
	}
	pins, err := Pins()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, pin := range pins {
		kernel, err := Cached(pin)
		if err != nil {
			continue
		}
		seen++
		modules, err := kernel.Modules(busybox, "vxlan", "veth", "af_packet", "udp_tunnel")
		if err != nil {
			t.Errorf("%s: %v", pin.Kernel, err)
			continue
		}
		var names []string
		for _, m := range modules {
			names = append(names, m.Name)
		}
		order := " " + strings.Join(names, " ") + " "
		tunnel, vxlan := strings.Index(order, " udp_tunnel "), strings.Index(order, " vxlan ")
		if tunnel < 0 || vxlan < tunnel || strings.Count(order, " udp_tunnel ") != 1 || !strings.Contains(order, " veth ") {
			t.Errorf("%s: modules %v", pin.Kernel, names)
		}
		if strings.Contains(order, " af_packet ") {
			t.Errorf("%s: af_packet is built in, but listed among the modules", pin.Kernel)
		}
		if _, err := kernel.Modules(busybox, "no_such_module"); err == nil || !strings.Contains(err.Error(), "no_such_module") {
			t.Errorf("%s: a module that does not exist: %v", pin.Kernel, err)
		}
	}
	if seen == 0 {
		rig.Lacking(t, "kernels", "no kernel has been fetched (go run ./test/kernels -fetch)")
	}
}
