package config

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"pgregory.net/rapid"
)

func TestMistakes(t *testing.T) {
	long := strings.Repeat("a", 5000)
	tests := []struct {
		name  string
		given environment
		want  []string // all of them are in the error; none = no error
		not   string   // this is not in the error
	}{
		{name: "value", given: environment{args: []string{"--log-level=loud"}},
			want: []string{`option log-level: "loud" from flag is not one of debug, info, warn, error`}},
		{name: "value in the environment", given: environment{env: []string{"FAIRLEAD_EXTERNAL_IPS=none"}},
			want: []string{"option external-ips", `"none"`, "env FAIRLEAD_EXTERNAL_IPS", "all, external-only, deny"}},
		{name: "value in a file", given: environment{files: map[string]string{"log-format": "xml\n"}, dirFrom: "env"},
			want: []string{"option log-format", `"xml"`, "/log-format is not one of text, json"}},
		{name: "every mistake is told", given: environment{env: []string{"FAIRLEAD_LOG_LEVEL=x", "FAIRLEAD_NOISE=1"}, args: []string{"--bpffs=rel"}},
			want: []string{"option log-level", "FAIRLEAD_NOISE", "option bpffs"}},
		{name: "overruled values do not matter", given: environment{args: []string{"--log-level=info"}, env: []string{"FAIRLEAD_LOG_LEVEL=x"}}},

		{name: "near name in the environment", given: environment{env: []string{"FAIRLEAD_LOGLEVEL=info"}},
			want: []string{"FAIRLEAD_LOGLEVEL", "no such option; did you mean FAIRLEAD_LOG_LEVEL?"}},
		{name: "far name in the environment", given: environment{env: []string{"FAIRLEAD_TELEMETRY=on"}},
			want: []string{"FAIRLEAD_TELEMETRY"}, not: "did you mean"},
		{name: "near name in the directory", given: environment{files: map[string]string{"algoritm": "maglev"}, dirFrom: "flag"},
			want: []string{"algoritm", "no such option; did you mean algorithm?"}},
		{name: "the directory in the directory", given: environment{files: map[string]string{"config-dir": "/etc"}, dirFrom: "flag"},
			want: []string{"config-dir", "no such option"}},
		{name: "upper case in the directory", given: environment{files: map[string]string{"LOG-LEVEL": "info"}, dirFrom: "flag"},
			want: []string{"LOG-LEVEL", "no such option"}},
		{name: "other variables", given: environment{env: []string{"PATH=/bin", "FAIRLEAD_REQUIRE=root", "fairlead_log_level=x", "FAIRLEAD=1"}}},
		{name: "variable without a value", given: environment{env: []string{"FAIRLEAD_BPFFS"}},
			want: []string{"option bpffs", `""`, "absolute"}},
		{name: "variable without a name", given: environment{env: []string{"FAIRLEAD_=x"}}, want: []string{`"FAIRLEAD_"`}},

		{name: "no directory", given: environment{args: []string{"--config-dir=/nonexistent/fairlead"}},
			want: []string{"read option config-dir", "no such file"}},
		{name: "relative directory", given: environment{env: []string{"FAIRLEAD_CONFIG_DIR=conf"}},
			want: []string{"option config-dir", "not an absolute path"}, not: "read option"},
		{name: "hidden entries", given: environment{files: map[string]string{"..data": "x", ".swp": "y"}, dirFrom: "flag"}},
		{name: "huge file", given: environment{files: map[string]string{"source": strings.Repeat("x", maxFile+1)}, dirFrom: "flag"},
			want: []string{"read option source", "larger than"}},
		{name: "empty file", given: environment{files: map[string]string{"source": "\n"}, dirFrom: "flag"},
			want: []string{"option source", `""`, "empty"}},

		{name: "two lines", given: environment{args: []string{"--source=a\nb"}}, want: []string{"option source", `"a\nb"`, "one line"}},
		{name: "zero byte", given: environment{env: []string{"FAIRLEAD_STATE_DIR=/run\x00/x"}}, want: []string{"option state-dir", "one line"}},
		{name: "terminal escape", given: environment{args: []string{"--kubeconfig=\x1b[2J"}}, want: []string{`\x1b`}, not: "\x1b"},
		{name: "no text", given: environment{args: []string{"--source=\xff\xfe"}}, want: []string{"option source", "one line"}},
		{name: "endless value", given: environment{args: []string{"--log-level=" + long}},
			want: []string{"option log-level", "(5000 bytes)"}, not: long[:200]},
		{name: "no duration", given: environment{args: []string{"--conntrack-udp-timeout=30"}},
			want: []string{`option conntrack-udp-timeout: "30" from flag is not a duration from 1s to 1000h`}},
		{name: "short duration", given: environment{args: []string{"--conntrack-udp-timeout=999ms"}}, want: []string{"is not a duration"}},
		{name: "long duration", given: environment{args: []string{"--conntrack-udp-timeout=1001h"}}, want: []string{"is not a duration"}},
		{name: "relative cgroup", given: environment{args: []string{"--cgroup-root=x"}}, want: []string{"option cgroup-root", "absolute"}},
		{name: "no room for the socket", given: environment{args: []string{"--state-dir=/" + strings.Repeat("x", maxStateDir)}},
			want: []string{"option state-dir", "longer than"}},
		{name: "just room for the socket", given: environment{args: []string{"--state-dir=/" + strings.Repeat("x", maxStateDir-1)}}},

		{name: "node: selector", given: environment{args: []string{"--node-name=a,metadata.name!=b"}}, want: []string{"option node-name"}},
		{name: "node: upper case", given: environment{args: []string{"--node-name=Node"}}, want: []string{"option node-name"}},
		{name: "node: empty", given: environment{env: []string{"FAIRLEAD_NODE_NAME="}}, want: []string{"option node-name"}},
		{name: "node: empty label", given: environment{args: []string{"--node-name=a..b"}}, want: []string{"option node-name"}},
		{name: "node: dash at the end", given: environment{args: []string{"--node-name=a-.b"}}, want: []string{"option node-name"}},
		{name: "node: dash at the start", given: environment{args: []string{"--node-name=-a"}}, want: []string{"option node-name"}},
		{name: "node: too long", given: environment{args: []string{"--node-name=" + long[:254]}}, want: []string{"option node-name"}},
		{name: "node: fine", given: environment{args: []string{"--node-name=ip-10-0-0-1.eu-west-1.compute.internal"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, _, err := tt.given.load(t)
			if len(tt.want) == 0 {
				if err != nil {
					t.Errorf("unexpected error: %v", err)
				}
				return
			}
			if err == nil {
				t.Fatalf("no error, but %+v", cfg)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q:\n%v", want, err)
				}
			}
			if tt.not != "" && strings.Contains(err.Error(), tt.not) {
				t.Errorf("the error says %q:\n%v", tt.not, err)
			}
		})
	}
}

