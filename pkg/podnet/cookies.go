package podnet

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
)

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

// Records returns the registered interfaces of pods, in no order.
func (n *Network) Records() []Record {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := make([]Record, 0, len(n.records))
	for _, record := range n.records {
		list = append(list, *record)
	}
	return list
}

// cookieOf returns the cookie of the network namespace that a sock_diag socket was opened in. It
// comes from the kernel, so the sender cannot forge it.
func cookieOf(socket *os.File) (uint64, error) {
	if socket == nil {
		return 0, errors.New("no socket of the pod's network namespace came with the request")
	}
	fd := int(socket.Fd())
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || kind != unix.NETLINK_SOCK_DIAG {
		return 0, errors.Join(errors.New("the file that came with the request is not a sock_diag socket"), err)
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("ask for the cookie of the pod's network namespace: %w", err)
	}
	return cookie, nil
}
