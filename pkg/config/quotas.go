package config

import (
	"errors"
	"regexp"
)

// quotaOptions are the limits of what Services take. Package lb counts and reads the text.
func quotaOptions() []Option {
	return []Option{
		{
			Name: "service-quota", Default: "frontends=16384,hosted=32768,backends=131072,slots=1048576", check: quota,
			Usage: "how much one Service may take on a node: frontends (addresses times ports), hosted (rows for direct server return to backends " +
				"here), backends (endpoints times ports) and slots of its tables. Ports beyond that are not served; Maglev tables become smaller",
			field: func(c *Config) *string { return &c.ServiceQuota },
		},
		{
			Name: "namespace-quota", Default: "frontends=262144,hosted=262144,backends=1048576,slots=16777216", check: quota,
			Usage: "how much the Services of one namespace may take together on a node. Beyond that the youngest are not served",
			field: func(c *Config) *string { return &c.NamespaceQuota },
		},
	}
}

// quota checks a list of limits. Package lb knows what they are of.
func quota(value string) error {
	const limit = "(frontends|hosted|backends|slots)=[1-9][0-9]{0,8}"
	if !regexp.MustCompile("^" + limit + "(," + limit + ")*$").MatchString(value) {
		return errors.New("not a list of limits such as frontends=16384,backends=131072")
	}
	return nil
}
