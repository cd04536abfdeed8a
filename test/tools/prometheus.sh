#!/usr/bin/env bash
# Fetches prometheus and promtool, which checks alerts, out of Debian's or Ubuntu's package, without installing that: it would start a server.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/fairlead/bin
if [ -x "$cache/prometheus" ] && [ -x "$cache/promtool" ]; then
	exit 0
fi
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
cd "$temp"
# The lists of packages may be missing or old.
if ! apt-get download -q prometheus && [ "$(id -u)" = 0 ]; then
	apt-get update -q
	apt-get download -q prometheus
fi
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/prometheus ./usr/bin/promtool
mkdir -p "$cache"
mv usr/bin/prometheus usr/bin/promtool "$cache"
