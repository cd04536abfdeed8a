// Package config reads the agent's options. One table, Options, drives the flags, the environment
// variables, the keys of the configuration directory and the reference. The first of these places
// that sets an option wins:
//
//	flag > environment variable FAIRLEAD_... > file in --config-dir > default
//
// A name that is not an option is an error in every place: an ignored typo would only be noticed
// when it does harm.
package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

const (
	// DefaultStateDir is the state directory of the node's own agent. An agent with another one is
	// a trial.
	DefaultStateDir = "/run/fairlead"

	configDir  = "config-dir"
	socketName = "agent.sock"

	// requireEnv is read only by the project's tests. It names what a test run must have, so that
	// the tests for it cannot be skipped.
	requireEnv = envPrefix + "REQUIRE"
)

// Config holds the values of the options. Load checks them as far as it can without other packages.
type Config struct {
	Source      string // Kubernetes, or a path
	Mode        string // full or accelerate-only
	Kubeconfig  string // a file; empty = the service account of the pod
	APIServers  string // HOST:PORT with commas between them; empty = none
	NodeName    string
	CgroupRoot  string // empty = detect it
	BPFFS       string
	StateDir    string
	LogLevel    string // debug, info, warn or error
	LogFormat   string // text or json
	Algorithm   string // a name from package lb, which checks it
	HashSeed    string // empty = none
	ExternalIPs string // all, external-only or deny

	// NodeExternalIPs is true or false.
	NodeExternalIPs string

	ServiceQuota, NamespaceQuota string // limits, which package lb checks

	ServiceCIDRs string // auto, off, or comma-separated networks

	// Clients outside.
	Devices, XDP, NodePortAddresses, NodePortRange, SnatPorts, ExternalClusterIP, VIPPing, DSR, DSRAccept, TunnelSourcePorts string

	// ResetStaleTCP is true or false.
	ResetStaleTCP string
	ConfigDir     string // empty = none

	OptOutRuntimes string // comma-separated patterns, which package optout checks
	OptOutMeshes   string // comma-separated names, likewise
	CNICache       string

	PodNetwork                           string // off, main or chained
	HostRouting, Masquerade, NativeCIDRs string
	MasqueradeConfig                     string // a file; empty = none
	L7Proxies                            string // comma-separated proxies; empty = none
	Routing                              string // none, native or vxlan
	BigTCP                               string // true or false
	Bandwidth                            string // true or false
	BBR                                  string // true, annotated or false
	PodDevice                            string // auto, veth or netkit

	Sockmap            string // true or false
	AccelerateSelector string // a label selector, which package source parses; empty = no pods
	SockmapBlocking    string // true or false
	SockmapExcept      string // comma-separated names of programs

	// CNIConfDir and CNIConfName say where to write the runtime's network configuration; empty =
	// nowhere.
	CNIConfDir, CNIConfName string

	PodCIDRs string // comma-separated networks; empty = those of the Node

	Conntrack Conntrack

	// Where to listen, each HOST:PORT or empty to not listen.
	MetricsAddress, HealthzAddress, ReadyAddress string

	origins []Origin
}

// Origin is the value of an option and the place that set it.
type Origin struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"` // "flag", "env FAIRLEAD_...", "file /path" or "default"
}

// Origins returns the origin of every option, in the order of Options.
func (c *Config) Origins() []Origin { return append([]Origin(nil), c.origins...) }

// SocketPath returns the socket on which the agent serves the commands.
func (c *Config) SocketPath() string { return filepath.Join(c.StateDir, socketName) }

// PodPrefixes returns the networks in the option pod-cidrs.
func (c *Config) PodPrefixes() []netip.Prefix {
	list, _ := parsePrefixes(c.PodCIDRs) // checked by Load
	return list
}

// ServicePrefixes returns the networks in the option service-cidrs, and whether it has any or is off.
func (c *Config) ServicePrefixes() (list []netip.Prefix, fixed bool) {
	if c.ServiceCIDRs == "auto" {
		return nil, false
	}
	list, _ = parsePrefixes(c.ServiceCIDRs) // checked by Load; "off" is none
	return list, true
}

// NativePrefixes returns the networks in the option native-cidrs.
func (c *Config) NativePrefixes() []netip.Prefix {
	list, _ := parsePrefixes(c.NativeCIDRs) // checked by Load
	return list
}

// Load returns the configuration set by the parsed flags, by environ (in the form of os.Environ),
// and by the directory that the option config-dir names. Its error lists every mistake, one per
// line.
func Load(flags *pflag.FlagSet, environ []string) (*Config, error) {
	return load(flags, environ, os.Hostname)
}

func load(flags *pflag.FlagSet, environ []string, hostname func() (string, error)) (*Config, error) {
	options := Options()
	given, err := fromFlags(flags, options)
	if err != nil {
		return nil, err
	}
	env, envErr := fromEnv(environ, options)
	given.add(env)
	dir, dirErr := fromDir(given[configDir], options)
	given.add(dir)

	cfg := &Config{}
	problems := []error{envErr, dirErr}
	for _, o := range options {
		origin, ok := given[o.Name]
		if !ok {
			origin = Origin{Name: o.Name, Value: o.Default, From: "default"}
			if o.derive != nil {
				origin.Value = o.derive(cfg)
			}
			if o.Name == "node-name" {
				name, err := hostname()
				if err != nil {
					problems = append(problems, fmt.Errorf("option node-name: read the host name: %w", err))
					continue
				}
				origin.Value = strings.ToLower(strings.TrimSpace(name)) // as a kubelet does
			}
		}
		if err := o.validate(origin.Value); err != nil {
			problems = append(problems, fmt.Errorf("option %s: %s from %s is %w", o.Name, quote(origin.Value), origin.From, err))
			continue
		}
		*o.field(cfg) = origin.Value
		cfg.origins = append(cfg.origins, origin)
	}
	problems = append(problems, cfg.checkMode(), cfg.checkPorts(), cfg.checkDSR())
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return cfg, nil
}

// quote returns value on one line, and short enough for a log.
func quote(value string) string {
	const most = 80
	if len(value) > most {
		return fmt.Sprintf("%q... (%d bytes)", value[:most], len(value))
	}
	return fmt.Sprintf("%q", value)
}
