package config

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
)

// inCluster returns a derive function for an address that is the default only in a cluster. An
// agent that reads its objects from files may be one of several on its machine, and opens no port
// unless told to.
func inCluster(address string) func(*Config) string {
	return func(c *Config) string {
		if c.Source != Kubernetes {
			return ""
		}
		return address
	}
}

// onlyAtRoot returns a derive function for an option that concerns the whole machine: root is its
// default, or elsewhere if the agent serves a cgroup of its own, because it is then a trial beside
// whatever else runs there.
func onlyAtRoot(root, elsewhere string) func(*Config) string {
	return func(c *Config) string {
		if c.CgroupRoot != "" {
			return elsewhere
		}
		return root
	}
}

// listenAddress checks that a listener accepts value without asking a name server.
func listenAddress(value string) error {
	if value == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		return errors.New("not HOST:PORT, such as 127.0.0.1:8080, [::1]:8080 or :8080")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return errors.New("without a port from 1 to 65535")
	}
	if host == "" {
		return nil
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return errors.New("not at an IP address: names are not looked up")
	}
	return nil
}

// loopbackAddress accepts only addresses that no other machine can reach.
func loopbackAddress(value string) error {
	if err := listenAddress(value); err != nil || value == "" {
		return err
	}
	at, err := netip.ParseAddrPort(value)
	if err != nil || !at.Addr().IsLoopback() {
		return errors.New("not at a loopback address, such as 127.0.0.1")
	}
	return nil
}
