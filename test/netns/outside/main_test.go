// Package outside lets clients outside a node reach backends with real sockets: a client, a router,
// two nodes that run the packet programs, and their pods, each in its own network namespace.
package outside

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) {
	os.Exit(rig.Main(m, rig.Funcs{
		"node": serveOrders(newNodeMain), "sockets": serveOrders(newSocketsMain), "flows": serveOrders(newFlowsMain),
	}))
}

// serveOrders makes the main function of a child that takes orders on its standard input, one line
// of JSON each, and answers each with such a line.
func serveOrders[O, A any](start func(args []string) (do func(O) (A, error), err error)) func([]string) int {
	return func(args []string) int {
		do, err := start(args)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		orders, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
		for {
			var order O
			if err := orders.Decode(&order); errors.Is(err, io.EOF) {
				return 0
			} else if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			answer, err := do(order)
			reply := struct {
				Answer A
				Err    string
			}{Answer: answer}
			if err != nil {
				reply.Err = err.Error()
			}
			if err := answers.Encode(reply); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
	}
}

// child is a process that takes orders.
type child[O, A any] struct {
	t       *testing.T
	process *rig.Process
}

// try gives an order and returns its result.
func (c *child[O, A]) try(order O) (A, error) {
	c.t.Helper()
	var reply struct {
		Answer A
		Err    string
	}
	if err := c.process.Ask(order, &reply); err != nil {
		c.process.Kill()
		c.t.Fatalf("%v: %v", err, c.process.Wait())
	}
	if reply.Err != "" {
		return reply.Answer, errors.New(reply.Err)
	}
	return reply.Answer, nil
}

// do gives an order that must succeed.
func (c *child[O, A]) do(order O) A {
	c.t.Helper()
	answer, err := c.try(order)
	if err != nil {
		c.t.Fatalf("order %+v: %v", order, err)
	}
	return answer
}
