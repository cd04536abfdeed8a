// Command build builds the programs of Kubernetes that tests run, unless they are built already, and prints where they
// are: those that are named, or the etcd and the kube-apiserver that a test of the API server starts.
package main

import (
	"fmt"
	"os"

	"fairlead.io/fairlead/test/apiserver/pinned"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(names []string) error {
	set, err := pinned.Find(names...)
	if err != nil {
		return err
	}
	if err := set.Build(os.Stderr); err != nil {
		return err
	}
	for _, b := range set.All() {
		fmt.Println(b.Path)
	}
	return nil
}
