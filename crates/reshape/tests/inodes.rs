//! Inodes in groups that go: the minimum beside that of `resize2fs`, and a power failure at every moment.

mod common;

use blockwright_device::{CrashPolicy, MemoryDevice, RecordingDevice, SharedDevice};
use blockwright_reshape::ResizeOptions;
use blockwright_reshape::ext4::resize::resize;
use common::{clean, contents, device, field, have_tools, ok, output, scratch};
use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Options of `mke2fs`, features that `tune2fs` adds when low inodes are taken, directories in one directory.
const LAYOUTS: &[(&str, &[&str], &str, usize)] = &[
    (
        "ext4",
        &[
            "-b",
            "1024",
            "-g",
            "2048",
            "-O",
            "has_journal,extent,64bit,metadata_csum,flex_bg,dir_index,resize_inode,ea_inode,inline_data,large_dir",
            "-I",
            "256",
            "-J",
            "size=1",
        ],
        "orphan_file,project,quota",
        30,
    ),
    (
        "without flexible groups",
        &[
            "-b",
            "1024",
            "-g",
            "2048",
            "-O",
            "has_journal,extent,64bit,metadata_csum,^flex_bg,dir_index,metadata_csum_seed",
            "-I",
            "128",
        ],
        "",
        30,
    ),
    (
        "4k",
        &[
            "-b",
            "4096",
            "-g",
            "1024",
            "-O",
            "has_journal,extent,64bit,metadata_csum,flex_bg,dir_index,^resize_inode,ea_inode",
            "-I",
            "256",
        ],
        "quota",
        30,
    ),
    (
        "a directory that is larger than the journal",
        &[
            "-b",
            "1024",
            "-g",
            "2048",
            "-O",
            "has_journal,extent,uninit_bg,flex_bg,dir_index,resize_inode",
            "-J",
            "size=1",
        ],
        "",
        1400,
    ),
    (
        "ext3",
        &[
            "-b",
            "1024",
            "-g",
            "2048",
            "-O",
            "has_journal,dir_index,resize_inode,filetype",
            "-J",
            "size=2",
        ],
        "",
        30,
    ),
    (
        "ext2",
        &["-b", "1024", "-g", "2048", "-O", "resize_inode,filetype"],
        "",
        30,
    ),
];

/// Makes a volume of eight groups or more, with its files in the last ones.
fn make(image: &Path, dir: &Path, options: &[&str], later: &str, wide: usize, dummies: usize) {
    let _ = fs::remove_file(image);
    let inodes = (dummies + wide + 400).to_string();
    let size = if options.contains(&"4096") {
        "33M"
    } else {
        "17M"
    };
    ok(Command::new("mke2fs")
        .args(["-q", "-F", "-N", &inodes])
        .args(options)
        .arg(image)
        .arg(size));
    let debugfs = |script: &str| {
        let commands = dir.join("commands");
        fs::write(&commands, script).expect("written");
        let said = ok(Command::new("debugfs")
            .args(["-w", "-f"])
            .arg(&commands)
            .arg(image));
        for failure in ["No free space", "Could not allocate", "ext2_lookup"] {
            assert!(
                !said.contains(failure),
                "{}",
                &said[said.len().saturating_sub(900)..]
            );
        }
    };
    debugfs(
        &(0..dummies)
            .map(|n| format!("write /dev/null dummy-{n}\n"))
            .collect::<String>(),
    );
    if !later.is_empty() {
        ok(Command::new("tune2fs").args(["-O", later]).arg(image));
    }
    let value = dir.join("value");
    // As large as debugfs takes it, and too large for a block of 1 KiB: an inode holds it.
    fs::write(&value, vec![b'v'; 1024]).expect("written");
    let mut script = String::from(
        "mkdir deep\nmkdir deep/a\nmkdir deep/a/b\nmkdir wide\nmkdir many\nmkdir moved\n",
    );
    for n in 0..wide {
        script += &format!("mkdir wide/{n}\n");
    }
    for n in 0..90usize {
        let file = dir.join(format!("file-{n}"));
        fs::write(&file, vec![n as u8; n * 97]).expect("written");
        script += &format!("write {} many/a-name-of-some-length-{n}\n", file.display());
    }
    let file = dir.join("pieces");
    fs::write(&file, vec![7; 200 << 10]).expect("written");
    script += &format!("write {} deep/a/b/pieces\n", file.display());
    for n in (1..40).step_by(2) {
        script += &format!("punch deep/a/b/pieces {n} {n}\n");
    }
    script += "ln many/a-name-of-some-length-5 deep/a/hard\nsif many/a-name-of-some-length-5 links_count 2\n";
    script += "symlink deep/link many/a-name-of-some-length-7\n";
    script += &format!("symlink deep/long {}\n", "l".repeat(90));
    script += "mknod deep/pipe p\n";
    if options.iter().any(|o| o.contains("ea_inode")) {
        script += &format!(
            "ea_set -f {} many/a-name-of-some-length-9 user.large\n",
            value.display()
        );
        script += &format!("ea_set -f {} deep user.large\n", value.display());
    }
    debugfs(&script);
    debugfs(
        &(0..dummies)
            .map(|n| format!("rm dummy-{n}\n"))
            .collect::<String>(),
    );
    // Makes indexes by hashes.
    // The second run counts quota of what the first one changed.
    for how in ["-fyD", "-fy"] {
        let out = output(Command::new("e2fsck").arg(how).arg(image));
        assert!(
            out.status.code().is_some_and(|code| code < 4),
            "{}",
            String::from_utf8_lossy(&out.stdout)
        );
    }
    clean(image, "made");
}

