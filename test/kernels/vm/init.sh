#!/bin/busybox sh
# The first process of a test machine: lays out the file systems, loads the modules, runs the jobs one after the other,
# and hands back what they left in /out. It needs no driver for any of it:
#
#   ttyS0   the kernel's console, with whatever goes wrong in here
#   ttyS1   what the jobs write, between lines that say which job begins and how it ended
#   ttyS2   a tar archive of /out, at the end
#
# It speaks of no job by itself. /jobs, which is sourced, calls job for each, or shell. Ending at an error is on purpose:
# the kernel panics when its first process ends, and that is reported.
set -eu
export PATH=/bin HOME=/root TMPDIR=/tmp TERM=linux
busybox=/bin/busybox
$busybox mkdir -p /proc /sys /dev /run /tmp /out /root /etc /var
$busybox --install -s /bin

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for dir in /dev/shm /run /tmp; do mount -t tmpfs tmpfs $dir; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing

hostname vm
echo '127.0.0.1 localhost' >/etc/hosts
echo 'root:x:0:0:root:/root:/bin/sh' >/etc/passwd
ip link set lo up
while read -r module; do insmod "$module"; done </modules

# A terminal that changes no byte.
for port in /dev/ttyS1 /dev/ttyS2; do stty -F $port raw -echo; done
exec 3>/dev/ttyS1

say() { printf '\n%s %s\n' "$MARK" "$*" >&3; }

# job NAME COMMAND [ARGUMENT...]   runs a command in the job's directory
job() {
	name=$1 code=0
	shift
	mkdir -p "/job/$name" "/out/$name"
	say begin "$name"
	(cd "/job/$name" && JOB_OUT=/out/$name exec "$@") </dev/null >&3 2>&1 3>&- || code=$?
	say end "$name" "$code"
}

# shell   gives whoever sits at the console a shell, in place of jobs
shell() {
	echo 'What the jobs need is in /job; end the shell, or press Ctrl-A X, to switch off.'
	cd /job
	setsid cttyhack sh || true
	reboot -f
}

. /jobs
tar -C /out -cf /dev/ttyS2 .
say done
# Closing waits until everything has been sent.
exec 3>&-
reboot -f
