//! Agreement with e2fsprogs and the running kernel, in both directions, over a matrix of features.

mod common;

use common::populate::{Can, populate};
use common::snapshot::{Tree, assert_same, snapshot};
use common::{
    KernelMount, Mounted, Scratch, check_clean, e2fsck_clean, have, have_fuse, have_kernel, mke2fs,
    our_mkfs,
};
use std::path::Path;
use std::process::Command;

/// One kind of volume: options that mke2fs and our mkfs both take.
struct Kind {
    name: &'static str,
    args: &'static [&'static str],
    can: Can,
}

const fn kind(name: &'static str, args: &'static [&'static str]) -> Kind {
    Kind {
        name,
        args,
        can: Can::ALL,
    }
}

const KINDS: &[Kind] = &[
    kind("default", &["-t", "ext4"]),
    kind("1k", &["-t", "ext4", "-b", "1024"]),
    kind("2k", &["-t", "ext4", "-b", "2048"]),
    kind("64k", &["-t", "ext4", "-b", "65536"]),
    Kind {
        name: "ext2",
        args: &["-t", "ext2"],
        can: Can {
            xattrs: true,
            big_xattrs: false,
            fallocate: false,
        },
    },
    Kind {
        name: "ext3-1k",
        args: &["-t", "ext3", "-b", "1024"],
        can: Can {
            xattrs: true,
            big_xattrs: false,
            fallocate: false,
        },
    },
    kind(
        "uninit_bg",
        &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"],
    ),
    kind(
        "no-csum",
        &["-t", "ext4", "-O", "^metadata_csum,^uninit_bg"],
    ),
    kind("32bit", &["-t", "ext4", "-O", "^64bit"]),
    kind(
        "meta_bg",
        &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"],
    ),
    kind("sparse_super2", &["-t", "ext4", "-O", "sparse_super2"]),
    kind(
        "no-flex_bg",
        &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"],
    ),
    kind("inline_data", &["-t", "ext4", "-O", "inline_data"]),
    kind(
        "inline_data-1k-512",
        &["-t", "ext4", "-b", "1024", "-I", "512", "-O", "inline_data"],
    ),
    Kind {
        name: "ea_inode",
        args: &["-t", "ext4", "-O", "ea_inode"],
        can: Can {
            xattrs: true,
            big_xattrs: true,
            fallocate: true,
        },
    },
    kind("inode-128", &["-t", "ext4", "-I", "128"]),
    kind("inode-1024", &["-t", "ext4", "-I", "1024"]),
    kind("no-journal", &["-t", "ext4", "-O", "^has_journal"]),
    kind("no-orphan_file", &["-t", "ext4", "-O", "^orphan_file"]),
    kind("orphan_file", &["-t", "ext4", "-O", "orphan_file"]),
    kind("quota", &["-t", "ext4", "-O", "quota,project"]),
    kind(
        "large_dir",
        &["-t", "ext4", "-b", "1024", "-O", "large_dir"],
    ),
    kind("no-dir_index", &["-t", "ext4", "-O", "^dir_index"]),
    kind("csum_seed", &["-t", "ext4", "-O", "metadata_csum_seed"]),
    kind("casefold", &["-t", "ext4", "-O", "casefold"]),
    kind("fast_commit", &["-t", "ext4", "-O", "fast_commit"]),
    kind("mmp", &["-t", "ext4", "-O", "mmp"]),
    kind("no-filetype", &["-t", "ext4", "-O", "^filetype"]),
    kind("encrypt-verity", &["-t", "ext4", "-O", "encrypt,verity"]),
];

const SIZE: &str = "200M";

/// Times of inodes of 128 bytes end in 2038 and have no fractions, so they read back rounded: the two
/// mounts are compared after both came from the disk, where this makes no difference.
fn tree_by_us(image: &Path, mnt: &Path, options: &str) -> Tree {
    let mounted = Mounted::new(image, mnt, options);
    let tree = snapshot(mnt);
    mounted.unmount();
    tree
}

fn tree_by_kernel(image: &Path, mnt: &Path, options: &str) -> Option<Tree> {
    let mounted = KernelMount::try_new(image, mnt, options)?;
    let tree = snapshot(mnt);
    drop(mounted);
    Some(tree)
}

/// Blocks of mappings are taken when the data is written back: until then the count is of data only, as in
/// the kernel. Once both come from the disk the counts are compared, too.
fn without_space(mut tree: Tree) -> Tree {
    for entry in tree.values_mut() {
        entry.blocks = 0;
    }
    tree
}

fn facilities() -> bool {
    have_fuse() && have_kernel() && have("mke2fs") && have("e2fsck")
}

fn ours_read_by_the_kernel(kind: &Kind) {
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    our_mkfs(&image, kind.args, SIZE);
    e2fsck_clean(&image, "fresh from our mkfs");
    let mounted = Mounted::new(&image, &mnt, "");
    populate(&mnt, 11, kind.can);
    let live = snapshot(&mnt);
    mounted.unmount();
    check_clean(&image, kind.name);
    e2fsck_clean(&image, kind.name);
    let again = tree_by_us(&image, &mnt, "ro");
    if !kind.args.contains(&"128") {
        // Delayed blocks count when they are reserved; the blocks that map them only when allocated, and the
        // kernel remembers the attributes of before.
        assert_same(
            &format!("{}: before and after our unmount", kind.name),
            &without_space(live),
            &without_space(again.clone()),
        );
    }
    if let Some(kernel) = tree_by_kernel(&image, &mnt, "ro") {
        assert_same(
            &format!("{}: written by us, read by us and the kernel", kind.name),
            &again,
            &kernel,
        );
        // And the kernel can go on with it.
        let Some(mounted) = KernelMount::try_new(&image, &mnt, "") else {
            // Kernels without quota read such volumes only.
            return;
        };
        populate(
            &{
                let d = mnt.join("by the kernel");
                std::fs::create_dir(&d).unwrap();
                d
            },
            12,
            kind.can,
        );
        drop(mounted);
        e2fsck_clean(&image, "after the kernel went on");
        let us = tree_by_us(&image, &mnt, "ro");
        let kernel = tree_by_kernel(&image, &mnt, "ro").unwrap();
        assert_same(&format!("{}: written by both", kind.name), &us, &kernel);
    }
}

fn the_kernels_read_by_us(kind: &Kind) {
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    mke2fs(&image, kind.args, SIZE);
    let Some(mounted) = KernelMount::try_new(&image, &mnt, "") else {
        return;
    };
    populate(&mnt, 21, kind.can);
    drop(mounted);
    let kernel = tree_by_kernel(&image, &mnt, "ro").unwrap();
    check_clean(&image, kind.name);
    let us = tree_by_us(&image, &mnt, "ro");
    assert_same(
        &format!("{}: written by the kernel", kind.name),
        &kernel,
        &us,
    );
    // We go on with it.
    let mounted = Mounted::new(&image, &mnt, "");
    populate(
        &{
            let d = mnt.join("by us");
            std::fs::create_dir(&d).unwrap();
            d
        },
        22,
        kind.can,
    );
    std::fs::remove_dir_all(mnt.join("many")).unwrap();
    mounted.unmount();
    check_clean(&image, kind.name);
    e2fsck_clean(&image, kind.name);
    let us = tree_by_us(&image, &mnt, "ro");
    let kernel = tree_by_kernel(&image, &mnt, "ro").unwrap();
    assert_same(
        &format!("{}: the kernel's, continued by us", kind.name),
        &kernel,
        &us,
    );
}

/// Runs a case for every kind and reports all that failed, not only the first.
fn matrix(case: impl Fn(&Kind) + std::panic::RefUnwindSafe) {
    if !facilities() {
        return;
    }
    let only = std::env::var("INTEROP_KIND").ok();
    let failed: Vec<&str> = KINDS
        .iter()
        .filter(|kind| only.as_deref().is_none_or(|name| name == kind.name))
        .filter(|kind| {
            println!("== {}", kind.name);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(kind))).is_err()
        })
        .map(|kind| kind.name)
        .collect();
    assert!(failed.is_empty(), "kinds that failed: {failed:?}");
}

