// Command fairlead is the agent of a node, and the commands to inspect it.
package main

import (
	"context"
	"os"
)

func main() { os.Exit(run()) }

func run() int {
	return execute(context.Background(), &env{
		Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Args: os.Args[1:],
	})
}
