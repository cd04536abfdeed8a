#!/usr/bin/env bash
# Fuzzes every parser of the agent and the plugin that reads what others write, each with as many inputs as are given: all
# functions Fuzz... below pkg and cmd. As many run at once as there are processors. An input that fails is left below
# testdata/fuzz of its package, where go test runs it from then on.
# A number and not a time, because Go before 1.27 may report the end of the time as a failure, "context deadline exceeded"
# (golang/go#75804).
set -uo pipefail
cd "$(dirname "$0")/../.."
inputs=$1

functions() {
	grep -rHo --include=*_test.go '^func Fuzz[A-Za-z0-9]*' pkg cmd | sed -E 's|/[^/]*:func | |' | sort
}

one() {
	local out
	out=$(go test "./$1" -run '^$' -fuzz "^$2\$" -fuzztime "${inputs}x" -fuzzminimizetime 5s -parallel 1 2>&1)
	local how=$?
	if [ $how != 0 ]; then
		printf '%s\n%-20s %s: FAILED\n' "$out" "$2" "$1"
		return 1
	fi
	printf '%-20s %-22s %s\n' "$2" "$1" "$(tail -n 3 <<<"$out" | sed -nE 's/^fuzz: elapsed: .*execs: ([0-9]+) .*interesting: ([0-9]+).*/\1 inputs, \2 new kinds/p' | tail -n 1)"
}
export -f one
export inputs

[ "$(functions | wc -l)" -ge 10 ] || { echo "the functions are not found" >&2; exit 1; }
functions | xargs -P "$(nproc)" -L 1 bash -c 'one "$0" "$1"'
