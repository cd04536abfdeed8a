package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// parseServers reads API servers with commas or spaces between them, as HOST:PORT with or without a scheme, which is https.
func parseServers(value string) ([]string, error) {
	var list []string
	for _, text := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }) {
		host, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(text, "https://"), "/"))
		if n, err2 := strconv.ParseUint(port, 10, 16); err != nil || err2 != nil || n == 0 || host == "" || strings.ContainsAny(host, "/@?#[]") {
			return nil, fmt.Errorf("not a list of API servers such as https://192.0.2.1:6443,https://[2001:db8::1]:6443: %q is none", text)
		}
		list = append(list, net.JoinHostPort(host, port))
	}
	return list, nil
}

func servers(value string) error {
	_, err := parseServers(value)
	return err
}

// Servers returns what the option api-servers says, as HOST:PORT.
func (c *Config) Servers() []string {
	list, _ := parseServers(c.APIServers) // it was checked
	return list
}
