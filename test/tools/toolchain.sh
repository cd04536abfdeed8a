#!/usr/bin/env bash
# toolchain.sh check      says in one sentence what is missing to compile the BPF programs, and fails then
# toolchain.sh install    installs it, on Debian and Ubuntu and as root
# The Makefile says which versions.
set -euo pipefail

packages="clang-$CLANG_MAJOR llvm-$CLANG_MAJOR clang-format-$CLANG_MAJOR libbpf-dev linux-libc-dev"

missing() {
	local tool
	for tool in "$CLANG" "$LLVM_STRIP" "$CLANG_FORMAT"; do
		command -v "$tool" >/dev/null || { echo "$tool is not installed"; return; }
		[[ $("$tool" --version) == *"version $CLANG_MAJOR."* ]] || { echo "$tool is not version $CLANG_MAJOR"; return; }
	done
	local header
	for header in bpf/bpf_helpers.h linux/bpf.h "$(uname -m)-linux-gnu/asm/types.h"; do
		[ -e "/usr/include/$header" ] || { echo "/usr/include/$header is not installed"; return; }
	done
}

check() {
	local what
	what=$(missing)
	[ -z "$what" ] && return
	echo "The BPF programs cannot be compiled, because $what: apt-get install $packages" >&2
	return 1
}

install() {
	local what
	what=$(missing)
	[ -z "$what" ] && return
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		return 0 # check tells what to do
	fi
	echo "Installing $packages, because $what."
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q
	# shellcheck disable=SC2086 # a list
	apt-get install -q -y --no-install-recommends $packages
}

case "${1-}" in
check | install) "$1" ;;
*) echo "usage: toolchain.sh check|install" >&2; exit 2 ;;
esac
