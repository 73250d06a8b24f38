//! Shrinkage: to sizes and to the minimum, beside `resize2fs` on the same image.

mod common;

use blockwright_reshape::ResizeOptions;
use blockwright_reshape::ext4::resize::resize;
use common::{clean, contents, device, field, have_tools, mke2fs, ok, output, scratch, tree};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Options of `mke2fs`, and the size.
const LAYOUTS: &[(&str, &[&str], &str)] = &[
    (
        "ext4",
        &[
            "-t",
            "ext4",
            "-O",
            "has_journal,extent,64bit,metadata_csum,flex_bg,huge_file,dir_nlink,extra_isize,resize_inode",
            "-G",
            "16",
        ],
        "400M",
    ),
    (
        "ext4 1k",
        &[
            "-b",
            "1024",
            "-O",
            "extent,64bit,metadata_csum,flex_bg,^resize_inode,has_journal",
            "-G",
            "4",
        ],
        "90M",
    ),
    (
        "resize_inode 1k",
        &[
            "-b",
            "1024",
            "-O",
            "extent,has_journal,flex_bg,uninit_bg,resize_inode,^64bit",
            "-G",
            "8",
        ],
        "300M",
    ),
    (
        "ext2",
        &["-b", "1024", "-O", "resize_inode,sparse_super,filetype"],
        "90M",
    ),
    (
        "ext3",
        &[
            "-b",
            "1024",
            "-O",
            "resize_inode,sparse_super,filetype,has_journal,dir_index",
            "-J",
            "size=2",
        ],
        "90M",
    ),
    (
        "meta_bg",
        &[
            "-b",
            "1024",
            "-O",
            "extent,has_journal,meta_bg,^resize_inode,64bit,metadata_csum,flex_bg",
        ],
        "300M",
    ),
    (
        "sparse_super2",
        &[
            "-b",
            "1024",
            "-O",
            "extent,has_journal,sparse_super2,^resize_inode,64bit,metadata_csum,flex_bg",
        ],
        "90M",
    ),
    (
        "orphan_file",
        &[
            "-b",
            "1024",
            "-O",
            "extent,has_journal,orphan_file,metadata_csum,flex_bg,64bit,resize_inode,metadata_csum_seed",
        ],
        "90M",
    ),
];

/// Fills the front of the volume with a file, writes others behind it, and removes the first one: what stays lies at the back.
fn push_back(image: &Path, dir: &Path, blocker_bytes: usize) {
    let blocker = dir.join("blocker");
    fs::write(&blocker, vec![0x55; blocker_bytes]).expect("written");
    let mut script = format!("write {} blocker\n", blocker.display());
    for n in 0..12usize {
        let file = dir.join(format!("back-{n}"));
        fs::write(&file, vec![n as u8 + 1; 9000 * n + 10]).expect("written");
        script += &format!("write {} back-{n}\n", file.display());
        script += &format!("ea_set back-{n} user.large {}\n", "v".repeat(600));
    }
    // Pieces: every other block of a file is freed again.
    let pieces = dir.join("pieces");
    fs::write(&pieces, vec![0x77; 900 << 10]).expect("written");
    script += &format!("write {} pieces\n", pieces.display());
    for n in (1..200).step_by(2) {
        script += &format!("punch pieces {n} {n}\n");
    }
    script += "rm blocker\n";
    let commands = dir.join("commands");
    fs::write(&commands, script).expect("written");
    let said = ok(Command::new("debugfs")
        .arg("-w")
        .arg("-f")
        .arg(&commands)
        .arg(image));
    let said = said.replace('v', "");
    assert!(
        !said.contains("No free space") && !said.contains("Could not allocate"),
        "{}",
        &said[said.len().saturating_sub(900)..]
    );
    let out = output(Command::new("e2fsck").arg("-fy").arg(image));
    assert!(out.status.code().is_some_and(|code| code < 4));
}

#[test]
fn shrinks_to_sizes_and_to_the_minimum() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    for (name, options, size) in LAYOUTS {
        let made = dir.path().join("made");
        let _ = fs::remove_file(&made);
        mke2fs(&made, options, size, &files);
        let bytes = fs::metadata(&made).expect("there").len();
        push_back(&made, dir.path(), bytes as usize / 2);
        clean(&made, name);
        let before = contents(&made);
        let xattr = |image: &Path| {
            ok(Command::new("debugfs")
                .args(["-R", "ea_get back-7 user.large"])
                .arg(image))
        };
        let attribute = xattr(&made);
        let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
        fs::copy(&made, &ours).expect("copied");
        // By steps, each of which cuts in another place.
        for percent in [95, 80, 61, 44] {
            let what = format!("{name} to {percent} %");
            let wanted = bytes * percent / 100;
            let resized = resize(&device(&ours), &ResizeOptions::to_bytes(wanted))
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(resized.bytes() <= wanted);
            common::set_len(&ours, resized.bytes());
            clean(&ours, &what);
            assert!(contents(&ours) == before, "{what}: files differ");
            assert_eq!(xattr(&ours), attribute, "{what}");
        }
        fs::copy(&made, &ours).expect("copied");
        fs::copy(&made, &theirs).expect("copied");
        let resized = resize(&device(&ours), &ResizeOptions::to_minimum(0))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        common::set_len(&ours, resized.bytes());
        clean(&ours, name);
        assert!(contents(&ours) == before, "{name}: files differ");
        let least = common::least_by_resize2fs(&theirs);
        println!(
            "{name}: {} blocks, resize2fs -M {least}, free {}",
            resized.blocks,
            field(&ours, "Free blocks")
        );
        assert!(
            resized.blocks <= least,
            "{name}: {} blocks, resize2fs -M {least}",
            resized.blocks
        );
        // The size that was found can be asked for, also by a caller that has rehearsed it.
        for options in [
            ResizeOptions::to_bytes(resized.bytes()),
            ResizeOptions::to_bytes(resized.bytes()).without_rehearsal(),
        ] {
            fs::copy(&made, &theirs).expect("copied");
            let again = resize(&device(&theirs), &options);
            let again = again.unwrap_or_else(|e| panic!("{name}, by its size: {e}"));
            assert_eq!(again.blocks, resized.blocks, "{name}");
            common::set_len(&theirs, again.bytes());
            clean(&theirs, name);
            assert!(contents(&theirs) == before, "{name}: files differ");
        }
        // And back.
        common::set_len(&ours, bytes);
        resize(&device(&ours), &ResizeOptions::to_bytes(bytes))
            .unwrap_or_else(|e| panic!("{name}, back: {e}"));
        clean(&ours, name);
        assert!(contents(&ours) == before, "{name}: files differ");
    }
}
