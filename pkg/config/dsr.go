package config

import "errors"

// AcceptsDSR reports whether other nodes may forward packets to backends on this node.
func (c *Config) AcceptsDSR() bool {
	return c.DSRAccept == "true" || c.DSRAccept == "auto" && c.DSR != "off"
}

// checkDSR rejects a node that forwards packets and accepts none: what is given back to it would be
// lost.
func (c *Config) checkDSR() error {
	if c.DSR == "off" || c.AcceptsDSR() {
		return nil
	}
	return errors.New("option dsr: " + c.DSR + " needs what dsr-accept=false rules out: leave dsr-accept out, or set dsr=off")
}
