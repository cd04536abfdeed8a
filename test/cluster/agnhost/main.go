// Command agnhost stands before upstream's agnhost in the images of the cluster. Where the kernel has no SCTP, it plays
// both ends of that, by the packets of the protocol: `agnhost connect --protocol=sctp` and `agnhost porter` with
// SERVE_SCTP_PORT_N. Everything else, and SCTP where the kernel has it, it leaves to upstream's program.
package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fairlead.io/fairlead/test/cluster/sctp"
)

// upstream is the path of upstream's program.
const upstream = "/agnhost-upstream"

// served begins the names of the variables that tell `agnhost porter` which ports of SCTP to serve.
const served = "SERVE_SCTP_PORT_"

func main() {
	if err := run(os.Args, os.Environ()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args, environ []string) error {
	if len(args) > 1 && !sctp.Supported() {
		switch args[1] {
		case "connect":
			if c := parseConnect(args[2:]); c != nil {
				return sctp.Dial(c.to, c.timeout)
			}
		case "porter":
			ports, rest := splitPorts(environ)
			if len(ports) > 0 && slices.IndexFunc(rest, isServed) < 0 {
				return sctp.Serve(ports)
			}
		}
	}
	if err := syscall.Exec(upstream, args, environ); err != nil {
		return fmt.Errorf("run %s: %w", upstream, err)
	}
	return nil
}

// connect is what `agnhost connect` is asked to do.
type connect struct {
	to      string
	timeout time.Duration
}

// parseConnect returns what is asked for, or nil if that is not SCTP or written in a way that specs do not use.
func parseConnect(args []string) *connect {
	c, ours := &connect{}, false
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		switch {
		case name == "--protocol":
			ours = value == "sctp"
		case name == "--timeout":
			timeout, err := time.ParseDuration(value)
			if err != nil {
				return nil
			}
			c.timeout = timeout
		case strings.HasPrefix(name, "-") || c.to != "":
			return nil
		default:
			c.to = arg
		}
	}
	if !ours || c.to == "" || c.timeout <= 0 {
		return nil
	}
	return c
}

// isServed reports whether a variable names a port to serve, whatever its protocol.
func isServed(variable string) bool { return strings.HasPrefix(variable, "SERVE_") }

// splitPorts returns the ports of SCTP that the environment names, and the rest of it.
func splitPorts(environ []string) (ports []uint16, rest []string) {
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		number, ok := strings.CutPrefix(name, served)
		port, err := strconv.ParseUint(number, 10, 16)
		if !ok || err != nil {
			rest = append(rest, variable)
			continue
		}
		ports = append(ports, uint16(port))
	}
	return ports, rest
}
