package observe

import (
	"fairlead.io/fairlead/pkg/bigtcp"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/masquerade"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/queues"
)

// PodNetwork is the state of the network of the node's pods, with everything that belongs to it.
type PodNetwork struct {
	podnet.Status
	Routing    *fabric.Status     `json:"routing,omitempty"`    // nil if fairlead does not route to other nodes
	BigTCP     *bigtcp.Status     `json:"bigTCP,omitempty"`     // nil unless configured
	Bandwidth  *queues.Status     `json:"bandwidth,omitempty"`  // nil unless configured
	Masquerade *masquerade.Status `json:"masquerade,omitempty"` // nil without a file
}

func (p *PodNetwork) line() string {
	text := p.Status.Text()
	if p.Masquerade != nil {
		text += p.Masquerade.Text()
	}
	if p.Routing != nil {
		text += p.Routing.Text()
	}
	return text
}

func (p *PodNetwork) allFindings(say func(string, ...any)) {
	if p == nil {
		return
	}
	p.Routing.Findings(say)
	p.BigTCP.Findings(say)
	p.Bandwidth.Findings(say)
	p.Masquerade.Findings(say)
	p.Status.Findings(say)
}
