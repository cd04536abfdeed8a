package config

import (
	"errors"
	"fmt"
)

// Values of the option mode. With AccelerateOnly, the agent lets connections bypass TCP and does
// nothing else; with full, it does everything that the other options ask for.
const (
	AccelerateOnly = "accelerate-only"
	full           = "full"
)

// AcceleratesOnly reports whether the agent lets connections bypass TCP and does nothing else.
func (c *Config) AcceleratesOnly() bool { return c.Mode == AccelerateOnly }

// alone returns a derive function for an option that has another default with AccelerateOnly.
func alone(value, otherwise func(*Config) string) func(*Config) string {
	return func(c *Config) string {
		if c.AcceleratesOnly() {
			return value(c)
		}
		return otherwise(c)
	}
}

// withPodNetwork returns a derive function for an option that only an agent can follow that gives pods their
// network.
func withPodNetwork(value, otherwise string) func(*Config) string {
	return func(c *Config) string {
		if c.PodNetwork != "main" {
			return otherwise
		}
		return value
	}
}

// FollowsPolicies reports whether the agent needs to know network policies.
func (c *Config) FollowsPolicies() bool { return c.Policies == "enforce" || c.Policies == "audit" }

func always(value string) func(*Config) string { return func(*Config) string { return value } }

// checkMode rejects options that ask for more than AccelerateOnly does, since whoever sets them
// expects an effect.
func (c *Config) checkMode() error {
	if !c.AcceleratesOnly() {
		return nil
	}
	var problems []error
	idle := map[string]*string{}
	for _, o := range Options() {
		idle[o.Name] = o.idle
	}
	for _, o := range c.origins {
		want := idle[o.Name]
		switch {
		case want == nil || o.Value == *want:
		case o.Name == "sockmap":
			problems = append(problems, fmt.Errorf("option sockmap: %s from %s leaves --mode=%s nothing to do: leave it out, or run no agent",
				quote(o.Value), o.From, c.Mode))
		default:
			problems = append(problems, fmt.Errorf("option %s: %s from %s asks for more than --mode=%s, which lets connections bypass TCP and does "+
				"nothing else: leave it out, or set --mode=%s", o.Name, quote(o.Value), o.From, c.Mode, full))
		}
	}
	return errors.Join(problems...)
}