func TestEdits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-c]{0,6}`)
		a, b, c := word.Draw(t, "a"), word.Draw(t, "b"), word.Draw(t, "c")
		if (edits(a, b) == 0) != (a == b) {
			t.Errorf("edits(%q, %q) = %d", a, b, edits(a, b))
		}
		if edits(a, b) != edits(b, a) {
			t.Errorf("edits(%q, %q) depends on the order", a, b)
		}
		if edits(a, c) > edits(a, b)+edits(b, c) {
			t.Errorf("%q to %q is longer than by way of %q", a, c, b)
		}
	})
	if d := edits("kitten", "sitting"); d != 3 {
		t.Errorf("kitten to sitting takes %d edits", d)
	}
}

// TestHostileValues checks that no value in the environment or a file makes Load panic, and errors
// never contain such values raw.
func TestHostileValues(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		value := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
		env := []string{
			"FAIRLEAD_" + value.Draw(r, "key") + "=" + value.Draw(r, "odd"),
			rapid.SampledFrom(Options()).Draw(r, "option").Env() + "=" + value.Draw(r, "value"),
		}
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		AddFlags(flags)
		cfg, err := load(flags, env, func() (string, error) { return "n", nil })
		if (cfg == nil) == (err == nil) {
			r.Fatalf("configuration %v with error %v", cfg, err)
		}
		if err == nil {
			return
		}
		for _, c := range err.Error() {
			if c < ' ' && c != '\n' || c == 0x7f {
				r.Fatalf("the error carries a control character: %q", err)
			}
		}
	})
}
