package podnet

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/test/rig"
)

// initialize runs "fairlead init" with these flags, as the step before an agent does.
func (h *oneNodeWithAgent) initialize(flags ...string) {
	h.t.Helper()
	args := append([]string{filepath.Join(command.in(h.t), "fairlead"), "init", "--devices=none", "--cgroup-root=" + h.cgroup.Path()}, append(flags, h.flags...)...)
	rig.Child(h.t, nil, h.ns, "fairlead", args...)
}

// switches checks that pods are kept to their rates exactly while the node's agent is told so,
// across three agents, that a connection on which a pod sends meanwhile does not end, and that the
// node is as before when rates are off.
func (d *oneNodeWithProxies) switches(t *testing.T) {
	needFq(t)
	const rate = 10e6 / 8
	others := slices.DeleteFunc(slices.Clone(d.agents), func(flag string) bool {
		return strings.HasPrefix(flag, "--bandwidth") || strings.HasPrefix(flag, "--bbr")
	})
	// On this machine it may already have the value that init sets.
	d.sets(t, d.ns, "net/core/somaxconn", "128")
	d.annotate("kubernetes.io/egress-bandwidth: 10M")
	was := d.settings(t)
	came := d.flowing(t)
	for i, on := range []bool{true, false, true} {
		flag := "--bandwidth=false"
		if on {
			flag = "--bandwidth=true"
		}
		d.initialize(flag)
		if i > 0 { // the first agent has been told so from the start
			d.agents = append(slices.Clone(others), flag)
			d.restart()
			d.ready()
		}
		settings := d.settings(t)
		if kept := settings["net/core/somaxconn"] == "4096" && settings["net/ipv4/ip_forward_update_priority"] == "0"; kept != on {
			t.Errorf("%s: the settings are %v", flag, settings)
		}
		if !on && !maps.Equal(settings, was) {
			t.Errorf("%s: the settings are %v, they were %v", flag, settings, was)
		}
		if found := len(d.queued("eth0")) > 0; found != on {
			t.Errorf("%s: eth0 has fq: %t", flag, found)
		}
		if found := d.paces(t); found != on {
			t.Errorf("%s: the node has flpace0: %t", flag, found)
		}
		d.publishes(t, on, rate)
		if on {
			want, _ := leavesStreams(t, d.a.Netns, rate, true)
			d.until("what the pod sends comes at its rate", func() bool {
				got := came.rate(2 * time.Second)
				t.Logf("%s: %.3f Mbit/s, of %.3f", flag, got*8/1e6, want*8/1e6)
				return got > 0.95*want && got < 1.05*want
			})
			if got := came.rate(2 * time.Second); got > 1.05*want { // a busy machine may let less come
				t.Errorf("%s: %.3f Mbit/s come", flag, got*8/1e6)
			}
			continue
		}
		d.until("what the pod sends comes as fast as it can", func() bool {
			got := came.rate(time.Second / 2)
			t.Logf("%s: %.3f Mbit/s", flag, got*8/1e6)
			return got > 2*rate
		})
	}
	if n := came.conns.Load(); n != 1 {
		t.Errorf("%d connections were begun", n)
	}
	if err := came.ended.Load(); err != nil {
		t.Errorf("the connection has ended: %v", *err)
	}
}

// inflow counts what connections bring.
type inflow struct {
	bytes atomic.Uint64
	conns atomic.Uint32
	ended atomic.Pointer[error]
}

// rate returns how many bytes a second come during some time.
func (f *inflow) rate(look time.Duration) float64 {
	before, since := f.bytes.Load(), time.Now()
	time.Sleep(look)
	return float64(f.bytes.Load()-before) / time.Since(since).Seconds()
}

// publishes checks the agent's metrics of rates: they are there while it keeps pods to their rates.
func (d *oneNodeWithProxies) publishes(t *testing.T, on bool, rate float64) {
	t.Helper()
	const of = `{direction="egress",namespace="shop",pod="a"} `
	lines := map[string]string{
		"rate_bytes": of + strconv.FormatFloat(rate, 'g', -1, 64), "bytes_total": of, "dropped_packets_total": of, "marked_packets_total": of,
		"device_queued": `{device="eth0"} 1`, "queue_dropped_packets_total": " ",
	}
	d.until("the metrics tell of the rate", func() bool { return strings.Contains(d.get("/metrics"), "\nfairlead_bandwidth_rate_bytes") == on })
	text := d.get("/metrics")
	for name, line := range lines {
		if has := strings.Contains(text, "\nfairlead_bandwidth_"+name+line); has != on {
			t.Errorf("bandwidth %t: the metrics have %s: %t\n%s", on, name+line, has, text)
		}
	}
}

// flowing has the pod send on a connection to the host outside until this part of the test ends.
func (d *oneNodeWithProxies) flowing(t *testing.T) *inflow {
	t.Helper()
	f := &inflow{}
	var listener net.Listener
	d.must(d.outside.Do(func() (err error) { listener, err = net.Listen("tcp", ":9"); return err }))
	t.Cleanup(func() { listener.Close() })
	go rig.Serve(listener, func(conn net.Conn) {
		f.conns.Add(1)
		for data := make([]byte, 1<<16); ; {
			n, err := conn.Read(data)
			if err != nil {
				f.ended.Store(&err)
				return
			}
			f.bytes.Add(uint64(n))
		}
	})
	source := rig.NewChild(t, nil, d.a.Netns, "stream", netip.AddrPortFrom(outsiders[true], 9).String(), "1")
	t.Cleanup(source.Kill)
	return f
}

// settings returns those sysctls that init sets for rates and that a namespace has.
func (n *node) settings(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, name := range []string{"net/core/somaxconn", "net/ipv4/ip_forward_update_priority", "net/ipv4/tcp_max_syn_backlog"} {
		n.must(n.ns.Do(func() error {
			text, err := os.ReadFile("/proc/sys/" + name)
			found[name] = strings.TrimSpace(string(text))
			return err
		}))
	}
	return found
}

// paces reports whether the node has the device at which packets that stay on the node wait.
func (n *node) paces(t *testing.T) (found bool) {
	t.Helper()
	n.must(n.ns.Do(func() error {
		_, err := netlink.LinkByName("flpace0")
		if found = err == nil; errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		return err
	}))
	return found
}
