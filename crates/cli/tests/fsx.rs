//! The file-system exerciser `fsx` over the mount: random reads, writes, maps, truncations, punches and copies of one
//! file, every read compared with what was written. A million operations in all, over several configurations; a third of them
//! unless `BLOCKWRIGHT_FSX=all` is set.

mod common;

use common::{Mounted, Scratch, check_clean, e2fsck_clean, have, have_fuse, our_mkfs};
use std::process::Command;

struct Case {
    /// Options of our mkfs; [`F2FS`]: mkfs.f2fs makes the volume.
    mkfs: &'static [&'static str],
    options: &'static str,
    configuration: &'static str,
    /// When all are done.
    operations: u64,
}

/// As `mkfs`: an f2fs volume.
const F2FS: &[&str] = &["f2fs"];

const MIXED: &str = "flen = 1048576
nomsyncafterwrite = true
[opsize]
max = 65536
min = 1
align = 1
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 2
punch_hole = 3
sendfile = 3
posix_fadvise = 1
copy_file_range = 3
";

const BUFFERED: &str = "flen = 262144
[opsize]
max = 20000
min = 1
align = 1
[weights]
close_open = 2
read = 10
write = 20
mapread = 0
mapwrite = 0
invalidate = 1
truncate = 10
fsync = 0.5
fdatasync = 0.5
punch_hole = 5
posix_fallocate = 2
";

/// Operations of a case in this run.
fn operations(case: &Case) -> u64 {
    match std::env::var("BLOCKWRIGHT_FSX") {
        Ok(all) if all == "all" => case.operations,
        _ => case.operations / 3,
    }
}

