package source

import (
	"fairlead.io/fairlead/pkg/model"
	corev1 "k8s.io/api/core/v1"
)

// taken records what the ports of one Service or Pod occupy, so that a second claim is reported
// instead of mixing up two ports.
type taken map[any]struct{}

// claim reports whether the caller is the first to claim key.
func (t taken) claim(key any) bool {
	_, found := t[key]
	t[key] = struct{}{}
	return !found
}

type (
	namedPort struct {
		name     string
		protocol model.Protocol
	}
	servicePort struct {
		port     int32
		protocol model.Protocol
	}
	nodePort servicePort
)

func ports(p *problems, spec *corev1.ServiceSpec) []model.Port {
	if len(spec.Ports) == 0 {
		return nil
	}
	used := make(taken, 3*len(spec.Ports))
	list := make([]model.Port, 0, len(spec.Ports))
	for i := range spec.Ports {
		in := &spec.Ports[i]
		proto, ok := protocol(in.Protocol)
		switch {
		case !ok:
			p.add("UnsupportedProtocol", "port %d is ignored: its protocol %.64q is not known, use TCP, UDP or SCTP", in.Port, in.Protocol)
			continue
		case !isPort(in.Port):
			p.add("InvalidPort", "port %d is ignored: use 1 to 65535", in.Port)
			continue
		case !used.claim(namedPort{in.Name, proto}):
			p.add("DuplicatePort", "port %d is ignored: an earlier %s port is called %.64q too, rename it", in.Port, proto, in.Name)
			continue
		case !used.claim(servicePort{in.Port, proto}):
			p.add("DuplicatePort", "port %.64q is ignored: an earlier one is %s port %d too, remove it", in.Name, proto, in.Port)
			continue
		}
		port := model.Port{Name: in.Name, Port: uint16(in.Port), Protocol: proto}
		if spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer {
			port.NodePort = nodePortOf(p, used, in, proto)
		}
		list = append(list, port)
	}
	return list
}

func nodePortOf(p *problems, used taken, in *corev1.ServicePort, proto model.Protocol) uint16 {
	switch {
	case in.NodePort == 0:
	case !isPort(in.NodePort):
		p.add("InvalidPort", "nodePort %d is ignored: use 1 to 65535", in.NodePort)
	case !used.claim(nodePort{in.NodePort, proto}):
		p.add("DuplicatePort", "nodePort %d of port %d is ignored: an earlier port has it, choose another", in.NodePort, in.Port)
	default:
		return uint16(in.NodePort)
	}
	return 0
}
