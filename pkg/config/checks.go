package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

func oneLine(value string) error {
	if !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl) {
		return errors.New("not one line of plain text")
	}
	return nil
}

func notEmpty(value string) error {
	if value == "" {
		return errors.New("empty")
	}
	return nil
}

// hashSeed rejects seeds that are easy to guess.
func hashSeed(value string) error {
	const fewest, most = 16, 1024
	if value != "" && (len(value) < fewest || len(value) > most) {
		return fmt.Errorf("not %d to %d bytes: use the output of \"openssl rand -hex 16\"",
			fewest, most)
	}
	return nil
}

func absolute(value string) error {
	if !filepath.IsAbs(value) {
		return errors.New("not an absolute path")
	}
	return nil
}

func absoluteOrEmpty(value string) error {
	if value == "" {
		return nil
	}
	return absolute(value)
}

// listName accepts only names that runtimes read as a list of plugins.
func listName(value string) error {
	if filepath.Base(value) != value || strings.HasPrefix(value, ".") || filepath.Ext(value) != ".conflist" {
		return errors.New("not the name of a file that ends in .conflist")
	}
	return nil
}

func stateDir(value string) error {
	if len(value) > maxStateDir {
		return fmt.Errorf("longer than %d bytes, and the address of a socket in it would not fit", maxStateDir)
	}
	return absolute(value)
}

// nodeName accepts only names that Kubernetes does. The name becomes part of field selectors, in
// which "," and "=" have a meaning.
func nodeName(value string) error {
	err := errors.New("not a node's name: lower case letters, digits, - and ., at most 253")
	if value == "" || len(value) > 253 {
		return err
	}
	for label := range strings.SplitSeq(value, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return err
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return err
			}
		}
	}
	return nil
}
