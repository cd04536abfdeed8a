package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// parseServers parses API servers separated by commas or spaces, each HOST:PORT with or without
// https:// in front.
func parseServers(value string) ([]string, error) {
	var list []string
	for _, text := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }) {
		host, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(text, "https://"), "/"))
		if n, err2 := strconv.ParseUint(port, 10, 16); err != nil || err2 != nil || n == 0 || host == "" || strings.ContainsAny(host, "/@?#[]") {
			return nil, fmt.Errorf("not a list of API servers such as https://192.0.2.1:6443,https://[2001:db8::1]:6443: %q is not one",
				text)
		}
		list = append(list, net.JoinHostPort(host, port))
	}
	return list, nil
}

func servers(value string) error {
	_, err := parseServers(value)
	return err
}

// Servers returns the servers in the option api-servers, each as HOST:PORT.
func (c *Config) Servers() []string {
	list, _ := parseServers(c.APIServers) // checked by Load
	return list
}
