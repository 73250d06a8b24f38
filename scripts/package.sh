#!/bin/sh
# package.sh PROGRAM NOTICES OUT [LEVEL]: packs a built `blockwright` into OUT: a Debian package, an archive to unpack anywhere, the debug information,
# and SHA256SUMS. NOTICES is what `cargo xtask licences` wrote: the works of others in the program.
# The same program and the same SOURCE_DATE_EPOCH give the same bytes. LEVEL is that of xz (6 unless given).
# Needs: objcopy and readelf (binutils), dpkg-deb, xz; for a program that is not static also dpkg-shlibdeps (dpkg-dev).
set -eu
program=$(realpath "$1") notices=$(realpath "$2") out=$3 level=${4:-6}
here=$(cd "$(dirname "$0")/.." && pwd)
for tool in objcopy readelf dpkg dpkg-deb xz gzip md5sum sha256sum tar; do
    command -v "$tool" >/dev/null || { echo "package: $tool is missing" >&2; exit 1; }
done
: "${SOURCE_DATE_EPOCH:?is the time that all files get}"
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C
umask 022
mkdir -p "$out"
out=$(realpath "$out")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/Cargo.toml" | head -n 1)
authors=$(sed -n 's/^authors = \["\(.*\)"\]/\1/p' "$here/Cargo.toml")
arch=$(dpkg --print-architecture)
# The architecture is this machine's, and the program is run.
machine() { readelf -h "$1" | sed -n 's/^ *Machine: *//p'; }
[ "$(machine "$program")" = "$(machine "$(command -v objcopy)")" ] || { echo "package: $program is not for this machine ($arch)" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The program, and what it is debugged with, in a file of its own.
objcopy --only-keep-debug --compress-debug-sections "$program" "$out/blockwright.debug"
chmod 0644 "$out/blockwright.debug"
install -m 0755 "$program" "$work/blockwright"
objcopy --strip-all "$work/blockwright"
(cd "$out" && objcopy --add-gnu-debuglink=blockwright.debug "$work/blockwright")
program=$work/blockwright

# One time and one owner for all files.
dated() {
    find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

name=blockwright-$version-linux-$arch
sh "$here/scripts/install.sh" "$program" "$work/$name" site-functions
install -m 0644 "$here/README.md" "$here/CHANGELOG.md" "$here/LICENSE-MIT" "$here/LICENSE-APACHE" "$work/$name"
install -m 0644 "$notices" "$work/$name/THIRD-PARTY.txt"
dated "$work/$name"
tar --sort=name --owner=0 --group=0 --numeric-owner --format=gnu -C "$work" -cf "$work/$name.tar" "$name"
xz -T1 "-$level" < "$work/$name.tar" > "$out/$name.tar.xz"

deb=$work/deb
sh "$here/scripts/install.sh" "$program" "$deb/usr" vendor-completions
for page in "$deb"/usr/share/man/man1/*.1; do gzip -9n "$page"; done
# The same page under the helper's name, as mount(8) helpers have one.
ln -s blockwright-mount.1.gz "$deb/usr/share/man/man1/mount.fuse.blockwright.1.gz"
doc=$deb/usr/share/doc/blockwright
install -d "$doc" "$deb/DEBIAN"
gzip -9n < "$here/CHANGELOG.md" > "$doc/NEWS.gz"
gzip -9n < "$notices" > "$doc/THIRD-PARTY.txt.gz"
{
    echo "blockwright ($version) unstable; urgency=medium"
    echo
    echo "  * NEWS.gz lists the changes."
    echo
    echo " -- $authors <blockwright@example.org>  $(date -R -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n > "$doc/changelog.gz"
{
    echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    echo "Upstream-Name: blockwright"
    echo "Comment: The program contains works of others. THIRD-PARTY.txt.gz, beside this file,"
    echo " lists them with their licences."
    echo
    echo "Files: *"
    echo "Copyright: $(sed -n 's/^Copyright (c) //p' "$here/LICENSE-MIT" | head -n 1)"
    echo "License: MIT or Apache-2.0"
    echo
    echo "License: MIT"
    sed -e 's/^$/./' -e 's/^/ /' "$here/LICENSE-MIT"
    echo
    echo "License: Apache-2.0"
    echo " The text is in /usr/share/common-licenses/Apache-2.0."
} > "$doc/copyright"
depends=""
if readelf -d "$program" | grep -q NEEDED; then
    # dpkg-shlibdeps asks for a source package.
    mkdir -p "$work/source/debian"
    printf 'Source: blockwright\n\nPackage: blockwright\nArchitecture: any\n' > "$work/source/debian/control"
    needed=$(cd "$work/source" && dpkg-shlibdeps -O "$program")
    depends="Depends: ${needed#shlibs:Depends=}"
else
    install -d "$deb/usr/share/lintian/overrides"
    # A program that is static and position-independent looks to lintian like a library that forgot its dependencies.
    for tag in statically-linked-binary shared-library-lacks-prerequisites; do
        echo "blockwright: $tag [usr/bin/blockwright]"
    done > "$deb/usr/share/lintian/overrides/blockwright"
fi
{
    echo "Package: blockwright"
    echo "Version: $version"
    echo "Architecture: $arch"
    echo "Maintainer: $authors <blockwright@example.org>"
    # As Debian counts: files by their size, everything else as one KiB, so that no file system matters.
    echo "Installed-Size: $(find "$deb/usr" \( -type f -printf '%s\n' \) -o -printf '1\n' | awk '{ n += int(($1 + 1023) / 1024) } END { print n }')"
    [ -z "$depends" ] || echo "$depends"
    echo "Recommends: fuse3"
    echo "Section: utils"
    echo "Priority: optional"
    echo "Description: ext4 and f2fs file systems in user space"
    echo " Makes ext4 and f2fs images from directories, archives and container images,"
    echo " mounts them without root, and changes, resizes, checks and repairs them."
} > "$deb/DEBIAN/control"
(cd "$deb" && find usr -type f | sort | xargs md5sum > DEBIAN/md5sums)
dated "$deb"
dpkg-deb --root-owner-group --uniform-compression -Zxz "-z$level" --build "$deb" "$out/blockwright_${version}_$arch.deb" >/dev/null
(cd "$out" && sha256sum blockwright.debug "$name.tar.xz" "blockwright_${version}_$arch.deb" > SHA256SUMS)
