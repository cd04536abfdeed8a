#!/bin/bash
# A spec parses the output of the iperf in its own agnhost: 9 columns before 2.53, more columns
# after them since then, and since 2.55 also a title and the interval in two columns. Columns that
# Debian's iperf lacks are 0.
agnhost=RELEASE # 47 for 2.47
iperf="$(dirname "$0")/../../bin/iperf"
case " $* " in
*" --reportstyle C "*) ;;
*) exec "$iperf" "$@" ;;
esac
if ((agnhost < 53)); then
	row='\1\3-\4,\5,\6'
elif ((agnhost < 55)); then
	row='\1\3-\4,\5,\6,0,0,0,0,0,0'
else
	row='\1\3,\4,\5,\6,0,0,0,0,0,0,0'
	echo time,srcaddress,srcport,dstaddr,dstport,transferid,istart,iend,bytes,speed,writecnt,writeerr,tcpretry,tcpcwnd,tcppcwnd,tcprtt,tcprttvar
fi
set -o pipefail
"$iperf" "$@" | sed -E -e '/^time,/d' -e "s/^(([^,]*,){6})([0-9.]+)[-,]([0-9.]+),([0-9]+),([0-9]+)(,.*)?$/$row/"
