// Command e2e runs upstream's end-to-end tests against the running cluster and compares the results
// with expected.tsv. It fails on anything unexpected: a failure, a pass of a spec that is listed as
// failing, or a listed spec that did not run.
//
//	go run ./test/cluster/e2e                          all specs of the network
//	go run ./test/cluster/e2e -focus 'udp|UDP'         all specs whose name matches
//	go run ./test/cluster/e2e -short                   the short run
//
// The directory given with -out receives junit.xml, results.tsv, and the output of the suite in *.log.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"fairlead.io/fairlead/test/cluster/e2e/verdict"
	"fairlead.io/fairlead/test/cluster/running"
)

//go:embed expected.tsv
var expected string

// errNews reports that the printed verdict is not good.
var errNews = errors.New("not as expected")

type options struct {
	focus   string
	short   bool
	proxy   string
	prefix  string
	out     string
	procs   int
	timeout time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("e2e", flag.ContinueOnError)
	flags.StringVar(&o.focus, "focus", `\[sig-network\]`, "regular expression of the specs to run")
	flags.BoolVar(&o.short, "short", false, "run the short list instead")
	flags.StringVar(&o.proxy, "proxy", "none", "who serves Services: none for fairlead, or kube-proxy's mode, iptables or nftables")
	flags.StringVar(&o.prefix, "prefix", "fl", "prefix of the cluster")
	flags.StringVar(&o.out, "out", filepath.Join("_output", "e2e"), "directory for the results")
	flags.IntVar(&o.procs, "procs", 6, "how many specs run at once")
	flags.DurationVar(&o.timeout, "timeout", time.Hour, "how long all of it may take")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cluster, err := running.Find(ctx, ".", o.prefix)
	if err != nil {
		return err
	}
	list, err := verdict.ParseList(strings.NewReader(expected))
	if err != nil {
		return err
	}
	where := verdict.Cluster{Family: string(cluster.Family), Nodes: cluster.Nodes, Proxy: proxyName(o.proxy)}
	if _, err := fmt.Sscanf(cluster.Kubernetes, "v1.%d.", &where.Minor); err != nil {
		return fmt.Errorf("find the minor of Kubernetes %q: %w", cluster.Kubernetes, err)
	}
	list = list.In(where)
	if o.short {
		o.focus = list.Smoke()
	}
	focus, err := regexp.Compile(o.focus)
	if err != nil {
		return fmt.Errorf("option focus: %w", err)
	}
	suite, err := newSuite(o, cluster, list.Never())
	if err != nil {
		return err
	}
	began := time.Now()
	result, err := suite.run(ctx)
	if err != nil {
		return err
	}
	if o.proxy == "none" {
		others, err := findProxies(cluster)
		if err != nil {
			return err
		}
		result.Problems = append(result.Problems, others...)
	}
	v := verdict.Compare(result, list, focus)
	if err := errors.Join(write(o.out, "results.tsv", v.WriteTSV), write(o.out, "junit.xml", v.WriteJUnit)); err != nil {
		return err
	}
	counts := v.Counts()
	fmt.Printf("%d passed, %d failed, %d skipped, %d flaky in %v; %s\n", counts[verdict.Pass], counts[verdict.Fail],
		counts[verdict.Skip], counts[verdict.Flaky], time.Since(began).Round(time.Second), filepath.Join(o.out, "results.tsv"))
	for _, problem := range v.Problems {
		fmt.Println("  " + problem)
	}
	if !v.Good() {
		return errNews
	}
	return nil
}

// proxyName returns the name that the list of expectations uses for whatever serves Services.
func proxyName(mode string) string {
	if mode == "none" {
		return "fairlead"
	}
	return mode
}

// write writes a file of results.
func write(dir, name string, content func(io.Writer) error) error {
	file, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return errors.Join(content(file), file.Close())
}
