#!/bin/sh
# install-c.sh BUILD ROOT PREFIX: puts the C library that is in BUILD, its header and its pkg-config file below ROOT/PREFIX.
set -eu
build=$1 root=$2 prefix=$3
here=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/Cargo.toml" | head -n 1)
to=$root$prefix

install -d "$to/lib/pkgconfig" "$to/include"
install -m 0755 "$build/libblockwright_capi.so" "$to/lib/libblockwright.so.$version"
# The number in the name is that of the ABI (BW_ABI), as in the library's soname.
ln -sf "libblockwright.so.$version" "$to/lib/libblockwright.so.0"
ln -sf libblockwright.so.0 "$to/lib/libblockwright.so"
install -m 0644 "$build/libblockwright_capi.a" "$to/lib/libblockwright.a"
install -m 0644 "$here/crates/capi/include/blockwright.h" "$to/include/blockwright.h"
sed -e "s|@prefix@|$prefix|" -e "s|@version@|$version|" "$here/crates/capi/blockwright.pc.in" > "$to/lib/pkgconfig/blockwright.pc"

# Programs find the library by the loader's cache, or not at all.
case $root:$prefix in
    :/usr | :/usr/local) [ "$(id -u)" != 0 ] || ! command -v ldconfig >/dev/null || ldconfig ;;
    :*) echo "install-c: for programs to find it there: PKG_CONFIG_PATH=$prefix/lib/pkgconfig and LD_LIBRARY_PATH=$prefix/lib" >&2 ;;
esac
