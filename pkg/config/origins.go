package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// maxFile is more than any option needs, and keeps a file put there by mistake out of memory and out of the log.
const maxFile = 64 << 10

// given is what one or more places say, by option.
type given map[string]Origin

// add takes over what less important places say about options that are not given yet.
func (g given) add(other given) {
	for name, origin := range other {
		if _, ok := g[name]; !ok {
			g[name] = origin
		}
	}
}

// fromFlags returns the options given by flags. A command that has only some of the flags is fine.
func fromFlags(flags *pflag.FlagSet, options []Option) (given, error) {
	found := given{}
	for _, o := range options {
		flag := flags.Lookup(o.Name)
		if flag == nil || !flag.Changed {
			continue
		}
		if flag.Value.Type() != "string" {
			return nil, fmt.Errorf("read flag --%s: another flag has taken the name of the option", o.Name)
		}
		found[o.Name] = Origin{Name: o.Name, Value: flag.Value.String(), From: "flag"}
	}
	return found, nil
}

// fromEnv returns the options given by environment variables.
func fromEnv(environ []string, options []Option) (given, error) {
	names, keys := map[string]string{}, []string{requireEnv}
	for _, o := range options {
		names[o.Env()] = o.Name
		keys = append(keys, o.Env())
	}
	found := given{}
	var problems []error
	for _, variable := range environ {
		key, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(key, envPrefix) {
			continue
		}
		name, ok := names[key]
		switch {
		case ok:
			found[name] = Origin{Name: name, Value: value, From: "env " + key}
		case key == requireEnv, isServiceLink(key):
		default:
			problems = append(problems, fmt.Errorf("environment variable %s: no such option%s", quote(key), suggest(key, keys)))
		}
	}
	return found, errors.Join(problems...)
}

// isServiceLink tells the variables with which a kubelet describes the Services of a pod's namespace. A Service whose
// name begins with "fairlead" makes such variables, so whoever may create Services could keep the agent from starting
// if they counted as typos.
func isServiceLink(key string) bool {
	ok, _ := regexp.MatchString(`^FAIRLEAD_([A-Z0-9_]+_)?`+
		`(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`, key)
	return ok
}

// fromDir returns the options given by files: the name is the option, the content the value. Names that begin with a
// dot are not options: a mounted ConfigMap keeps its versions there.
func fromDir(origin Origin, options []Option) (given, error) {
	dir := origin.Value
	if dir == "" || absolute(dir) != nil || oneLine(dir) != nil { // Load tells what is wrong with it
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read option %s: %w", configDir, err)
	}
	var names []string
	for _, o := range options {
		if o.Name != configDir {
			names = append(names, o.Name)
		}
	}
	found := given{}
	var problems []error
	for _, entry := range entries {
		name, path := entry.Name(), filepath.Join(dir, entry.Name())
		if strings.HasPrefix(name, ".") {
			continue
		}
		if !slices.Contains(names, name) {
			problems = append(problems, fmt.Errorf("file %q: no such option%s", path, suggest(name, names)))
			continue
		}
		value, err := readValue(path)
		if err != nil {
			problems = append(problems, fmt.Errorf("read option %s: %w", name, err))
			continue
		}
		found[name] = Origin{Name: name, Value: value, From: "file " + path}
	}
	return found, errors.Join(problems...)
}

// readValue returns the content of a file without the newline that editors end it with.
func readValue(path string) (string, error) {
	// Opening a pipe would wait for its writer.
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("file %s is not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return "", err
	}
	if len(content) > maxFile {
		return "", fmt.Errorf("file %s is larger than %d bytes", path, maxFile)
	}
	return strings.TrimRight(string(content), "\r\n"), nil
}
