#!/bin/bash
# iperf 2.2, which a spec reads the rows of, has other columns than the iperf of Debian 12: a title, the interval in two
# columns, and more behind. What Debian's does not know is 0.
iperf="$(dirname "$0")/../../bin/iperf"
case " $* " in
*" --reportstyle C "*) ;;
*) exec "$iperf" "$@" ;;
esac
set -o pipefail
"$iperf" "$@" | sed -E \
	-e '1{/^time,/!i time,srcaddress,srcport,dstaddr,dstport,transferid,istart,iend,bytes,speed,writecnt,writeerr,tcpretry,tcpcwnd,tcppcwnd,tcprtt,tcprttvar' -e '}' \
	-e 's/^(([^,]*,){6})([0-9.]+)-([0-9.]+),([0-9]+),([0-9]+)(,.*)?$/\1\3,\4,\5,\6,0,0,0,0,0,0,0/'
