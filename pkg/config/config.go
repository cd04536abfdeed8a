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
	"slices"
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

// AddFlags adds the flags of the named options, or of all options if names is empty. It panics if a
// name is not an option.
func AddFlags(flags *pflag.FlagSet, names ...string) {
	options := Options()
	for _, name := range names {
		if !slices.ContainsFunc(options, func(o Option) bool { return o.Name == name }) {
			panic("no such option: " + name)
		}
	}
	for _, o := range options {
		if len(names) > 0 && !slices.Contains(names, o.Name) {
			continue
		}
		usage := o.Usage
		if o.Values != nil {
			usage += " (" + strings.Join(o.Values, "|") + ")"
		}
		if o.Shown != "" {
			usage += " (default " + o.Shown + ")"
		}
		flags.String(o.Name, o.Default, usage)
	}
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
