package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// environment is what the agent finds when it starts.
type environment struct {
	args  []string
	env   []string
	files map[string]string // in the directory that config-dir names; nil = no directory
	// dirFrom says how the directory is named: "flag", "env", or "" for not at all.
	dirFrom string
}

func (w environment) load(t testing.TB) (*Config, string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range w.files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	switch w.dirFrom {
	case "flag":
		w.args = append(w.args, "--config-dir="+dir)
	case "env":
		w.env = append(w.env, "FAIRLEAD_CONFIG_DIR="+dir)
	}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(flags)
	if err := flags.Parse(w.args); err != nil {
		t.Fatal(err)
	}
	cfg, err := load(flags, w.env, func() (string, error) { return "Node-1.Example\n", nil })
	return cfg, dir, err
}

func TestDefaults(t *testing.T) {
	have, _, err := environment{}.load(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, origin := range have.Origins() {
		if origin.From != "default" {
			t.Errorf("%s is from %q although nothing was given", origin.Name, origin.From)
		}
	}
	// What is derived or found; docs/configuration.md has the other defaults, and TestReference holds it against them.
	derived := map[string]string{
		"node-name": "node-1.example", "devices": "auto", "sockmap": "false", "policies": "off",
		"metrics-address": "127.0.0.1:10249", "healthz-address": ":10256", "ready-address": "127.0.0.1:10247",
	}
	for _, o := range Options() {
		want, ok := derived[o.Name]
		if !ok {
			want = o.Default
		}
		if value := *o.field(have); value != want {
			t.Errorf("option %s is %q by default, want %q", o.Name, value, want)
		}
		if o.derive != nil && !ok {
			t.Errorf("option %s: the test does not know what it should derive", o.Name)
		}
	}
	if path := have.SocketPath(); path != "/run/fairlead/agent.sock" {
		t.Errorf("socket at %s", path)
	}
}

func TestPrecedence(t *testing.T) {
	flag, env := []string{"--log-level=error"}, []string{"FAIRLEAD_LOG_LEVEL=warn"}
	file := map[string]string{"log-level": "debug\n"}
	tests := []struct {
		name  string
		given environment
		value string
		from  string // DIR stands for the directory
	}{
		{"nothing", environment{}, "info", "default"},
		{"file", environment{files: file, dirFrom: "flag"}, "debug", "file DIR/log-level"},
		{"file, directory from the environment", environment{files: file, dirFrom: "env"}, "debug", "file DIR/log-level"},
		{"environment over file", environment{env: env, files: file, dirFrom: "flag"}, "warn", "env FAIRLEAD_LOG_LEVEL"},
		{"flag over all", environment{args: flag, env: env, files: file, dirFrom: "env"}, "error", "flag"},
		{"flag with the default's value", environment{args: []string{"--log-level=info"}, env: env}, "info", "flag"},
		{"files without the option", environment{files: file}, "info", "default"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, dir, err := tt.given.load(t)
			if err != nil {
				t.Fatal(err)
			}
			want := Origin{Name: "log-level", Value: tt.value, From: strings.ReplaceAll(tt.from, "DIR", dir)}
			if diff := cmp.Diff(want, originOf(cfg, "log-level")); diff != "" {
				t.Errorf("origin (-want +have):\n%s", diff)
			}
			if cfg.LogLevel != tt.value {
				t.Errorf("LogLevel is %q, its origin says %q", cfg.LogLevel, tt.value)
			}
		})
	}
}

func originOf(cfg *Config, name string) Origin {
	for _, origin := range cfg.Origins() {
		if origin.Name == name {
			return origin
		}
	}
	return Origin{}
}

// another returns a value that the option may have, and that is not its default.
func another(t *testing.T, o Option) string {
	t.Helper()
	samples := []string{
		"true", "some text", "name", "/somewhere", "10.1.0.0/24", "2003-2004", "100000", "61s", ":1", "[::1]:3", "b.example:6443", "0123456789abcdef",
		"10-x.conflist", "envoy=15001", "slots=1",
	}
	for _, value := range slices.Concat(o.Values, samples) {
		if value != o.Default && o.validate(value) == nil {
			return value
		}
	}
	t.Fatalf("option %s: it takes none of the samples of this test; add one that it takes", o.Name)
	return ""
}

// TestEveryOption checks that every option can be set in each of the three ways and arrives in its
// own field.
func TestEveryOption(t *testing.T) {
	seen := map[*string]string{}
	probe := &Config{}
	for _, o := range Options() {
		if other, ok := seen[o.field(probe)]; ok {
			t.Errorf("options %s and %s share a field", o.Name, other)
		}
		seen[o.field(probe)] = o.Name
		if o.Name == configDir {
			continue
		}
		value := another(t, o)
		for from, w := range map[string]environment{
			"flag":               {args: []string{"--" + o.Name, value}},
			"env " + o.Env():     {env: []string{o.Env() + "=" + value}},
			"file DIR/" + o.Name: {files: map[string]string{o.Name: value + "\r\n"}, dirFrom: "flag"},
		} {
			cfg, dir, err := w.load(t)
			if err != nil {
				t.Errorf("option %s from %s: %v", o.Name, from, err)
				continue
			}
			want := Origin{Name: o.Name, Value: value, From: strings.Replace(from, "file DIR", "file "+dir, 1)}
			if diff := cmp.Diff(want, originOf(cfg, o.Name)); diff != "" {
				t.Errorf("option %s (-want +have):\n%s", o.Name, diff)
			}
			if *o.field(cfg) != value {
				t.Errorf("option %s from %s: the field is %q", o.Name, from, *o.field(cfg))
			}
		}
	}
}

