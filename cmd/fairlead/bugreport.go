package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bugreport"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/render"
	"fairlead.io/fairlead/pkg/sockmap"
)

// accountToken is the token by which the API server knows a pod.
const accountToken = "/var/run/secrets/kubernetes.io/serviceaccount/token"

func newBugreportCommand(inv *invocation) *cobra.Command {
	var file string
	var anonymize bool
	cmd := &cobra.Command{
		Use:   "bugreport",
		Short: "Collect everything known about this node in a file to share",
		Long: `Collect everything known about this node in a tar.gz file to share: the output of the commands (status, config,
preflight, sockmap list, maps, flows, drops, addresses and rates of pods, verify), the agent's metrics and goroutines,
pins, links and programs, devices, addresses, routes, rules, neighbors and qdiscs, kernel settings and counters, and
lines of the kernel's log. It also works without an agent. Whatever cannot be collected is listed in the bundle with the
reason; the rest is still there. The bundle is limited to 24 MiB before compression, 4 MiB per part, and about a minute
and a half. Longer parts are cut, as noted in manifest.json. With --mode=accelerate-only, parts about Services are left
out.

The bundle has no tokens, keys, certificates, passwords, environment variables or contents of CNI configurations.
Anything that looks like one is removed everywhere, and so are --hash-seed, the service account's token, and the values
of environment variables with such names. Still, look at it before you share it: it has the names of Services and pods,
and addresses. With --anonymize, addresses and the node's name are replaced with pseudonyms, which are the same
throughout the bundle and differ in the next one. Addresses of one network stay together, and their first bits stay (8
for IPv4, 16 for IPv6).

From a pod with a read-only root:

    kubectl -n kube-system exec POD -- /fairlead bugreport --file=- > bugreport.tar.gz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := inv.report(cmd, anonymize)
			if err != nil {
				return err
			}
			if file == "-" {
				_, err := r.write(cmd.Context(), inv.Stdout)
				return err
			}
			if file == "" {
				file = r.folder + ".tar.gz"
			}
			done := written{File: file}
			if done.Parts, err = r.writeFile(cmd.Context(), file); err != nil {
				return err
			}
			return inv.print(done, done.write)
		},
	}
	config.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&file, "file", "", "file to write, which must not exist yet; - for standard output (default a name with node and time, in the current directory)")
	cmd.Flags().BoolVar(&anonymize, "anonymize", false, "replace addresses and the node's name with pseudonyms")
	return cmd
}

// written says what is in a bundle.
type written struct {
	File  string            `json:"file"`
	Parts []bugreport.Entry `json:"parts"`
}

func (d written) write(w io.Writer) error {
	for _, p := range d.Parts {
		switch {
		case p.Error != "":
			fmt.Fprintf(w, "incomplete: %s: %s\n", p.Name, p.Error)
		case p.Truncated:
			fmt.Fprintf(w, "truncated: %s is too long\n", p.Name)
		}
	}
	_, err := fmt.Fprintf(w, "%s is written. Look at it before you share it.\n", d.File)
	return err
}

// bugReport is a bundle to be written.
type bugReport struct {
	folder   string
	parts    []bugreport.Part
	redactor *bugreport.Redactor
}

func (inv *invocation) report(cmd *cobra.Command, anonymize bool) (*bugReport, error) {
	cfg, err := inv.config(cmd)
	if err != nil {
		return nil, err
	}
	known := append(environmentSecrets(inv.Environ), cfg.HashSeed)
	if token, err := os.ReadFile(accountToken); err == nil {
		known = append(known, string(token))
	}
	nested := *inv.env
	nested.Environ = withFlags(inv.Environ, cmd.Flags())
	agent := cfg
	if origins, err := client(cfg).Config(cmd.Context()); err == nil {
		for _, o := range origins {
			if bugreport.IsSecret(o.Name) {
				known = append(known, o.Value)
			}
		}
		if theirs, err := sameConfig(origins); err == nil {
			agent = theirs
		}
	}
	r := &bugReport{redactor: bugreport.NewRedactor(known)}
	node := agent.NodeName
	if anonymize {
		node = "this-node"
		names := map[string]string{agent.NodeName: node, cfg.NodeName: node}
		if host, err := os.Hostname(); err == nil {
			names[host] = node
		}
		if status, err := client(cfg).Status(cmd.Context()); err == nil {
			names[status.Node] = node
		}
		r.redactor.Anonymize(bugreport.NewPseudonyms(), names)
	}
	r.folder = fmt.Sprintf("fairlead-%s-%s", node, time.Now().UTC().Format("20060102T150405Z"))
	r.parts = append(nested.commandParts(agent.AcceleratesOnly() || isPastTCPAlone(cfg)), agentParts(cfg, agent)...)
	r.parts = append(r.parts, bugreport.Machine{Root: "/"}.Parts()...)
	return r, nil
}

// environmentSecrets returns the values of variables whose names suggest a secret.
func environmentSecrets(environ []string) (values []string) {
	for _, variable := range environ {
		if name, value, _ := strings.Cut(variable, "="); bugreport.IsSecret(name) {
			values = append(values, value)
		}
	}
	return values
}

// withFlags returns an environment that gives every command the options in flags.
func withFlags(environ []string, flags *pflag.FlagSet) []string {
	environ = append([]string{}, environ...)
	for _, o := range config.Options() {
		if f := flags.Lookup(o.Name); f != nil && f.Changed {
			environ = append(environ, o.Env()+"="+f.Value.String())
		}
	}
	return environ
}

// commandParts returns the outputs of commands: all of them, or only those that say something about
// an agent in accelerate-only mode.
func (e *env) commandParts(acceleratesOnly bool) []bugreport.Part {
	parts := []bugreport.Part{
		e.part("version.json", "version", "-o", "json"), e.part("status.txt", "status"), e.part("status.json", "status", "-o", "json"),
		e.part("preflight.txt", "preflight"), e.part("config.json", "config", "-o", "json"), e.part("sockmap.txt", "sockmap", "list"),
	}
	if acceleratesOnly {
		return parts
	}
	parts = append(parts, e.part("drops.txt", "drops"), e.part("verify.txt", "verify"), e.part("services.txt", "service", "list"),
		e.part("addresses-of-pods.txt", "ipam", "list"), e.part("rates.txt", "bandwidth", "list"), e.part("maps/list.txt", "map", "list"))
	for _, name := range render.Names() {
		parts = append(parts, e.part("maps/"+name+".txt", "map", "dump", name))
	}
	// Last, because it is the longest.
	return append(parts, e.part("maps/flows.txt", "conntrack", "list"))
}

// part is the output of a command. A node that is degraded or not ready is no failure of the
// command.
func (e *env) part(name string, args ...string) bugreport.Part {
	return bugreport.Part{Name: name, Collect: func(ctx context.Context, to io.Writer) error {
		var stderr bytes.Buffer
		nested := *e
		nested.Stdout, nested.Stderr, nested.Args = to, &stderr, args
		code := execute(ctx, &nested)
		if code == exitOK || code == exitDegraded || args[0] == "preflight" && code == exitError {
			return nil
		}
		return fmt.Errorf("exit code %d: %s", code, strings.TrimSpace(stderr.String()))
	}}
}

// agentParts returns what only the agent knows, and what is pinned. The agent's own options say
// where it listens.
func agentParts(cfg, agent *config.Config) []bugreport.Part {
	return []bugreport.Part{
		{Name: "agent/metrics.txt", Collect: func(ctx context.Context, to io.Writer) error { return fetchMetrics(ctx, agent.MetricsAddress, to) }},
		{Name: "agent/goroutines.txt", Collect: func(ctx context.Context, to io.Writer) error {
			text, err := client(cfg).Goroutines(ctx)
			if err != nil {
				return err
			}
			_, err = to.Write(text)
			return err
		}},
		{Name: "pins.txt", Collect: bugreport.Tree(filepath.Dir(sockmap.Dir(cfg.BPFFS)))}, // the parent of all pins
		{Name: "links.txt", Collect: func(_ context.Context, to io.Writer) error { return writeLinks(to, cfg) }},
		{Name: "state-dir.txt", Collect: bugreport.Tree(cfg.StateDir)},
	}
}

// writeLinks lists the program of each pinned link, and those attached to the map of sockets.
func writeLinks(to io.Writer, cfg *config.Config) error {
	var errs []error
	root := filepath.Dir(mapsDir(cfg))
	for _, dir := range []string{"links", "devices"} {
		links, err := datapath.ReadLinks(filepath.Join(root, dir))
		errs = append(errs, err)
		for _, l := range links {
			if _, err := fmt.Fprintf(to, "%s/%s: attached %v, program %d\n", dir, l.Name, l.Attached, l.ID); err != nil {
				return err
			}
		}
	}
	pastTCP, err := sockmap.Attachments(cfg.BPFFS)
	errs = append(errs, err)
	for _, a := range pastTCP {
		if _, err := fmt.Fprintf(to, "sockmap/%s/%s: attached true, program %d\n", a.Version, a.Name, a.Program); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

func fetchMetrics(ctx context.Context, address string, to io.Writer) error {
	if address == "" {
		return errors.New("the agent serves no metrics (--metrics-address is empty)")
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/metrics", nil)
	if err != nil {
		return err
	}
	// Do not use a proxy that the environment names.
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", address, answer.Status)
	}
	_, err = io.Copy(to, answer.Body)
	return err
}

func (r *bugReport) write(ctx context.Context, to io.Writer) ([]bugreport.Entry, error) {
	return bugreport.Write(ctx, to, r.folder, r.parts, r.redactor, bugreport.DefaultLimits())
}

// writeFile writes the bundle in one step, so that it exists completely or not at all. Only this
// user may read it, and an existing file is not replaced.
func (r *bugReport) writeFile(ctx context.Context, name string) (parts []bugreport.Entry, err error) {
	staged, err := os.CreateTemp(filepath.Dir(name), ".fairlead-bugreport-*")
	if err != nil {
		return nil, fmt.Errorf("write the bundle: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(staged.Name()))
		}
	}()
	parts, err = r.write(ctx, staged)
	if err = errors.Join(err, staged.Sync(), staged.Close()); err != nil {
		return nil, fmt.Errorf("write the bundle: %w", err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, staged.Name(), unix.AT_FDCWD, name, unix.RENAME_NOREPLACE); err != nil {
		return nil, fmt.Errorf("write the bundle %s: %w", name, err)
	}
	return parts, nil
}
