package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/policies"
)

func newPolicyAuditCommand(inv *invocation) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "audit -f FILE",
		Short: "Show which flows policies would cut before you apply them",
		Long: `Show which flows of this node's pods would be cut by the policies in a file, before you apply them: NetworkPolicies and
ClusterNetworkPolicies, as YAML or JSON. They are added to the policies in force, or take the place of those with the same
name. Nothing changes. "-" stands for the standard input.

What is looked at are the flows that the programs know: those of pods that a policy is about already, and those that the
programs translate, such as connections to Services and to the outside. What pods without any policy send to each other
directly has no row, and is not seen. Flows that are denied now are not listed. Ask on each node.

What is marked "unsure" has an end whose labels this node does not know, since no policy needs them yet.`,
		Example: `  fairlead policy audit -f deny-all.yaml
  kubectl get networkpolicy -n shop web -o yaml | fairlead policy audit -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return config.UsageError{Err: fmt.Errorf("no policies to look at: name their file with -f, or - for the standard input")}
			}
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			text, err := readPolicies(cmd.InOrStdin(), path)
			if err != nil {
				return err
			}
			audit, err := client(cfg).AuditPolicies(cmd.Context(), filepath.Base(path), text)
			if err != nil {
				return err
			}
			return inv.print(audit, func(w io.Writer) error { return writeAudit(w, &audit) })
		},
	}
	cmd.Flags().StringVarP(&path, "filename", "f", "", "file with the policies; - for the standard input")
	return cmd
}

// readPolicies reads a file, or the standard input.
func readPolicies(stdin io.Reader, path string) ([]byte, error) {
	in := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read policies: %w", err)
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, api.MaxAudit+1))
	if err != nil {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	if len(text) > api.MaxAudit {
		return nil, fmt.Errorf("read policies: %s is longer than %d bytes: look at some of the policies at a time", path, api.MaxAudit)
	}
	return text, nil
}

func writeAudit(w io.Writer, a *policies.Audit) error {
	fmt.Fprintf(w, "policies: %s\n%d flows were looked at, %d of them would be cut\n", joinedWords(a.Policies), a.Flows, a.Total)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(a.Cut) > 0 {
		fmt.Fprintln(table, "\nFROM\tTO\tPROTOCOL\tPOD\tDENIED BY")
	}
	for i := range a.Cut {
		c := &a.Cut[i]
		unsure := ""
		if c.Unsure {
			unsure = " (unsure)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s%s\n", c.Source, c.Destination, c.Protocol, c.Pod, c.By, unsure)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if more := a.Total - len(a.Cut); more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
	return writeLines(w, a.Notes)
}
