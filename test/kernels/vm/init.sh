#!/bin/busybox sh
# The first process of a test machine: mounts the file systems, loads the modules, runs the jobs one after another, and
# returns the files that they left in /out. None of this needs a driver:
#
#   ttyS0   the kernel's console, with any errors of this script
#   ttyS1   the output of the jobs, between lines that say which job begins and how it ended
#   ttyS2   a tar archive of /out, at the end
#
# The script itself knows no jobs. It sources /jobs, which calls job for each job, or shell. It ends at the first error on
# purpose: the kernel panics when its first process ends, and that is reported.
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

# Make the terminals pass every byte unchanged.
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

# shell   runs a shell on the console, in place of jobs
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
