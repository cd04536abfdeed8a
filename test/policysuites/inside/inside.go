// Package inside runs a package's tests from where a cluster's API server is reached.
package inside

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"fairlead.io/fairlead/test/cluster/running"
)

// root is the project's directory, for a package of this module.
const root = "../../.."

// marker is the variable that tells a test program that it is where it should be.
const marker = "FAIRLEAD_INSIDE"

var prefix = flag.String("prefix", "fl", "prefix of the cluster")

// Main runs the tests of a package in the network namespace of the cluster's control plane, with KUBECONFIG set. The
// cluster is the one that -prefix names.
func Main(m *testing.M) {
	flag.Parse()
	if os.Getenv(marker) != "" {
		os.Exit(m.Run())
	}
	err := enter()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func enter() error {
	cluster, err := running.Find(context.Background(), root, *prefix)
	if err != nil {
		return err
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), marker+"=yes", "KUBECONFIG="+cluster.Kubeconfig)
	return cluster.Netns("control").Run(cmd)
}
