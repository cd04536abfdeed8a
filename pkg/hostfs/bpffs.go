package hostfs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// CheckBPFFS returns an error unless there is a bpf filesystem at path.
func CheckBPFFS(path string) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return fmt.Errorf("check bpf filesystem %s: %w", path, err)
	}
	if stat.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("check bpf filesystem: %[1]s is not one; mount it with \"mount -t bpf bpf %[1]s\"", path)
	}
	return nil
}