/// The highest inode in use, by the bitmaps.
fn highest(image: &Path) -> u32 {
    let said = ok(Command::new("debugfs")
        .args(["-R", "ncheck -c 1"])
        .arg(image));
    drop(said);
    let said = ok(Command::new("dumpe2fs").arg(image));
    // As in `Free inodes: 12-100, 103`, of each group.
    let count: u32 = field(image, "Inode count").parse().expect("a number");
    let free: HashSet<u32> = said
        .lines()
        .filter_map(|line| line.strip_prefix("  Free inodes: "))
        .flat_map(|list| list.split(", "))
        .filter(|piece| !piece.is_empty())
        .flat_map(|piece| {
            let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
            let number = |text: &str| text.trim().parse::<u32>().expect("a number");
            number(first)..=number(last)
        })
        .collect();
    (1..=count)
        .rev()
        .find(|ino| !free.contains(ino))
        .unwrap_or(0)
}

#[test]
fn inodes_move_to_the_minimum_of_resize2fs() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let (made, ours, theirs) = (
        dir.path().join("made"),
        dir.path().join("ours"),
        dir.path().join("theirs"),
    );
    for (name, options, later, wide) in LAYOUTS {
        make(&made, dir.path(), options, later, *wide, 1500);
        let bytes = fs::metadata(&made).expect("there").len();
        let before = contents(&made);
        assert!(before.len() > 100 + wide, "{name}: {} names", before.len());
        let value = |image: &Path| {
            ["deep", "many/a-name-of-some-length-9"].map(|file| {
                ok(Command::new("debugfs")
                    .args(["-R", &format!("ea_get -V {file} user.large")])
                    .arg(image))
            })
        };
        let values = value(&made);
        let held = values.iter().all(|value| value.contains(&"v".repeat(1000)));
        assert!(held || *name != "ext4", "{name}: no values in inodes");
        fs::copy(&made, &ours).expect("copied");
        fs::copy(&made, &theirs).expect("copied");
        let per: u32 = field(&made, "Inodes per group").parse().expect("a number");
        let last = highest(&made).div_ceil(per);
        let resized = resize(&device(&ours), &ResizeOptions::to_minimum(0))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        common::set_len(&ours, resized.bytes());
        assert!(
            resized.parts.now() < last,
            "{name}: {} groups, the last inode was in {last}: nothing was tested",
            resized.parts.now()
        );
        clean(&ours, name);
        assert!(contents(&ours) == before, "{name}: files differ");
        assert_eq!(value(&ours), values, "{name}");
        let kept = ["Filesystem features", "Journal size", "Total journal size"];
        for known in kept {
            assert_eq!(field(&ours, known), field(&made, known), "{name}: {known}");
        }
        let least = common::least_by_resize2fs(&theirs);
        println!("{name}: {} blocks, resize2fs -M {least}", resized.blocks);
        // A journal for the time of the change needs room in front of the end, too.
        let journal = match options.iter().any(|o| o.contains("has_journal")) {
            true => 0,
            false => 2500,
        };
        assert!(
            resized.blocks <= least + journal,
            "{name}: {} blocks, resize2fs -M {least}",
            resized.blocks
        );
        // And back.
        common::set_len(&ours, bytes);
        resize(&device(&ours), &ResizeOptions::to_bytes(bytes))
            .unwrap_or_else(|e| panic!("{name}, back: {e}"));
        clean(&ours, name);
        assert!(contents(&ours) == before, "{name}: files differ");
    }
}

/// A power failure at every write and flush while inodes move, with what was not flushed kept, lost or torn.
#[test]
fn a_power_failure_while_inodes_move_loses_no_file() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let image = dir.path().join("image");
    // With checksums everywhere, and with a journal that is made larger and smaller again.
    for (name, layout, wide) in [("ext4", 0, 6), ("larger journal", 3, 1100)] {
        let (_, options, later, _) = LAYOUTS[layout];
        make(&image, dir.path(), options, later, wide, 400);
        let before = contents(&image);
        let base = MemoryDevice::load(&image).expect("loaded");
        let recording = Arc::new(RecordingDevice::new(&base));
        resize(
            &(Arc::clone(&recording) as SharedDevice),
            &ResizeOptions::to_minimum(0),
        )
        .unwrap_or_else(|e| panic!("{name}: {e}"));
        let length = recording.log_len();
        let (mut seen, mut images) = (HashSet::new(), 0);
        // All cuts would take a minute.
        for cut in (0..=length).filter(|cut| *cut % 9 == 0 || cut + 12 > length) {
            let pending = recording.pending_at(cut).len();
            let mut policies = vec![CrashPolicy::AllKept, CrashPolicy::NoneKept];
            if pending > 1 {
                policies.push(CrashPolicy::Random { seed: cut as u64 });
            }
            for policy in policies {
                let crashed = recording.image_at(cut, policy);
                let mut hasher = DefaultHasher::new();
                crashed.to_vec().hash(&mut hasher);
                if !seen.insert(hasher.finish()) {
                    continue;
                }
                images += 1;
                let what = format!("{name}: cut {cut} of {length}, {policy:?}");
                crashed.save(&image).expect("saved");
                common::recovers(&image, &before, &what, images % 16 == 1);
            }
        }
        println!("{name}: {length} entries, {images} images");
        assert!(images > 10, "{name}: only {images} images");
    }
}
