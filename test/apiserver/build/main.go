// Command build builds the etcd and the kube-apiserver that tests run against, unless they are built already, and
// prints where they are.
package main

import (
	"fmt"
	"os"

	"fairlead.io/fairlead/test/apiserver/pinned"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	set, err := pinned.Find()
	if err != nil {
		return err
	}
	if err := set.Build(os.Stderr); err != nil {
		return err
	}
	fmt.Println(set.Etcd.Path)
	fmt.Println(set.APIServer.Path)
	return nil
}
