package podnet

import "fairlead.io/fairlead/pkg/cni"

// Cookies returns the cookies of the pods' network namespaces, for pods that the runtime has named.
func (n *Network) Cookies() map[cni.Pod]uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	cookies := map[cni.Pod]uint64{}
	for _, record := range n.records {
		if record.Pod.Name != "" && record.Cookie != 0 {
			cookies[record.Pod] = record.Cookie
		}
	}
	return cookies
}
