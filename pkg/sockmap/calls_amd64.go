package sockmap

import "golang.org/x/sys/unix"

// calls are the numbers of the system calls that the programs recognize.
var calls = callNumbers{
	reads: [2]uint64{unix.SYS_READ, unix.SYS_READV}, writes: [2]uint64{unix.SYS_WRITE, unix.SYS_WRITEV},
	recv: unix.SYS_RECVFROM, recvmsg: unix.SYS_RECVMSG, send: unix.SYS_SENDTO, sendmsg: unix.SYS_SENDMSG,
	splices: [3]uint64{unix.SYS_SPLICE, unix.SYS_SENDFILE, unix.SYS_GETSOCKOPT},
}
