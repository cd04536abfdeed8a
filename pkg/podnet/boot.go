package podnet

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// readBoot returns the kernel's id of this boot.
func readBoot() (string, error) {
	content, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the id of this boot: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}

// uptime returns the time since boot. Nobody can set that clock, and all agents of one boot read
// the same.
func uptime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err) // every kernel has this clock
	}
	return time.Duration(now.Nano())
}
