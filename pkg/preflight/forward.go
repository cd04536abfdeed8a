package preflight

// forwardChains looks for chains that drop what the kernel forwards, as Docker's do. IPv4 packets that
// have to be fragmented come in by the loopback device to be forwarded, whatever else bypasses the
// stack. Rules are not read, so whether one accepts them is not known.
func (n *Node) forwardChains() Line {
	const check = "forward chains"
	chains, err := n.Chains()
	if err != nil {
		return unknown(check, err)
	}
	var dropping []string
	for _, c := range chains {
		if c.Drops {
			dropping = append(dropping, c.Name+" of table "+c.Table)
		}
	}
	legacy, err := n.read("proc/net/ip_tables_names")
	switch {
	case len(dropping) > 0:
		what := "IPv4 packets that have to be fragmented come from lo"
		if n.Options.HostRouting == "stack" {
			what += ", and all that pods send passes there"
		}
		return Line{check, Warn, named(dropping) + " drops forwarded packets that no rule accepts: " + what,
			"accept what comes in by lo, unless a rule does already, for example by iptables -I FORWARD -i lo -j ACCEPT"}
	case err == nil && legacy != "":
		return Line{check, Unknown, "chains of legacy iptables, which has tables here", "look whether \"iptables-legacy -S FORWARD\" begins with -P FORWARD DROP; " +
			"if so, accept what comes in by lo: IPv4 packets that have to be fragmented do"}
	}
	return Line{check, OK, "none drops by default", ""}
}
