// Command build builds the Kubernetes programs that tests run, unless they are built already, and
// prints their paths. Without arguments it builds the etcd and the kube-apiserver that an API
// server test starts; arguments name other programs.
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
