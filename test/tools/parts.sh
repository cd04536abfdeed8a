#!/usr/bin/env bash
# Runs the targets of make that are named, all of them even if one fails, and tells how each went and how long it took.
set -uo pipefail
cd "$(dirname "$0")/../.."
trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM

# These use one processor each, or wait, and judge no times, so two of them run at once. What takes longest comes first.
narrow=(test-twin test-apiserver test-hostile lint test-oracle test-policyoracle test-chart test-golden)

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

# Runs the narrow ones of the parts that nobody else has begun, one after another. Two of these run at once.
run_narrow() {
	local part
	for part in "${narrow[@]}"; do
		if [[ " $* " == *" $part "* ]] && mkdir "$output/$part.begun" 2>/dev/null; then
			run "$part" >"$output/$part.log" 2>&1
		fi
	done
}

for part in "$@"; do
	[ ! -e "$output/$part.begun" ] || continue
	if [[ " ${narrow[*]} " != *" $part "* ]]; then
		printf '\n== %s\n' "$part"
		run "$part"
		continue
	fi
	run_narrow "$@" &
	run_narrow "$@"
	wait
	for begun in "$output"/*.begun; do
		printf '\n== %s\n' "$(basename "$begun" .begun)"
		cat "${begun%.begun}.log"
	done
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
