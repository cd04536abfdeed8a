package observe

// PodNetwork is the state of the network of the node's pods, with everything that belongs to it.
type PodNetwork struct {
	PodNetworkStatus
	Routing    *RoutingStatus    `json:"routing,omitempty"`    // nil if fairlead does not route to other nodes
	BigTCP     *BigTCPStatus     `json:"bigTCP,omitempty"`     // nil unless configured
	Bandwidth  *BandwidthStatus  `json:"bandwidth,omitempty"`  // nil unless configured
	Masquerade *MasqueradeStatus `json:"masquerade,omitempty"` // nil without a file
}

func (p *PodNetwork) line() string {
	text := p.PodNetworkStatus.text()
	if p.Masquerade != nil {
		text += p.Masquerade.text()
	}
	if p.Routing != nil {
		text += p.Routing.text()
	}
	return text
}

func (p *PodNetwork) allFindings(say func(string, ...any)) {
	if p == nil {
		return
	}
	p.Routing.findings(say)
	p.BigTCP.findings(say)
	p.Bandwidth.findings(say)
	p.Masquerade.findings(say)
	p.PodNetworkStatus.findings(say)
}
