package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Proxy is a process on the node that can handle connections of pods.
type Proxy struct {
	Name     string
	Port     uint16 // on which it listens
	Optional bool   // while it does not listen, connections go directly to their destination
}

var proxyName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// parseProxies parses comma-separated proxies.
func parseProxies(value string) ([]Proxy, error) {
	if value == "" {
		return nil, nil
	}
	var list []Proxy
	for text := range strings.SplitSeq(value, ",") {
		proxy, err := parseProxy(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		for _, other := range list {
			if other.Name == proxy.Name || other.Port == proxy.Port {
				return nil, fmt.Errorf("not a list of different proxies: %s=%d comes after %s=%d", proxy.Name, proxy.Port, other.Name, other.Port)
			}
		}
		list = append(list, proxy)
	}
	return list, nil
}

func parseProxy(text string) (Proxy, error) {
	name, rest, _ := strings.Cut(text, "=")
	port, gone, _ := strings.Cut(rest, ":")
	n, err := strconv.ParseUint(port, 10, 16)
	switch {
	case !proxyName.MatchString(name):
		return Proxy{}, fmt.Errorf("not a list of proxies such as envoy=15001,audit=15002:pass: %q does not begin with a name in lower case", text)
	case err != nil || n == 0:
		return Proxy{}, fmt.Errorf("not a list of proxies such as envoy=15001: %q has no port from 1 to 65535", text)
	case rest != port && gone != "drop" && gone != "pass":
		return Proxy{}, fmt.Errorf("not a list of proxies such as envoy=15001:drop or envoy=15001:pass: %q says neither", text)
	}
	return Proxy{Name: name, Port: uint16(n), Optional: gone == "pass"}, nil
}

// Proxies returns the proxies in the option l7-proxies.
func (c *Config) Proxies() []Proxy {
	list, _ := parseProxies(c.L7Proxies) // checked by Load
	return list
}

func proxies(value string) error {
	_, err := parseProxies(value)
	return err
}