// TestMountedConfigMap reads a directory as a ConfigMap is mounted, which is links to links: key ->
// ..data/key, and ..data -> a directory with a time in its name.
func TestMountedConfigMap(t *testing.T) {
	dir := t.TempDir()
	version := filepath.Join(dir, "..2026_01_01")
	for _, err := range []error{
		os.Mkdir(version, 0o700),
		os.WriteFile(filepath.Join(version, "source"), []byte("/etc/manifests\n"), 0o600),
		os.Symlink("..2026_01_01", filepath.Join(dir, "..data")),
		os.Symlink("..data/source", filepath.Join(dir, "source")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg, _, err := environment{args: []string{"--config-dir", dir}}.load(t)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Source != "/etc/manifests" {
		t.Errorf("source is %q", cfg.Source)
	}
}

// TestNotAFile checks that a path that is not a regular file is an immediate error, not a start
// that hangs.
func TestNotAFile(t *testing.T) {
	tests := []struct {
		name string
		make func(path string) error
	}{
		{"directory", func(path string) error { return os.Mkdir(path, 0o700) }},
		{"pipe", func(path string) error { return syscall.Mkfifo(path, 0o600) }},
		{"dangling link", func(path string) error { return os.Symlink("/nonexistent/fairlead", path) }},
		{"device", func(path string) error { return os.Symlink("/dev/zero", path) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := tt.make(filepath.Join(dir, "source")); err != nil {
				t.Fatal(err)
			}
			_, _, err := environment{args: []string{"--config-dir", dir}}.load(t)
			if err == nil || !strings.Contains(err.Error(), "read option source") {
				t.Errorf("have %v", err)
			}
		})
	}
}

func TestHostname(t *testing.T) {
	broken := func() (string, error) { return "", errors.New("no name") }
	bad := func() (string, error) { return "my_host", nil }
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(flags)
	if _, err := load(flags, nil, broken); err == nil || !strings.Contains(err.Error(), "no name") {
		t.Errorf("a host name that cannot be read: %v", err)
	}
	if _, err := load(flags, nil, bad); err == nil || !strings.Contains(err.Error(), `option node-name: "my_host" from default`) {
		t.Errorf("a host name that is not a valid node name: %v", err)
	}
	if _, err := load(flags, []string{"FAIRLEAD_NODE_NAME=n"}, broken); err != nil {
		t.Errorf("the host name was read although a node name was set: %v", err)
	}
}

// TestServiceLinks checks that the variables are accepted that a Service named fairlead, or
// fairlead-anything, puts into every pod of its namespace.
func TestServiceLinks(t *testing.T) {
	for _, service := range []string{"FAIRLEAD", "FAIRLEAD_METRICS", "FAIRLEAD_LOG_LEVEL"} {
		var env []string
		for _, suffix := range []string{
			"SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP_METRICS", "PORT", "PORT_80_TCP", "PORT_80_TCP_PROTO",
			"PORT_53_UDP_PORT", "PORT_9_SCTP_ADDR",
		} {
			env = append(env, service+"_"+suffix+"=tcp://10.0.0.1:80")
		}
		if _, _, err := (environment{env: env}).load(t); err != nil {
			t.Errorf("a Service named %s: %v", service, err)
		}
	}
	for _, o := range Options() {
		if isServiceLink(o.Env()) {
			t.Errorf("option %s: a Service can have a name that causes the variable %s too; rename the option",
				o.Name, o.Env())
		}
	}
}

func TestFlagsOfSomeOptions(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(flags, "bpffs", "state-dir")
	var names []string
	flags.VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	if diff := cmp.Diff([]string{"bpffs", "state-dir"}, names); diff != "" {
		t.Errorf("flags (-want +have):\n%s", diff)
	}
	if err := flags.Parse([]string{"--bpffs=/b"}); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(flags, []string{"FAIRLEAD_LOG_LEVEL=debug", "FAIRLEAD_NODE_NAME=n"})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.BPFFS != "/b" || cfg.LogLevel != "debug" {
		t.Errorf("bpffs is %q, log-level %q", cfg.BPFFS, cfg.LogLevel)
	}
	defer func() {
		if recover() == nil {
			t.Error("a name that is not an option was accepted")
		}
	}()
	AddFlags(flags, "bpfs")
}

func TestForeignFlag(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.Bool("source", false, "")
	if err := flags.Parse([]string{"--source"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(flags, nil); err == nil || !strings.Contains(err.Error(), "--source") {
		t.Errorf("a flag of another type was accepted as the option: %v", err)
	}
}
