package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/monitor"
	"fairlead.io/fairlead/pkg/reasons"
)

// monitorFlags are the flags that select events.
type monitorFlags struct {
	reasons []string
	addr    string
	port    uint16
	sample  uint32
}

func newMonitorCommand(inv *invocation) *cobra.Command {
	var flags monitorFlags
	cmd := &cobra.Command{
		Use:   "monitor",
		Short: "Watch dropped packets, and which backends flows get",
		Long: `Watch what happens to packets from outside, live, until interrupted: every drop with its reason, every packet that is
passed on in a degraded way, and the backend that the first packet of a flow gets. The programs report events only while
someone watches. Packets of established flows are not reported and cost nothing extra. Connections that are refused at
the socket have no packets; "fairlead drops" counts them.

A line has the time, the hook, the direction, the device, what happened to the packet, and its addresses as it arrived;
"=>" precedes its new addresses. With -o json each line is an object:

    time            when it happened
    hook            tc, xdp or pod
    direction       in or out of the node
    device          where the packet was seen
    verdict         drop, degraded (passed on nevertheless) or backend (a flow gets one)
    reason          of the drop or the degradation; docs/drops.md has a cause and a cure for each
    protocol        tcp, udp, icmp, icmp6 or a number
    tcpFlags        the TCP flags that matter for the state of a connection
    source          of the packet as it arrived; destination likewise
    newSource       after translation, if that was decided; newDestination likewise
    service         the service that the frontend belongs to
    backend         the pod with the backend's address, if it is on this node
    way             the device by which it leaves; without one, the stack routes it
    bytes           length of a dropped frame
    rule            number of the rule by which policies deny it
    policy          that rule in words: the policy, the direction and the position of the rule
    sample          how many chosen backends this one stands for
    lost            this many events were lost before this line; nothing else is set

Events are lost if there are more than a few hundred a second on a processor, or if they are not read fast enough. Ask
for fewer to lose fewer: the programs themselves leave out what was not asked for.`,
		Example: `  fairlead monitor --sample 0
  fairlead monitor --reason no-backend,source-range --ip 198.51.100.0/24
  fairlead monitor --port 30080 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := flags.filter(cmd.Flags().Changed("sample"))
			if err == nil && inv.format == formatYAML {
				err = errors.New("events cannot be printed as YAML: use -o json, which prints one line for each event")
			}
			if err != nil {
				return config.UsageError{Err: err}
			}
			return inv.monitor(cmd, filter)
		},
	}
	set := cmd.Flags()
	set.StringSliceVar(&flags.reasons, "reason", nil, "only drops for these reasons; no chosen backends, unless --sample is set")
	set.StringVar(&flags.addr, "ip", "", "only packets with this address, or one in this prefix, before or after translation")
	set.Uint16Var(&flags.port, "port", 0, "only packets with this port, before or after translation")
	set.Uint32Var(&flags.sample, "sample", 1, "show one in this many chosen backends; 0 for none")
	completeWords(cmd, "reason", reasonWords())
	return cmd
}

func reasonWords() []string {
	var words []string
	for _, r := range reasons.All() {
		words = append(words, r.Word)
	}
	return words
}

func (f *monitorFlags) filter(sampled bool) (*monitor.Filter, error) {
	filter := &monitor.Filter{Reasons: f.reasons, Port: f.port, Sample: f.sample}
	if len(f.reasons) > 0 && !sampled {
		filter.Sample = 0
	}
	if f.addr != "" {
		prefix, err := parseAddrs(f.addr)
		if err != nil {
			return nil, fmt.Errorf("--ip %w", err)
		}
		filter.Addr = prefix
	}
	return filter, filter.Check()
}

// parseAddrs parses an address or a prefix.
func parseAddrs(text string) (netip.Prefix, error) {
	if prefix, err := netip.ParsePrefix(text); err == nil && !prefix.Addr().Is4In6() {
		return prefix.Masked(), nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%q is neither an address nor a prefix", text)
	}
	addr = addr.Unmap()
	return netip.PrefixFrom(addr, addr.BitLen()), nil
}

// monitor prints events from the agent until it is interrupted.
func (inv *invocation) monitor(cmd *cobra.Command, filter *monitor.Filter) error {
	cfg, err := inv.config(cmd)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if inv.format == formatTable {
		return client(cfg).Monitor(ctx, filter, func() error { return monitor.WriteHeader(inv.Stdout) },
			func(e *monitor.Event) error { return e.WriteText(inv.Stdout) })
	}
	return client(cfg).Monitor(ctx, filter, func() error { return nil }, func(e *monitor.Event) error {
		line, err := encode(e, formatJSON, "")
		if err == nil {
			_, err = inv.Stdout.Write(line)
		}
		return err
	})
}
