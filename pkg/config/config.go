// Package config reads the agent's options. One table, Options, drives the flags, the environment variables, the keys
// of the configuration directory and the reference; the first of these that gives an option wins:
//
//	flag > environment variable FAIRLEAD_... > file in --config-dir > default
//
// A name that is no option is an error wherever it stands: a typo that is ignored is found when it hurts.
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
	// DefaultStateDir is that of the node's own agent; others are trials.
	DefaultStateDir = "/run/fairlead"

	configDir  = "config-dir"
	socketName = "agent.sock"

	// requireEnv is read by the project's tests alone: what a test run must have, so that its tests may not be skipped.
	requireEnv = envPrefix + "REQUIRE"
)

// Config is what the options say. Values are checked as far as that needs no other package.
type Config struct {
	Source      string // Kubernetes, or a path
	Mode        string // full or accelerate-only
	Kubeconfig  string // empty = the service account of the pod
	APIServers  string // HOST:PORT with commas between them; empty = none
	NodeName    string
	CgroupRoot  string // empty = to be detected
	BPFFS       string
	StateDir    string
	LogLevel    string // debug, info, warn or error
	LogFormat   string // text or json
	Algorithm   string // a name of package lb, which checks it
	HashSeed    string // empty = none
	ExternalIPs string // all, external-only or deny

	// What is reached from outside.
	Devices, XDP, NodePortAddresses, NodePortRange, SnatPorts, ExternalClusterIP, VIPPing, DSR string

	// ResetStaleTCP is true or false.
	ResetStaleTCP string
	ConfigDir     string // empty = none

	OptOutRuntimes string // patterns with commas between them, which package optout checks
	OptOutMeshes   string // names, likewise
	CNICache       string

	PodNetwork                           string // off, main or chained
	HostRouting, Masquerade, NativeCIDRs string
	MasqueradeConfig                     string // a file; empty = none
	L7Proxies                            string // proxies with commas between them; empty = none
	Routing                              string // none, native or vxlan
	BigTCP                               string // true or false
	Bandwidth                            string // true or false
	BBR                                  string // true, annotated or false
	PodDevice                            string // auto, veth or netkit

	Sockmap            string // true or false
	AccelerateSelector string // a label selector, which package source reads; empty = nobody
	SockmapBlocking    string // true or false
	SockmapExcept      string // names of programs with commas between them

	CNIConfDir, CNIConfName string // where the agent writes the configuration of the runtime; empty = nowhere

	PodCIDRs string // networks with commas between them; empty = those of the Node

	Conntrack Conntrack

	// Where to listen, each HOST:PORT or empty for not at all.
	MetricsAddress, HealthzAddress, ReadyAddress string

	origins []Origin
}

// Origin says which value an option has and where it was given.
type Origin struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"` // "flag", "env FAIRLEAD_...", "file /path" or "default"
}

// Origins returns the origin of every option, in the order of Options.
func (c *Config) Origins() []Origin { return append([]Origin(nil), c.origins...) }

// SocketPath returns where the agent listens for the commands.
func (c *Config) SocketPath() string { return filepath.Join(c.StateDir, socketName) }

// PodPrefixes returns what the option pod-cidrs says.
func (c *Config) PodPrefixes() []netip.Prefix {
	list, _ := parsePrefixes(c.PodCIDRs) // it was checked
	return list
}

// NativePrefixes returns what the option native-cidrs says.
func (c *Config) NativePrefixes() []netip.Prefix {
	list, _ := parsePrefixes(c.NativeCIDRs) // it was checked
	return list
}

// Load returns the configuration given by the parsed flags, by environ in the form of os.Environ, and by the
// directory that the option config-dir names. The error tells everything that is wrong, one mistake a line.
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
	problems = append(problems, cfg.checkMode())
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return cfg, nil
}

// quote shows a value on one line and at a length that a log bears.
func quote(value string) string {
	const most = 80
	if len(value) > most {
		return fmt.Sprintf("%q... (%d bytes)", value[:most], len(value))
	}
	return fmt.Sprintf("%q", value)
}
