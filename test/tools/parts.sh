#!/usr/bin/env bash
# Runs the targets of make that are named, all of them even if one fails, and tells how each went and how long it took.
set -uo pipefail
cd "$(dirname "$0")/../.."
trap 'exit 130' INT TERM

minutes() { printf '%d.%d min' $(($1 / 60)) $(($1 % 60 / 6)); }

rows=() passed=0 failed=0 skipped=0
for part in "$@"; do
	printf '\n== %s\n' "$part"
	begin=$SECONDS options=() how=passed
	if [ "$part" = verify ]; then
		test/tools/toolchain.sh install
		# Others have no duty to install a compiler that building does not need. CI has.
		if [ "${CI-}" != true ] && ! test/tools/toolchain.sh check; then
			options=(WITHOUT_CLANG=yes)
			how="passed, BUT THE GENERATED FILES WERE NOT CHECKED: there is no $CLANG (see above)"
			skipped=$((skipped + 1))
		fi
	fi
	# The oldest and the newest kernel; those between take as long again.
	[ "$part" != test-kernels ] || options=(KERNELS="6.1 7.2")
	if "${MAKE:-make}" --no-print-directory "$part" "${options[@]}"; then
		passed=$((passed + 1))
	else
		how=FAILED failed=$((failed + 1))
	fi
	rows+=("$(printf '%-16s %8s  %s' "$part" "$(minutes $((SECONDS - begin)))" "$how")")
done

printf '\n'
printf '%s\n' "${rows[@]}" "$(printf '%-16s %8s' total "$(minutes $SECONDS)")"
printf 'parts: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