#[test]
fn what_we_write_the_kernel_reads() {
    matrix(ours_read_by_the_kernel);
}

#[test]
fn what_the_kernel_writes_we_read() {
    matrix(the_kernels_read_by_us);
}

/// Both replays of one dirty image give one tree. With `synced`, everything in it had been synced.
fn replays_agree(what: &str, dirty: &Path, synced: Option<&Tree>, scratch: &Scratch) {
    let (a, b, c) = (
        scratch.path("by-us.img"),
        scratch.path("by-kernel.img"),
        scratch.path("by-e2fsck.img"),
    );
    for copy in [&a, &b, &c] {
        common::ok(
            Command::new("cp")
                .arg("--sparse=always")
                .arg(dirty)
                .arg(copy),
        );
    }
    let mnt = scratch.dir("replay");
    // Read-only first: an overlay replay that changes nothing.
    let before = std::fs::read(&a).unwrap();
    let overlay = tree_by_us(&a, &mnt, "ro");
    assert!(
        before == std::fs::read(&a).unwrap(),
        "{what}: a read-only mount changed the image"
    );
    let us = tree_by_us(&a, &mnt, "");
    let kernel = {
        drop(KernelMount::new(&b, &mnt, ""));
        tree_by_kernel(&b, &mnt, "ro").unwrap()
    };
    assert_same(
        &format!("{what}: replayed in memory and on disk"),
        &overlay,
        &us,
    );
    if let Some(synced) = synced {
        assert_same(&format!("{what}: synced and replayed by us"), synced, &us);
    }
    // The others' replay of fast commits loses what had been synced: new directories at least, and all
    // of it with some versions of e2fsck. There the synced tree is the reference, and theirs must only
    // be a volume that every checker calls clean.
    let theirs_counts = what != "fast_commit";
    if theirs_counts {
        assert_same(
            &format!("{what}: replayed by us and by the kernel"),
            &us,
            &kernel,
        );
    }
    let fsck = common::output(Command::new("e2fsck").arg("-fp").arg(&c));
    assert!(
        fsck.status.code().is_some_and(|code| code <= 1),
        "{what}: e2fsck -p: {}",
        String::from_utf8_lossy(&fsck.stdout)
    );
    if theirs_counts {
        let e2fsck = tree_by_us(&c, &mnt, "ro");
        assert_same(
            &format!("{what}: replayed by us and by e2fsck"),
            &us,
            &e2fsck,
        );
    }
    for image in [&a, &b, &c] {
        check_clean(image, what);
        e2fsck_clean(image, what);
    }
}

