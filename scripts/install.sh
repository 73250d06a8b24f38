#!/bin/sh
# install.sh PROGRAM PREFIX ZSH: installs a built `blockwright` below PREFIX: the program, the mount helper, man pages, and completions; those of
# zsh in PREFIX/share/zsh/ZSH.
set -eu
program=$1 prefix=$2 zsh=$3
install -D -m 0755 "$program" "$prefix/bin/blockwright"
install -d "$prefix/sbin" "$prefix/share/man/man1"
ln -sf ../bin/blockwright "$prefix/sbin/mount.fuse.blockwright"
"$program" man "$prefix/share/man/man1" >/dev/null
install -d "$prefix/share/bash-completion/completions" "$prefix/share/fish/vendor_completions.d" "$prefix/share/zsh/$zsh"
"$program" completions bash > "$prefix/share/bash-completion/completions/blockwright"
"$program" completions fish > "$prefix/share/fish/vendor_completions.d/blockwright.fish"
"$program" completions zsh > "$prefix/share/zsh/$zsh/_blockwright"
