package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"fairlead.io/fairlead/pkg/cni"
)

// del detaches a container. It needs neither the agent nor the namespace nor the result of ADD: the
// name of the device is derived from the attachment, and an agent that cannot be reached notices
// later that the device is gone.
func del(args *skel.CmdArgs) error {
	c, err := newCall(args, 0)
	if err != nil {
		return err
	}
	return c.detach()
}

func (c *call) detach() error {
	err := removeLink(c.attachment.Device())
	if _, asked := c.agent.Ask(c.request(cni.Release), nil); asked != nil {
		fmt.Fprintf(os.Stderr, "fairlead-cni: cannot tell the agent, which will notice by itself: %v\n", asked)
	}
	return err
}

// collect releases the attachments that the runtime no longer has.
func collect(args *skel.CmdArgs) error {
	c, err := newCall(args, restart)
	if err != nil {
		return err
	}
	request := &cni.Request{Verb: cni.Collect, Attachment: cni.Attachment{Network: c.config.Name}}
	for _, valid := range c.config.ValidAttachments {
		request.Valid = append(request.Valid, cni.Attachment{Network: c.config.Name, Container: valid.ContainerID, IfName: valid.IfName})
	}
	_, err = c.agent.Ask(request, nil)
	return err
}

// status reports whether a pod could be added now.
func status(args *skel.CmdArgs) error {
	c, err := newCall(args, 0)
	if err != nil {
		return err
	}
	_, err = c.agent.Ask(&cni.Request{Verb: cni.Status}, nil)
	var refusal *types.Error
	if errors.As(err, &refusal) && refusal.Code == types.ErrTryAgainLater {
		// Existing pods keep their connections without the agent.
		return types.NewError(cni.ErrNotAvailable, refusal.Msg, refusal.Details)
	}
	return err
}
