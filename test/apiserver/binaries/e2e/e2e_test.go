// Package e2e is upstream's end-to-end tests with a main of our own. Upstream's links the tests of storage, scheduling
// and everything else too, which take minutes to compile and have nothing to say about a network. The specs, their
// names and the flags are upstream's.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"testing"

	// The ginkgo command looks for this import to tell whether a directory has a suite.
	_ "github.com/onsi/ginkgo/v2"

	"k8s.io/component-base/version"
	conformance "k8s.io/kubernetes/test/conformance/testdata"
	upstream "k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	manifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	"k8s.io/kubernetes/test/fixtures"

	_ "k8s.io/kubernetes/test/e2e/feature" // the labels of features

	_ "k8s.io/kubernetes/test/e2e/network" // the specs, besides those that every suite has

	// What these do at the start of a run belongs to the framework.
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/utils/format"
)

func TestMain(m *testing.M) {
	showVersion := flag.Bool("version", false, "print the version and exit")
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	if *showVersion {
		fmt.Println(version.Get())
		return
	}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "e2e: there are no arguments, only flags: %q\n", flag.Args())
		os.Exit(2)
	}
	testfiles.AddFileSource(manifests.GetE2ETestingManifestsFS())
	testfiles.AddFileSource(fixtures.GetTestFixturesFS())
	testfiles.AddFileSource(conformance.GetConformanceTestdataFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	os.Exit(m.Run())
}

func TestE2E(t *testing.T) { upstream.RunE2ETests(t) }
