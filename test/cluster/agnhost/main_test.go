package main

import (
	"strings"
	"testing"
	"time"
)

func TestParseConnect(t *testing.T) {
	c := parseConnect([]string{"[fd00::1]:80", "--timeout=3s", "--protocol=sctp"})
	if c == nil || *c != (connect{"[fd00::1]:80", 3 * time.Second}) {
		t.Errorf("have %+v", c)
	}
	for _, args := range []string{"10.0.0.1:80 --timeout=3s --protocol=tcp", "10.0.0.1:80 --protocol=sctp", "--protocol=sctp --timeout=3s", "a b --protocol=sctp --timeout=3s", "a --protocol=sctp --timeout=3s --sctp-data=b"} {
		if c := parseConnect(strings.Fields(args)); c != nil {
			t.Errorf("%q is not left to upstream's program: %+v", args, c)
		}
	}
}

func TestSplitPorts(t *testing.T) {
	ports, rest := splitPorts([]string{"HOME=/", "SERVE_SCTP_PORT_80=foo", "SERVE_PORT_81=foo", "SERVE_SCTP_PORT_x=foo"})
	if len(ports) != 1 || ports[0] != 80 || strings.Join(rest, " ") != "HOME=/ SERVE_PORT_81=foo SERVE_SCTP_PORT_x=foo" {
		t.Errorf("have %v, and %q for the rest", ports, rest)
	}
}
