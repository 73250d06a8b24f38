#!/bin/sh
# setup.sh [build|web|dist|hosts]: installs what the tests, the demo and the benchmarks use beside the Rust toolchain; with `build`, what compiling needs of it; with
# `web`, what `make web` needs; with `dist`, what `cargo xtask dist` needs; with `hosts`, what `cargo xtask hosts` needs.
# On Debian and its children as root; otherwise names what is missing. Quick when all is there.
set -eu

need="mke2fs:e2fsprogs e2fsck:e2fsprogs debugfs:e2fsprogs dumpe2fs:e2fsprogs fuse2fs:fuse2fs
fusermount3:fuse3 fio:fio stress-ng:stress-ng getfattr:attr setfacl:acl git:git cc:gcc c++:g++ pkg-config:pkg-config strace:strace valgrind:valgrind tar:tar xz:xz-utils zstd:zstd
setpriv:util-linux script:bsdutils losetup:mount mkfs.f2fs:f2fs-tools linux.uml:user-mode-linux insmod:kmod
veritysetup:cryptsetup-bin umoci:umoci skopeo:skopeo buildah:buildah nbd-server:nbd-server nbdkit:nbdkit qemu-nbd:qemu-utils openssl:openssl sgdisk:gdisk sfdisk:fdisk qemu-img:qemu-utils qemu-io:qemu-utils
img2simg:android-sdk-libsparse-utils fsck.fat:dosfstools mtype:mtools mkswap:util-linux casync:casync
node:nodejs chromium:chromium chromedriver:chromium-driver matchpathcon:selinux-utils semodule:selinux-policy-default fsverity:fsverity
lintian:lintian dpkg-shlibdeps:dpkg-dev objcopy:binutils"
targets=wasm32-wasip1
if [ "${1:-}" = build ]; then
    need="git:git cc:gcc c++:g++ pkg-config:pkg-config"
    targets=""
fi
if [ "${1:-}" = web ]; then
    need="cc:gcc"
fi
if [ "${1:-}" = dist ]; then
    need="cc:gcc musl-gcc:musl-tools objcopy:binutils dpkg-deb:dpkg xz:xz-utils git:git lintian:lintian"
    targets=$(uname -m)-unknown-linux-musl
fi
if [ "${1:-}" = hosts ]; then
    need="cc:gcc tar:tar node:nodejs x86_64-w64-mingw32-gcc:gcc-mingw-w64-x86-64-win32 /usr/lib/wine/wine64:wine64"
    targets="wasm32-wasip1 x86_64-pc-windows-gnu $(uname -m)-unknown-linux-musl"
fi

PATH="$PATH:/usr/sbin:/sbin"
missing=""
for pair in $need; do
    tool=${pair%%:*}
    package=${pair##*:}
    if ! command -v "$tool" >/dev/null 2>&1; then
        case " $missing " in *" $package "*) ;; *) missing="$missing $package" ;; esac
    fi
done

# Debian has venv in a package of its own. A Python that comes from elsewhere brings it along.
if [ -z "${1:-}" ] && ! python3 -c 'import venv, ensurepip' >/dev/null 2>&1; then
    missing="$missing python3-venv"
fi

if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "setup: installing$missing"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq >/dev/null || true
        # shellcheck disable=SC2086
        apt-get install -y -qq --no-install-recommends $missing >/dev/null
    else
        echo "setup: not installed (needs root and apt):$missing" >&2
        echo "setup: what needs them will say so" >&2
    fi
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: a Rust toolchain is needed (rustup, or Debian's cargo if new enough)" >&2
    exit 1
fi

# Other hosts, and the static program. A toolchain without rustup has no such target, and what needs one says so.
for target in $targets; do
    if command -v rustup >/dev/null 2>&1 && ! rustup target list --installed | grep -qx "$target"; then
        rustup target add "$target" >/dev/null 2>&1 || echo "setup: rustup cannot install the target $target" >&2
    fi
done
