package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"fairlead.io/fairlead/test/rig"
)

// hand is a process that follows orders.
type hand struct {
	*rig.Process
	name string
}

func (s *twoNodesTwoPods) hire(ns *rig.Netns, name string) (*hand, error) {
	p, err := rig.StartChild(nil, ns, workerName)
	if err != nil {
		return nil, err
	}
	s.later(func() error { p.Kill(); return nil })
	return &hand{p, name}, nil
}

// send gives an order without waiting for the reply.
func (h *hand) send(o any) error {
	line, err := json.Marshal(o)
	if err == nil {
		_, err = h.Stdin.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("send an order to the %s: %w", h.name, err)
	}
	return nil
}

// hear waits for the reply.
func (h *hand) hear(r any) error {
	line, err := h.ReadLine()
	if err != nil {
		return fmt.Errorf("read the reply of the %s: %w", h.name, err)
	}
	var failed struct{ Error string }
	if err := errors.Join(json.Unmarshal([]byte(line), r), json.NewDecoder(bytes.NewReader([]byte(line))).Decode(&failed)); err != nil {
		return fmt.Errorf("parse the reply of the %s: %w", h.name, err)
	}
	if failed.Error != "" {
		return fmt.Errorf("the %s cannot %s", h.name, failed.Error)
	}
	return nil
}

// ask gives an order and waits for the reply.
func (h *hand) ask(o order) (r reply, err error) {
	if err := h.send(o); err != nil {
		return r, err
	}
	return r, h.hear(&r)
}

// both holds the replies of the two ends.
type both struct{ client, server reply }

// together makes the two ends do something with each other.
func together(client, server *hand, do, serve order) (b both, err error) {
	if err := errors.Join(server.send(serve), client.send(do)); err != nil {
		return b, err
	}
	if err := client.hear(&b.client); err != nil {
		return b, err
	}
	return b, server.hear(&b.server)
}
