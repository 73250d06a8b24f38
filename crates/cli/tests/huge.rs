//! Large directories through mounts, ext4 and f2fs: made, listed from saved positions while others come and go, removed.
//!
//! `BLOCKWRIGHT_HUGE_DIR=1000000` makes it a tenth of that many entries (`cargo xtask big`).

mod common;

use common::{Mounted, Scratch, check_clean, have_fuse, ok, program};
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Instant;

fn huge(format: &str) {
    if !have_fuse() {
        return;
    }
    let count = std::env::var("BLOCKWRIGHT_HUGE_DIR")
        .map_or(4000, |n| n.parse::<usize>().expect("a number") / 10);
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    let size = (count * 16384).max(256 << 20).to_string();
    ok(program()
        .args(["mkfs", "--quiet", "-t", format, "--size", &size])
        .arg(&image));
    let mounted = Mounted::new(&image, &mnt, "");
    work(format, count, &mnt.join("huge"));
    mounted.unmount();
    check_clean(&image, format);
}

fn work(format: &str, count: usize, dir: &Path) {
    fs::create_dir(dir).unwrap();
    let mut start = Instant::now();
    let mut told = |what: &str| {
        let took = std::mem::replace(&mut start, Instant::now()).elapsed();
        eprintln!("{format} over FUSE: {count} entries {what} in {took:.1?}");
    };
    let name = |n: usize| dir.join(format!("entry-{n:07}"));
    // An inode of f2fs is a block.
    let links = if format == "f2fs" { 8 } else { 1 };
    for n in 0..count {
        if n % links == 0 {
            fs::File::create(name(n)).unwrap();
        } else {
            fs::hard_link(name(n - n % links), name(n)).unwrap();
        }
    }
    told("made");
    let fd = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut seen = HashSet::new();
    let (mut at, mut step) = (0, 0);
    loop {
        // From a saved position, as after seekdir.
        rustix::fs::seek(&fd, SeekFrom::Start(at)).unwrap();
        let mut raw = RawDir::new(&fd, buffer.spare_capacity_mut());
        let mut more = 0;
        while more < 1000
            && let Some(entry) = raw.next()
        {
            let entry = entry.unwrap();
            let name = entry.file_name().to_str().unwrap().to_owned();
            assert!(seen.insert(name), "{:?} came twice", entry.file_name());
            at = entry.next_entry_cookie();
            more += 1;
        }
        if more == 0 {
            break;
        }
        step += 1;
        // By offset new names come last: they would be listed forever.
        for n in (step..count).step_by(count / 20).filter(|_| step < 200) {
            if n % 3 == 0 {
                let _gone_already = fs::remove_file(name(n));
            }
            fs::File::create(dir.join(format!("new-{step}-{n}"))).unwrap();
        }
    }
    for n in (0..count).filter(|n| n % 3 != 0) {
        let name = format!("entry-{n:07}");
        assert!(seen.contains(&name), "{name} was not listed");
    }
    told("listed while changed");
    let left: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    told("listed");
    for path in left {
        fs::remove_file(path).unwrap();
    }
    told("removed");
    fs::remove_dir(dir).unwrap();
}

#[test]
fn huge_ext4() {
    huge("ext4");
}

#[test]
fn huge_f2fs() {
    huge("f2fs");
}
