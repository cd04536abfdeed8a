package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/observe"
)

// monitorFlags are the flags that say what is watched.
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
		Short: "Watch packets that are dropped, and which backends flows get",
		Long: `Watch what becomes of packets from outside, as it happens, until interrupted: every drop with its reason, every packet that is
carried on with less than there should be, and the choice of a backend for the first packet of a flow. The programs tell
it only while somebody watches; packets of established flows are not told and pay nothing. What sockets are refused is no
packet: "fairlead drops" counts it.

A line has the time, the hook, the direction, the device, what became of the packet, and its addresses as it came; behind
"=>" are those that it gets. With -o json each line is an object:

    time            when it happened
    hook            tc or xdp
    direction       in or out of the node
    device          where the packet was seen
    verdict         drop, carried (on, with less than there should be) or backend (a flow gets one)
    reason          of a drop, or of what is less; docs/drops.md has a cause and a cure for each
    protocol        tcp, udp, icmp, icmp6 or a number
    tcpFlags        those that say how far a connection is
    source          of the packet as it came; so is destination
    newSource       what it gets, where that was decided; so is newDestination
    service         whose frontend it is for
    backend         the pod that has the backend's address, if it is on this node
    way             the device that it leaves by; without one the stack finds the way
    bytes           the length of a frame that was dropped
    sample          the choice of a backend stands for so many
    lost            nothing else is set: so many events were lost before this line

Events are lost when there are more than some hundred a second on a processor, or when they are not read fast enough. The
fewer are asked for, the fewer are lost: the programs themselves leave out what nobody wants.`,
		Example: `  fairlead monitor --sample 0
  fairlead monitor --reason no-backend,source-range --ip 198.51.100.0/24
  fairlead monitor --port 30080 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := flags.filter(cmd.Flags().Changed("sample"))
			if err == nil && inv.format == formatYAML {
				err = errors.New("what is watched has no form in YAML: use -o json, which is a line for each event")
			}
			if err != nil {
				return usageError{err}
			}
			return inv.monitor(cmd, filter)
		},
	}
	set := cmd.Flags()
	set.StringSliceVar(&flags.reasons, "reason", nil, "only drops for these reasons; no choices of a backend, unless --sample asks for them")
	set.StringVar(&flags.addr, "ip", "", "only packets that have this address, or one in this prefix, before or after")
	set.Uint16Var(&flags.port, "port", 0, "only packets that have this port, before or after")
	set.Uint32Var(&flags.sample, "sample", 1, "tell one choice of a backend in so many; 0 for none")
	completeWords(cmd, "reason", reasonWords())
	return cmd
}

func reasonWords() []string {
	var words []string
	for _, r := range observe.Reasons() {
		words = append(words, r.Word)
	}
	return words
}

func (f *monitorFlags) filter(sampled bool) (*observe.EventFilter, error) {
	filter := &observe.EventFilter{Reasons: f.reasons, Port: f.port, Sample: f.sample}
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

// parseAddrs reads an address or a prefix.
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

// monitor shows what the agent tells until it is interrupted.
func (inv *invocation) monitor(cmd *cobra.Command, filter *observe.EventFilter) error {
	cfg, err := inv.config(cmd)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if inv.format == formatTable {
		return client(cfg).Monitor(ctx, filter, func() error { return observe.WriteEventHeader(inv.Stdout) },
			func(e *observe.Event) error { return e.WriteText(inv.Stdout) })
	}
	lines := json.NewEncoder(inv.Stdout)
	lines.SetEscapeHTML(false)
	return client(cfg).Monitor(ctx, filter, func() error { return nil }, func(e *observe.Event) error { return lines.Encode(e) })
}
