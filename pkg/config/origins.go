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

// maxFile is more than any option needs. It keeps a large file that is there by mistake out of
// memory and out of the log.
const maxFile = 64 << 10

// given holds the values that one or more places set, by option.
type given map[string]Origin

// add adds the values of a less important place for options that have none yet.
func (g given) add(other given) {
	for name, origin := range other {
		if _, ok := g[name]; !ok {
			g[name] = origin
		}
	}
}

// fromFlags returns the options set by flags. A command may have only some of the flags.
func fromFlags(flags *pflag.FlagSet, options []Option) (given, error) {
	found := given{}
	for _, o := range options {
		flag := flags.Lookup(o.Name)
		if flag == nil || !flag.Changed {
			continue
		}
		if flag.Value.Type() != "string" {
			return nil, fmt.Errorf("read flag --%s: it is not a flag of type string", o.Name)
		}
		found[o.Name] = Origin{Name: o.Name, Value: flag.Value.String(), From: "flag"}
	}
	return found, nil
}

// fromEnv returns the options set by environment variables.
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

// isServiceLink reports whether key is one of the variables with which a kubelet describes the
// Services of a pod's namespace. A Service whose name begins with "fairlead" causes such variables.
// If they counted as typos, anyone who may create Services could keep the agent from starting.
func isServiceLink(key string) bool {
	ok, _ := regexp.MatchString(`^FAIRLEAD_([A-Z0-9_]+_)?`+
		`(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`, key)
	return ok
}

// fromDir returns the options set by files: the name of a file is the option, its content the
// value. Names that begin with a dot are skipped, because a mounted ConfigMap keeps its versions
// under them.
func fromDir(origin Origin, options []Option) (given, error) {
	dir := origin.Value
	// Load reports what is wrong with the path.
	if dir == "" || absolute(dir) != nil || oneLine(dir) != nil {
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

// readValue returns the content of a file without the newlines at its end.
func readValue(path string) (string, error) {
	// Check before opening, because opening a pipe would wait for a writer.
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
