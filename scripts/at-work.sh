#!/bin/sh
# Draws docs/img/at-work.svg: runs the session below on a copy of this repository and writes the terminal as a picture.
# Usage: scripts/at-work.sh [PROGRAM]. PROGRAM is target/release/blockwright unless given. It needs /dev/fuse and e2fsck.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
program=$(realpath "${1:-$root/target/release/blockwright}")
work=$(mktemp -d "${TMPDIR:-/tmp}/at-work.XXXXXX")
finish() {
    if mountpoint -q "$work/mnt"; then "$program" umount "$work/mnt" || fusermount3 -u -z "$work/mnt" || true; fi
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' HUP INT TERM
mkdir "$work/rootfs" "$work/mnt" "$work/bin"
ln -s "$program" "$work/bin/blockwright"
git -C "$root" archive HEAD | tar x -C "$work/rootfs"
PATH="$work/bin:$PATH:/usr/sbin:/sbin"
export PATH
cd "$work"

while read -r line; do
    printf '$ %s\n' "$line"
    # The session stops at the first command that fails: then there is no new picture.
    # A command must not read the lines that follow.
    sh -c "$line" </dev/null 2>session.errors || { cat session.errors >&2; exit 1; }
done >session.txt <<'SESSION'
blockwright mkfs --from rootfs --size auto --free 64M disk.img
blockwright mount disk.img mnt
cp -r rootfs/crates mnt/copy && df -h --output=size,used,avail,pcent mnt
blockwright umount mnt
blockwright check disk.img
e2fsck -fn disk.img
blockwright disk convert disk.img disk.qcow2
blockwright cat disk.qcow2:/README.md | head -n 1
SESSION

awk '
    { text[NR] = $0; if (length($0) > longest) longest = length($0) }
    END {
        width = int(longest * 7.3 + 40); height = NR * 20 + 46
        printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" ", width, height
        printf "font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"12\" role=\"img\" "
        print "aria-label=\"A terminal: an image is built from a directory, mounted, changed, unmounted, checked and converted\">"
        printf "<!-- Made by scripts/at-work.sh from the output of a session. -->\n"
        printf "<rect width=\"%d\" height=\"%d\" rx=\"8\" fill=\"#1b1f24\"/>\n", width, height
        print "<g fill=\"#57606a\"><circle cx=\"20\" cy=\"18\" r=\"5\"/><circle cx=\"38\" cy=\"18\" r=\"5\"/><circle cx=\"56\" cy=\"18\" r=\"5\"/></g>"
        for (i = 1; i <= NR; i++) {
            line = text[i]
            gsub(/&/, "\\&amp;", line); gsub(/</, "\\&lt;", line); gsub(/>/, "\\&gt;", line)
            colour = "#9aa4ae"
            if (substr(line, 1, 2) == "$ ") {
                colour = "#e6edf3"
                line = "<tspan fill=\"#7ee787\">$</tspan>" substr(line, 2)
            }
            printf "<text x=\"16\" y=\"%d\" xml:space=\"preserve\" fill=\"%s\">%s</text>\n", 48 + (i - 1) * 20, colour, line
        }
        print "</svg>"
    }
' session.txt >at-work.svg
cp at-work.svg "$root/docs/img/at-work.svg"
cat session.txt
