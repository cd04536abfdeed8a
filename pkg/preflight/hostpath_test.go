package preflight

import (
	"os"
	"path/filepath"
	"testing"
)

// A path inside a container is named as the node knows it, wherever the file system is mounted there.
func TestOnHost(t *testing.T) {
	const own = `21 1 0:50 / / rw - overlay none rw
22 21 8:1 /etc/cni/net.d /host/etc/cni/net.d rw - ext4 /dev/sda1 rw
23 21 8:3 /cni /host/opt/cni/bin rw - ext4 /dev/sda3 rw
24 21 8:1 /a\040b /spaced rw - ext4 /dev/sda1 rw
25 21 9:9 / /elsewhere rw - ext4 /dev/sdz rw
`
	const host = `1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 8:3 / /opt rw - ext4 /dev/sda3 rw
3 1 8:1 /etc/cni /mnt/copy rw - ext4 /dev/sda1 rw
`
	for _, tt := range []struct{ own, host, dir, want string }{
		{own, "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n", "/host/etc/cni/net.d", "/etc/cni/net.d"},
		{own, host, "/host/etc/cni/net.d", "/etc/cni/net.d"},
		{own, host, "/host/opt/cni/bin/x", "/opt/cni/x"},
		{own, host, "/spaced", "/a b"},
		{own, host, "/elsewhere/x", "/elsewhere/x"}, // the node has no such mount
		{own, host, "/etc", "/etc"},                 // the container's own
		{own, "", "/host/opt/cni/bin", "/host/opt/cni/bin"},
		{"", host, "/host/opt/cni/bin", "/host/opt/cni/bin"},
		{host, host, "/opt/cni/bin", "/opt/cni/bin"}, // no container
		{host, host, "/etc/cni/net.d", "/etc/cni/net.d"},
	} {
		n := &Node{Root: Root(t.TempDir())}
		for name, text := range map[string]string{"proc/self/mountinfo": tt.own, "proc/1/mountinfo": tt.host} {
			path := filepath.Join(string(n.Root), name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := n.onHost(tt.dir); got != tt.want {
			t.Errorf("%s is %s on the node, want %s", tt.dir, got, tt.want)
		}
	}
}