const DIRTY: &[Kind] = &[
    kind("default", &["-t", "ext4"]),
    kind("1k", &["-t", "ext4", "-b", "1024", "-J", "size=4"]),
    kind("csum-v1", &["-t", "ext4", "-O", "^metadata_csum"]),
    kind("32bit", &["-t", "ext4", "-O", "^64bit,^metadata_csum"]),
    Kind {
        name: "ext3",
        args: &["-t", "ext3", "-b", "1024"],
        can: Can {
            xattrs: true,
            big_xattrs: false,
            fallocate: false,
        },
    },
    kind("orphan_file", &["-t", "ext4", "-O", "orphan_file"]),
    kind("fast_commit", &["-t", "ext4", "-O", "fast_commit"]),
];

#[test]
fn dirty_images_of_the_kernel() {
    if !facilities() {
        return;
    }
    let only = std::env::var("INTEROP_KIND").ok();
    for kind in DIRTY
        .iter()
        .filter(|kind| only.as_deref().is_none_or(|name| name == kind.name))
    {
        println!("== {}", kind.name);
        let scratch = Scratch::new();
        let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
        mke2fs(&image, kind.args, SIZE);
        let mounted = KernelMount::new(&image, &mnt, "commit=1000");
        populate(&mnt, 31, kind.can);
        common::ok(Command::new("sync").arg("-f").arg(&mnt));
        // Then changes that are only in the journal: fsynced files, removals, and files that are open but gone.
        let open = std::fs::File::open(mnt.join("sizes/f5000001")).unwrap();
        std::fs::remove_file(mnt.join("sizes/f5000001")).unwrap();
        for k in 0..50 {
            let path = mnt.join(format!("fsynced {k}"));
            std::fs::write(&path, vec![k as u8; 5000]).unwrap();
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
            if k % 5 == 0 {
                std::fs::rename(&path, mnt.join(format!("renamed {k}"))).unwrap();
            }
        }
        std::fs::remove_dir_all(mnt.join("churn")).unwrap();
        std::fs::File::open(&mnt).unwrap().sync_all().unwrap();
        let synced = snapshot(&mnt);
        let dirty = scratch.path("dirty.img");
        common::ok(
            Command::new("cp")
                .arg("--sparse=always")
                .arg(&image)
                .arg(&dirty),
        );
        drop(open);
        drop(mounted);
        replays_agree(kind.name, &dirty, Some(&synced), &scratch);
    }
}

#[test]
fn dirty_images_of_ours() {
    if !facilities() {
        return;
    }
    for kind in DIRTY
        .iter()
        .filter(|k| k.name != "1k" && k.name != "fast_commit")
    {
        println!("== {}", kind.name);
        let scratch = Scratch::new();
        let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
        our_mkfs(&image, kind.args, SIZE);
        let mounted = Mounted::new(&image, &mnt, "");
        populate(&mnt, 41, kind.can);
        // sync(2) does not reach FUSE servers; fsync does.
        for entry in std::fs::read_dir(mnt.join("names")).unwrap() {
            std::fs::File::open(entry.unwrap().path())
                .unwrap()
                .sync_all()
                .unwrap();
        }
        std::fs::File::open(mnt.join("names"))
            .unwrap()
            .sync_all()
            .unwrap();
        let kept = snapshot(&mnt.join("names"));
        let open = std::fs::File::open(mnt.join("sizes/f5000001")).unwrap();
        std::fs::remove_file(mnt.join("sizes/f5000001")).unwrap();
        std::fs::remove_dir_all(mnt.join("churn")).unwrap();
        for k in 0..50u8 {
            let path = mnt.join(format!("fsynced {k}"));
            std::fs::write(&path, vec![k; 5000]).unwrap();
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
        }
        mounted.kill();
        drop(open);
        let dirty = scratch.path("dirty.img");
        std::fs::rename(&image, &dirty).unwrap();
        replays_agree(kind.name, &dirty, None, &scratch);
        let mounted = Mounted::new(&dirty, &mnt, "");
        for k in 0..50u8 {
            let read = std::fs::read(mnt.join(format!("fsynced {k}"))).unwrap();
            assert!(
                read == vec![k; 5000],
                "{}: fsynced file {k} is not whole",
                kind.name
            );
        }
        assert_same("what fsync promised", &kept, &snapshot(&mnt.join("names")));
        mounted.unmount();
    }
}