fn run(case: &Case, seed: u64) {
    if !have_fuse() || !have("fsx") {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    let f2fs = case.mkfs == F2FS;
    if f2fs {
        if !have("mkfs.f2fs") || !have("fsck.f2fs") {
            return;
        }
        common::mkfs_f2fs(&image, 256 << 20);
    } else {
        our_mkfs(&image, case.mkfs, "256M");
    }
    let configuration = scratch.path("fsx.toml");
    std::fs::write(&configuration, case.configuration).unwrap();
    let mounted = Mounted::new(&image, &scratch.dir("mnt"), case.options);
    println!(
        "fsx -S {seed} -N {}: mkfs {:?}, mount -o {}",
        operations(case),
        case.mkfs,
        case.options
    );
    let out = common::output(
        Command::new("fsx")
            .args([
                "-q",
                "-q",
                "-N",
                &operations(case).to_string(),
                "-S",
                &seed.to_string(),
            ])
            .arg("-f")
            .arg(&configuration)
            .arg("-P")
            .arg(scratch.dir("artifacts"))
            .arg(mounted.mountpoint.join("file")),
    );
    assert!(
        out.status.success(),
        "fsx -S {seed}: {}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    mounted.unmount();
    check_clean(&image, "after fsx");
    if f2fs {
        common::fsck_f2fs_clean(&image, "after fsx");
    } else if have("e2fsck") {
        e2fsck_clean(&image, "after fsx");
    }
}

/// As [`MIXED`], with an msync after every mapped write.
const SYNCED: &str = "flen = 262144
[opsize]
max = 65536
min = 1
align = 1
[weights]
read = 10
write = 10
mapread = 10
mapwrite = 10
truncate = 5
fsync = 5
fdatasync = 5
punch_hole = 3
";

/// Aligned, as O_DIRECT wants it; everything goes past both caches.
const DIRECT: &str = "flen = 1048576
nomsyncafterwrite = true
[opsize]
max = 65536
min = 4096
align = 4096
[weights]
close_open = 1
read = 10
write = 10
truncate = 5
fsync = 0.2
punch_hole = 3
mapread = 0
mapwrite = 0
";

#[test]
fn buffered_default() {
    run(
        &Case {
            mkfs: &[],
            options: "",
            configuration: BUFFERED,
            operations: 450_000,
        },
        1,
    );
}

#[test]
fn mapped_and_buffered_default() {
    run(
        &Case {
            mkfs: &[],
            options: "transport=dev_fuse",
            configuration: MIXED,
            operations: 110_000,
        },
        2,
    );
}

#[test]
fn small_blocks_inline_data() {
    run(
        &Case {
            mkfs: &["-b", "1024", "-O", "inline_data"],
            options: "",
            configuration: BUFFERED,
            operations: 200_000,
        },
        3,
    );
}

#[test]
fn large_blocks() {
    run(
        &Case {
            mkfs: &["-b", "65536"],
            options: "",
            configuration: MIXED,
            operations: 80_000,
        },
        4,
    );
}

#[test]
fn small_cache_keeps_coming_back_from_the_device() {
    run(
        &Case {
            mkfs: &[],
            options: "cache=1M,dirty=512K",
            configuration: MIXED,
            operations: 100_000,
        },
        5,
    );
}

#[test]
fn direct_and_aligned() {
    run(
        &Case {
            mkfs: &[],
            options: "direct_io",
            configuration: DIRECT,
            operations: 60_000,
        },
        6,
    );
}

#[test]
fn direct_and_unaligned() {
    run(
        &Case {
            mkfs: &[],
            options: "direct_io,transport=dev_fuse",
            configuration: MIXED,
            operations: 20_000,
        },
        7,
    );
}

#[test]
fn mapped_and_synced() {
    run(
        &Case {
            mkfs: &["-t", "ext3"],
            options: "",
            configuration: SYNCED,
            operations: 10_000,
        },
        8,
    );
}

/// What is read often, and much of it dropped from the kernel's cache in between.
const REREAD: &str = "flen = 1048576
nomsyncafterwrite = true
[opsize]
max = 300000
min = 1
align = 1
[weights]
close_open = 3
read = 20
write = 10
mapread = 10
mapwrite = 5
invalidate = 5
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 2
punch_hole = 3
sendfile = 3
posix_fadvise = 10
copy_file_range = 3
";

/// Nearly all reads go past our cache, and what the kernel writes back in whole blocks, when they may.
#[test]
fn past_the_cache() {
    let options = [
        "read_past=4K,write_past=4K",
        "read_past=4K,write_past=1,cache=1M,dirty=512K",
        "read_past=4K,write_past=1,transport=dev_fuse",
    ];
    let formats: [&[&str]; 3] = [&[], &["-b", "1024", "-O", "inline_data"], F2FS];
    for (seed, (options, mkfs)) in (40..).zip(options.into_iter().zip(formats)) {
        run(
            &Case {
                mkfs,
                options,
                configuration: REREAD,
                operations: 10_000,
            },
            seed,
        );
    }
    run(
        &Case {
            mkfs: F2FS,
            options: "read_past=4K,write_past=1,mode=lfs,background_gc=sync",
            configuration: REREAD,
            operations: 6_000,
        },
        43,
    );
}

// ---- the same on f2fs ----

#[test]
fn f2fs_buffered() {
    run(
        &Case {
            mkfs: F2FS,
            options: "",
            configuration: BUFFERED,
            operations: 80_000,
        },
        21,
    );
}

#[test]
fn f2fs_mapped_and_buffered() {
    run(
        &Case {
            mkfs: F2FS,
            options: "transport=dev_fuse",
            configuration: MIXED,
            operations: 25_000,
        },
        22,
    );
    run(
        &Case {
            mkfs: F2FS,
            options: "cache=1M,dirty=512K",
            configuration: MIXED,
            operations: 12_000,
        },
        23,
    );
}

/// Every overwrite goes elsewhere, and sections are cleaned.
#[test]
fn f2fs_mapped_and_buffered_out_of_place() {
    run(
        &Case {
            mkfs: F2FS,
            options: "mode=lfs,background_gc=sync",
            configuration: MIXED,
            operations: 15_000,
        },
        24,
    );
}

#[test]
fn f2fs_direct() {
    run(
        &Case {
            mkfs: F2FS,
            options: "direct_io",
            configuration: DIRECT,
            operations: 12_000,
        },
        25,
    );
    run(
        &Case {
            mkfs: F2FS,
            options: "direct_io,mode=lfs",
            configuration: DIRECT,
            operations: 4_000,
        },
        26,
    );
    run(
        &Case {
            mkfs: F2FS,
            options: "direct_io,transport=dev_fuse",
            configuration: MIXED,
            operations: 5_000,
        },
        27,
    );
}

#[test]
fn f2fs_mapped_and_synced() {
    run(
        &Case {
            mkfs: F2FS,
            options: "",
            configuration: SYNCED,
            operations: 4_000,
        },
        28,
    );
}
