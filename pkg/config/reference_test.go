package config

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite docs/configuration.md")

// TestReference checks that docs/configuration.md matches the table.
func TestReference(t *testing.T) {
	const path = "../../docs/configuration.md"
	want := reference()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with: go test ./pkg/config -run TestReference -update", err)
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("%s is out of date; rewrite it with: go test ./pkg/config -run TestReference -update\n%s", path, diff)
	}
}

func reference() string {
	var b strings.Builder
	b.WriteString(`<!-- Generated from the table of options in pkg/config: go test ./pkg/config -run TestReference -update -->

# Configuration

You can set every option of the agent in three ways. The first of these that sets it wins:

1. the flag ` + "`--NAME`" + `;
2. the environment variable ` + "`FAIRLEAD_NAME`" + `, in upper case and with ` + "`_`" + ` for ` + "`-`" + `;
3. a file called NAME in the directory that ` + "`--config-dir`" + ` (or ` + "`FAIRLEAD_CONFIG_DIR`" + `) names, such as a mounted ConfigMap. The
   file's content is the value, without the newline at its end. Files whose names begin with a dot are ignored.

Otherwise the default applies.

The agent does not start if a flag, a variable that begins with ` + "`FAIRLEAD_`" + ` or a file in the directory is not an option, or if a
value is not allowed. The message names the option, the value and where it came from. Two kinds of variables are ignored: those that the
kubelet makes for Services whose names begin with "fairlead" (` + "`FAIRLEAD_..._SERVICE_HOST`" + `, ` + "`FAIRLEAD_..._PORT`" + ` and the like), and
` + "`FAIRLEAD_REQUIRE`" + `, which only the project's tests read.

` + "`fairlead config`" + ` shows the value of every option of a running agent and where it came from.

| option | environment variable | default | what it decides |
| --- | --- | --- | --- |
`)
	for _, o := range Options() {
		value := o.Shown
		if o.Shown == "" {
			value = "`" + o.Default + "`"
		}
		usage := strings.ToUpper(o.Usage[:1]) + o.Usage[1:] + "."
		if o.Values != nil {
			usage += " One of `" + strings.Join(o.Values, "`, `") + "`."
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", o.Name, o.Env(), value, usage)
	}
	return b.String()
}
