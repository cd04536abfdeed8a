#!/usr/bin/env bash
# Runs the targets of make that are named, all of them even if one fails, and tells how each went and how long it took.
set -uo pipefail
cd "$(dirname "$0")/../.."
trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM

# These use one processor each, or wait, so they run side by side if both are named.
beside=(lint:test-bpf test-oracle:test-policyoracle test-apiserver:test-hostile)

output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT

minutes() { printf '%d.%d min' $(($1 / 60)) $(($1 % 60 / 6)); }

# Runs a part, and leaves its row and how it ended below $output.
run() {
	local part=$1 begin=$SECONDS options=() how=passed
	if [ "$part" = verify ]; then
		test/tools/toolchain.sh install
		# Others have no duty to install a compiler that building does not need. CI has.
		if [ "${CI-}" != true ] && ! test/tools/toolchain.sh check; then
			options=(WITHOUT_CLANG=yes)
			how="passed, BUT THE GENERATED FILES WERE NOT CHECKED: there is no $CLANG (see above)"
			touch "$output/$part.skipped"
		fi
	fi
	# The oldest and the newest kernel, and what differs little between them on one; all of all kernels takes twice as long.
	[ "$part" != test-kernels ] || options=(KERNELS="6.1 7.2" SHORT=yes)
	if "${MAKE:-make}" --no-print-directory "$part" "${options[@]}"; then
		touch "$output/$part.passed"
	else
		how=FAILED
	fi
	printf '%-16s %8s  %s\n' "$part" "$(minutes $((SECONDS - begin)))" "$how" >"$output/$part.row"
}

# The part that runs beside this one, if it is named too.
partner() {
	local pair
	for pair in "${beside[@]}"; do
		if [ "${pair%:*}" = "$1" ] && [[ " ${*:2} " == *" ${pair#*:} "* ]] && [ ! -e "$output/${pair#*:}.row" ]; then
			echo "${pair#*:}"
		fi
	done
}

for part in "$@"; do
	[ ! -e "$output/$part.row" ] || continue # it has run beside another
	other=$(partner "$part" "$@")
	if [ -n "$other" ]; then
		run "$other" >"$output/$other.log" 2>&1 &
	fi
	printf '\n== %s\n' "$part"
	run "$part"
	if [ -n "$other" ]; then
		wait
		printf '\n== %s\n' "$other"
		cat "$output/$other.log"
	fi
done

count() { find "$output" -name "*.$1" | wc -l; }
printf '\n'
for part in "$@"; do
	cat "$output/$part.row"
done
printf '%-16s %8s\n' total "$(minutes $SECONDS)"
passed=$(count passed)
printf 'parts: %d passed, %d failed, %d skipped\n' "$passed" $(($# - passed)) "$(count skipped)"
[ "$passed" = $# ]
