#!/usr/bin/env bash
# Checks that what is generated and formatted is what the sources give. It generates in a copy, so the tree stays as it
# is, and it tells every file that differs. The Makefile says which files; WITHOUT_CLANG=yes leaves out what needs clang.
set -euo pipefail
cd "$(dirname "$0")/../.."

failed=0
fail() {
	echo "verify: $*" >&2
	failed=1
}

# The generated files of a directory, one a line.
generated() {
	find "$1" -maxdepth 1 \( -name '*_bpfel.go' -o -name '*_bpfel.o' -o -name '*_bpfel_test.go' -o -name '*_bpfel_test.o' \) -printf '%f\n' | sort
}

verify_objects() {
	local copy dir file
	copy=$(mktemp -d)
	# shellcheck disable=SC2064 # the directory of now
	trap "rm -rf '$copy'" EXIT
	for dir in $GENERATED_IN bpf test/tools; do
		mkdir -p "$copy/$dir"
		cp -R "$dir/." "$copy/$dir"
	done
	cp go.mod go.sum "$copy"
	for dir in $GENERATED_IN; do
		generated "$copy/$dir" | (cd "$copy/$dir" && xargs -r rm)
		(cd "$copy" && go generate "./$dir") || { fail "$dir cannot be generated"; continue; }
		for file in $({ generated "$dir"; generated "$copy/$dir"; } | sort -u); do
			if [ ! -e "$copy/$dir/$file" ]; then
				fail "$dir/$file is generated from nothing: remove it"
			elif [ ! -e "$dir/$file" ]; then
				fail "$dir/$file is missing: make generate, and commit it"
			elif ! cmp -s "$dir/$file" "$copy/$dir/$file"; then
				fail "$dir/$file is not what the sources give: make generate, and commit it"
			elif [ -e .git ] && ! git ls-files --error-unmatch "$dir/$file" >/dev/null 2>&1; then
				fail "$dir/$file is in no commit: git add it"
			fi
		done
	done
}

verify_c_format() {
	local file
	for file in $FORMATTED; do
		"$CLANG_FORMAT" "$file" | cmp -s "$file" - || fail "$file is not formatted: make generate"
	done
}

verify_no_variants() {
	local found
	found=$(grep -nE '^[[:space:]]*#[[:space:]]*(if|ifdef|ifndef|elif)\b' bpf/*.c bpf/lib/*.h || true)
	[ -z "$found" ] || fail "the programs have no variants, so no #if: $found"
}

verify_go_format() {
	local files file
	files=$(find . -name '*.go' -not -path './_output/*' -print0 | xargs -0 gofmt -l) || fail "gofmt cannot read every file"
	for file in $files; do
		fail "${file#./} is not formatted: gofmt -w ${file#./}"
	done
}

verify_modules() {
	local file dir tidy
	for file in $(find . \( -name go.mod -o -name 'kubernetes-*.mod' \) -not -path './_output/*' | sort); do
		dir=${file%/*}
		tidy="go mod tidy -modfile=${file##*/}"
		(cd "$dir" && $tidy -diff) || fail "$file or its sums are not tidy: (cd $dir && $tidy)"
	done
}

if [ "${WITHOUT_CLANG-}" = yes ]; then
	echo "verify: what needs clang is left out"
elif test/tools/toolchain.sh check; then
	verify_objects
	verify_c_format
else
	failed=1
fi
verify_no_variants
verify_go_format
verify_modules
[ "$failed" = 0 ] && echo "verify: everything is up to date"
exit "$failed"
