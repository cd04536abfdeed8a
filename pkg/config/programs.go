package config

import (
	"errors"
	"fmt"
	"strings"
)

const (
	mostPrograms = 64
	// nameLength is how much of a program's name the kernel keeps.
	nameLength = 15
)

// programs checks a comma-separated list of names of programs.
func programs(list string) error {
	names := programNames(list)
	if len(names) > mostPrograms {
		return fmt.Errorf("a list of %d programs, and there is room for %d", len(names), mostPrograms)
	}
	for _, name := range names {
		if name == "" {
			return errors.New("a list with an empty name in it")
		}
		if len(name) > nameLength {
			return fmt.Errorf("a list with %q in it: the kernel keeps %d letters of a program's name, so give %q", name, nameLength, name[:nameLength])
		}
	}
	return nil
}

func programNames(list string) []string {
	if strings.TrimSpace(list) == "" {
		return nil
	}
	names := strings.Split(list, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return names
}

// ExceptedPrograms returns the names in the option sockmap-except.
func (c *Config) ExceptedPrograms() []string { return programNames(c.SockmapExcept) }
