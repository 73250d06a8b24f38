//! What f2fs's fsync wrote behind the last checkpoint: Linux recovers ours and we recover Linux's, to the same
//! tree; chains that are damaged in any way are survived.

use crate::common;
use crate::uml;
use blockwright::{OpenOptions, Volume, VolumeOptions};
use blockwright_device::sim::rng::SplitMix64;
use blockwright_device::{DevOffset, Flags, MemoryDevice, SharedDevice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What Linux shows of a volume. Times of directories are when they were recovered.
const SNAPSHOT: &str = r#"
snapshot() (
    cd "$1"
    find . -mindepth 1 -path ./lost+found -prune -o -type d -printf '%P|%y|%m|%U|%G\n' | sort
    find . ! -type d -printf '%P|%y|%m|%U|%G|%n|%s|%b|%T@|%l\n' | sort
    find . -type f -size -40M -print0 | sort -z | xargs -0 sha256sum
    dd if=d/far bs=4k skip=1099999 status=none | sha256sum
    find . -print0 | xargs -0 getfattr -hd -m - -e hex 2>/dev/null |
        awk '/^# file: /{f=$3;next} NF{print f" "$0}' | sort
)
"#;

/// Linux's part: a tree that is checkpointed, changes that are fsynced, others that are not, and a copy of the image in
/// the middle of it.
const WORK: &str = r#"
work() (
    cd "$1"
    mkdir -p d/e
    dd if=/dev/urandom of=d/old bs=4k count=3000 status=none
    for f in inline grows shrinks mode holes victim attrs plain; do echo "$f" > d/$f; done
    dd if=/dev/urandom of=d/shrinks bs=4k count=50 status=none
    dd if=/dev/urandom of=d/holes bs=4k count=1200 status=none
    setfattr -n user.gone -v 1 d/attrs
       sync
    # Over what is there, and behind it.
    dd if=/dev/urandom of=d/old bs=4k count=9 seek=100 conv=notrunc,fsync status=none
    dd if=/dev/urandom of=d/old bs=4k count=700 seek=2990 conv=notrunc,fsync status=none
    dd if=/dev/urandom of=d/new bs=4k count=3500 conv=fsync status=none
    dd if=/dev/urandom of=d/far bs=4k count=2 seek=1100000 conv=fsync status=none
    echo tiny > d/e/tiny; sync d/e/tiny
    echo more >> d/inline; sync d/inline
    dd if=/dev/urandom of=d/grows bs=5000 count=1 seek=1 conv=notrunc,fsync status=none
    truncate -s 5000 d/shrinks; sync d/shrinks
    chmod 0640 d/mode; chown 7:8 d/mode; touch -d '2001-02-03 04:05:06.7 UTC' d/mode; sync d/mode
    fallocate -p -o 8192 -l 400000 d/holes; fallocate -p -o 4300800 -l 40960 d/holes; sync d/holes
    fallocate -l 100000 d/e/reserved; sync d/e/reserved
    rm d/victim; echo reborn > d/victim; sync d/victim
    setfattr -x user.gone d/attrs; setfattr -n user.new -v "$(printf '%100s' y)" d/attrs; sync d/attrs
    setfattr -n user.two -v "$(printf '%2000s' z)" d/plain; sync d/plain
    for n in $(seq 40); do echo $n > d/e/number-$n; sync d/e/number-$n; done
    # Written again and again: the last one counts.
    for n in $(seq 8); do echo $n >> d/e/log; sync d/e/log; done
    echo lost > d/lost
    echo lost >> d/e/number-3
    chmod 0 d/e/number-4
    rm d/e/number-5
)
"#;

/// The same from our side.
fn work(volume: &Volume, cut: impl FnOnce()) {
    let bytes = |seed: u8, len: usize| -> Vec<u8> {
        (0..len).map(|n| (n / 7 + n / 4096) as u8 ^ seed).collect()
    };
    let edit = |path: &str| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(volume, path)
            .expect("opened")
    };
    let put = |path: &str, seed: u8, at: u64, len: usize| {
        let file = edit(path);
        file.write_all_at(&bytes(seed, len), at).expect("written");
        file.sync_all().expect("synced");
    };
    volume.create_dir_all("/d/e").expect("made");
    for (name, len) in [("old", 3000), ("holes", 1200), ("shrinks", 50)] {
        volume
            .write(format!("/d/{name}"), bytes(1, len << 12))
            .expect("written");
    }
    for name in ["inline", "grows", "mode", "victim", "attrs", "plain"] {
        volume.write(format!("/d/{name}"), name).expect("written");
    }
    let set = |path: &str, name: &str, len: usize| {
        volume
            .set_xattr(path, name, bytes(3, len), blockwright::XattrMode::Any)
            .expect("set");
    };
    set("/d/attrs", "user.gone", 1);
    volume.sync().expect("synced");
    put("/d/old", 2, 100 << 12, 9 << 12);
    put("/d/old", 3, 2990 << 12, 700 << 12);
    put("/d/new", 4, 0, 3500 << 12);
    put("/d/far", 5, 1_100_000 << 12, 2 << 12);
    put("/d/e/tiny", 6, 0, 5);
    put("/d/inline", 7, 6, 5);
    put("/d/grows", 8, 5000, 5000);
    volume.set_len("/d/shrinks", 5000).expect("cut");
    edit("/d/shrinks").sync_all().expect("synced");
    volume.set_permissions("/d/mode", 0o640).expect("set");
    volume.chown("/d/mode", Some(7), Some(8)).expect("set");
    edit("/d/mode").sync_all().expect("synced");
    let holes = edit("/d/holes");
    holes.punch_hole(8192, 400_000).expect("punched");
    holes.punch_hole(4_300_800, 40_960).expect("punched");
    holes.sync_all().expect("synced");
    let reserved = edit("/d/e/reserved");
    reserved.allocate(0, 100_000).expect("reserved");
    reserved.sync_all().expect("synced");
    volume.remove_file("/d/victim").expect("removed");
    put("/d/victim", 9, 0, 7);
    volume
        .remove_xattr("/d/attrs", "user.gone")
        .expect("removed");
    set("/d/attrs", "user.new", 100);
    edit("/d/attrs").sync_all().expect("synced");
    set("/d/plain", "user.two", 2000);
    edit("/d/plain").sync_data().expect("synced");
    for n in 0..41 {
        put(&format!("/d/e/number-{n}"), n, 0, 4);
    }
    for n in 0..20 {
        put("/d/e/log", n, u64::from(n) * 3, 3);
    }
    // Nothing of this took a checkpoint, except the file that lost its name.
    let stats = volume.vfs().stats();
    let count = |name: &str| stats.get(name).expect("counted");
    assert!(count("fsyncs_chained") > 60, "{}", count("fsyncs_chained"));
    let others: u64 = stats
        .numbers()
        .iter()
        .filter(|(name, _)| name.starts_with("fsync_checkpoints_"))
        .map(|(_, n)| n)
        .sum();
    assert_eq!(others, 0, "checkpoints were written");
    volume.write("/d/lost", "lost").expect("written");
    volume.set_permissions("/d/e/number-4", 0).expect("set");
    volume.remove_file("/d/e/number-5").expect("removed");
    cut();
}

fn options(read_only: bool) -> VolumeOptions {
    let mut options = Volume::options().read_only(read_only);
    options.parts.f2fs.commit_interval = Duration::from_secs(100_000);
    options.parts.vfs.commit_interval = options.parts.f2fs.commit_interval;
    options
}

/// Recovers by mounting; how many files.
fn recover(image: &Path) -> u64 {
    let volume = options(false).open(image).expect("mounted");
    assert_eq!(volume.read_only_reason(), None);
    let files = volume.vfs().stats().get("recovered_files");
    volume.close().expect("closed");
    common::assert_fsck_f2fs_clean(image);
    files.expect("counted")
}

#[test]
fn linux_and_we_recover_the_same() {
    if !common::have_tool("mkfs.f2fs") || !uml::available() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("out");
    std::fs::create_dir(&out).expect("a directory");
    let sets = [
        "",
        "extra_attr,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr",
    ];
    let image = |name: String| dir.path().join(name);
    let made = |name: &str| -> Vec<PathBuf> {
        (0..sets.len())
            .map(|n| {
                let path = image(format!("{name}{n}"));
                common::mkfs_f2fs(&path, sets[n], 200 << 20);
                path
            })
            .collect()
    };
    // Linux works, and its volumes are copied under its hands.
    let theirs = made("linux");
    let mut script = WORK.to_owned();
    for (n, path) in theirs.iter().enumerate() {
        let letter = (b'a' + n as u8) as char;
        let (from, to) = (path.display(), image(format!("linux-cut{n}")));
        script += &format!(
            "attach {letter}\nwork /mnt/{letter}\ncp --sparse=always {from} {}\n",
            to.display()
        );
    }
    let paths: Vec<&Path> = theirs.iter().map(PathBuf::as_path).collect();
    uml::run(&out, &paths, &script, Duration::from_secs(200));
    // So do we.
    for (n, path) in made("ours").iter().enumerate() {
        let volume = options(false).open(path).expect("mounted");
        work(&volume, || {
            std::fs::copy(path, image(format!("ours-cut{n}"))).expect("copied");
        });
        volume.close().expect("closed");
        common::assert_fsck_f2fs_clean(path);
    }
    // Linux recovers one copy, we the other, and Linux shows both.
    let mut script = SNAPSHOT.to_owned();
    let mut images = Vec::new();
    for who in ["linux", "ours"] {
        for n in 0..sets.len() {
            let cut = image(format!("{who}-cut{n}"));
            for by in ["linux", "us"] {
                let copy = image(format!("{who}-by-{by}{n}"));
                std::fs::copy(&cut, &copy).expect("copied");
                if by == "us" {
                    let files = recover(&copy);
                    assert!(files > 50, "{who}{n}: {files}");
                }
                let letter = (b'a' + images.len() as u8) as char;
                script += &format!(
                    "attach {letter}\nsnapshot /mnt/{letter} > $OUT/{who}-by-{by}{n}\numount /mnt/{letter}\n"
                );
                images.push(copy);
            }
        }
    }
    let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
    uml::run(&out, &paths, &script, Duration::from_secs(200));
    for who in ["linux", "ours"] {
        for n in 0..sets.len() {
            let read = |by: &str| {
                std::fs::read_to_string(out.join(format!("{who}-by-{by}{n}"))).expect("written")
            };
            let (linux, us) = (read("linux"), read("us"));
            for expected in ["d/e/number-40|f|", "d/far|f|", "user.two"] {
                assert!(us.contains(expected), "{who}{n}: {expected}:\n{us}");
            }
            assert!(
                us.contains("d/e/number-5|f|") && !us.contains("d/lost"),
                "{us}"
            );
            let mut differing = linux.lines().zip(us.lines()).filter(|(a, b)| a != b);
            assert_eq!(differing.next(), None, "{who}{n}");
            assert_eq!(linux.lines().count(), us.lines().count(), "{who}{n}");
        }
    }
    images
        .iter()
        .for_each(|image| common::assert_fsck_f2fs_clean(image));
}

/// Reads everything there is; what cannot be read is an error, never a panic.
fn read_all(volume: &Volume) -> usize {
    let mut n = 0;
    for entry in volume.walk("/") {
        let Ok(entry) = entry else { continue };
        n += 1;
        if entry.metadata.is_file() {
            let mut buf = vec![0; 64 << 10];
            if let Ok(file) = volume.open_file(&entry.path) {
                let _unreadable = file.read_at(&mut buf, 0);
            }
        }
    }
    n
}

/// Which fsyncs write a checkpoint, and that what happened survives in both ways.
#[test]
fn a_checkpoint_is_written_where_a_chain_does_not_suffice() {
    use blockwright_f2fs::FsyncMode;
    if !common::have_tool("mkfs.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let cut = dir.path().join("cut");
    common::mkfs_f2fs(&path, "", 64 << 20);
    let mut strict = options(false);
    strict.parts.f2fs.fsync_mode = FsyncMode::Strict;
    for options in [&options(false), &strict] {
        let is_strict = options.parts.f2fs.fsync_mode == FsyncMode::Strict;
        let volume = options.open(&path).expect("mounted");
        let sync = |path: &str| {
            volume
                .open_file(path)
                .expect("opened")
                .sync_all()
                .expect("synced")
        };
        let make = |path: &str, text: &str| {
            volume.write(path, text).expect("written");
            sync(path);
        };
        let tree = |volume: &Volume| -> Vec<(String, Vec<u8>)> {
            let mut all: Vec<_> = volume
                .walk("/t")
                .map(|e| e.expect("an entry"))
                .filter(|e| e.metadata.is_file())
                .map(|e| {
                    (
                        e.path.display().to_string(),
                        volume.read(&e.path).expect("read"),
                    )
                })
                .collect();
            all.sort();
            all
        };
        // Makes a fresh directory with two files, does something, and cuts: the reason, and what is there after recovery.
        let case = |reason: &str, act: &dyn Fn(), expected: &[(&str, &str)]| {
            volume.remove_dir_all("/t").ok();
            volume.create_dir("/t").expect("made");
            volume.write("/t/a", "a").expect("written");
            volume
                .write("/t/large", vec![b'l'; 8 << 20])
                .expect("written");
            volume.sync().expect("synced");
            let count = |name: &str| volume.vfs().stats().get(name).expect("counted");
            let name = format!("fsync_checkpoints_{reason}");
            let before = if reason.is_empty() { 0 } else { count(&name) };
            act();
            if !reason.is_empty() {
                assert_eq!(count(&name), before + 1, "{reason}");
            }
            std::fs::copy(&path, &cut).expect("copied");
            let after = self::options(false).open(&cut).expect("mounted");
            let found: Vec<(String, String)> = tree(&after)
                .into_iter()
                .filter(|(path, _)| path != "/t/large")
                .map(|(path, text)| (path, String::from_utf8(text).expect("text")))
                .collect();
            let found: Vec<(&str, &str)> = found.iter().map(|(a, b)| (&a[..], &b[..])).collect();
            assert_eq!(found, expected, "{reason}");
            after.close().expect("closed");
            common::assert_fsck_f2fs_clean(&cut);
        };
        case("", &|| make("/t/b", "b"), &[("/t/a", "a"), ("/t/b", "b")]);
        let renamed = || {
            volume.rename("/t/a", "/t/c").expect("renamed");
            sync("/t/c");
        };
        case("renamed", &renamed, &[("/t/c", "a")]);
        // The old file keeps its other name, and is not lost to the new one (xfstests generic/342).
        let replaced = || {
            volume.rename("/t/a", "/t/c").expect("renamed");
            make("/t/a", "new");
        };
        case("name", &replaced, &[("/t/a", "new"), ("/t/c", "a")]);
        let linked = || {
            volume.hard_link("/t/a", "/t/c").expect("linked");
            sync("/t/a");
        };
        case("links", &linked, &[("/t/a", "a"), ("/t/c", "a")]);
        let nested = || {
            volume.create_dir("/t/d").expect("made");
            make("/t/d/b", "b");
        };
        case("parent", &nested, &[("/t/a", "a"), ("/t/d/b", "b")]);
        let shrunk = || {
            volume.set_len("/t/large", 1).expect("cut");
            sync("/t/large");
        };
        case("freed", &shrunk, &[("/t/a", "a")]);
        let kind = || {
            volume.create_dir("/t/d").expect("made");
            sync("/t/d");
        };
        case("kind", &kind, &[("/t/a", "a")]);
        // A removed file may come back beside one that was fsynced; not in strict mode.
        let removed = || {
            volume.remove_file("/t/a").expect("removed");
            make("/t/b", "b");
        };
        match is_strict {
            true => case("strict", &removed, &[("/t/b", "b")]),
            false => case("", &removed, &[("/t/a", "a"), ("/t/b", "b")]),
        }
        volume.close().expect("closed");
    }
}

#[test]
fn damaged_chains_are_survived() {
    if !common::have_tool("mkfs.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    common::mkfs_f2fs(&path, "", 64 << 20);
    let cut = dir.path().join("cut");
    {
        let volume = options(false).open(&path).expect("mounted");
        volume.create_dir("/d").expect("made");
        volume.write("/d/old", vec![7; 5 << 20]).expect("written");
        volume.sync().expect("synced");
        for n in 0..6 {
            let file = volume.create_file(format!("/d/{n}")).expect("made");
            let len = if n == 3 { 6 << 20 } else { 9000 * n };
            file.write_all_at(&vec![n as u8; len], 0).expect("written");
            file.sync_all().expect("synced");
        }
        let old = OpenOptions::new()
            .write(true)
            .open(&volume, "/d/old")
            .expect("opened");
        old.write_all_at(&[9; 100_000], 5 << 20).expect("written");
        old.sync_all().expect("synced");
        std::fs::copy(&path, &cut).expect("copied");
    }
    let whole = MemoryDevice::load(&cut).expect("an image");
    let chain = chain_of(&whole);
    let copy: SharedDevice = Arc::new(whole.snapshot());
    let volume = options(true).open_device(copy).expect("mounted");
    let files = volume.vfs().stats().get("recovered_files");
    assert!(files > Some(3), "{files:?}");
    assert!(chain.len() > 7, "{chain:?}");
    let seed = common::seed(0x0f2f_5cba);
    let (mut recovered, mut refused) = (0, 0);
    for round in 0..40u64 {
        let mut rng = SplitMix64::new(seed ^ round);
        let device = Arc::new(whole.snapshot());
        for _ in 0..=common::below(&mut rng, 2) {
            damage(&device, &chain, &mut rng);
        }
        let before = device.to_vec();
        let shared: SharedDevice = device.clone();
        let name = format!("seed {seed}, round {round}");
        match options(true).open_device(Arc::clone(&shared)) {
            Ok(volume) => drop((read_all(&volume), volume.close())),
            Err(e) => panic!("{name}: a mount for reading falls back to the checkpoint: {e}"),
        }
        assert!(
            before == device.to_vec(),
            "{name}: written by a mount for reading"
        );
        let volume = options(false)
            .open_device(Arc::clone(&shared))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        if let Some(why) = volume.read_only_reason() {
            assert!(why.contains("cannot be recovered"), "{name}: {why}");
            assert!(read_all(&volume) >= 2, "{name}: the checkpoint is shown");
            drop(volume);
            assert!(before == device.to_vec(), "{name}: written");
            refused += 1;
            continue;
        }
        read_all(&volume);
        volume.close().unwrap_or_else(|e| panic!("{name}: {e}"));
        recovered += 1;
        let options = blockwright_check::f2fs::CheckOptions::default();
        let report = blockwright_check::f2fs::check(shared, &options).expect("checked");
        let issues: Vec<String> = report.issues.iter().map(ToString::to_string).collect();
        assert!(report.is_clean(), "{name}: {issues:?}");
    }
    println!("{recovered} recovered, {refused} refused");
    assert!(
        recovered > 4 && refused > 4,
        "{recovered} recovered, {refused} refused"
    );
}

const FOOTER: usize = 4096 - 24;

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"))
}

fn block(device: &MemoryDevice, at: u32) -> Vec<u8> {
    use blockwright_device::BlockDevice as _;
    let mut bytes = vec![0; 4096];
    device
        .read_at(DevOffset(u64::from(at) << 12), &mut bytes)
        .expect("read");
    bytes
}

/// Where the chain's blocks are: found by their marks, not by following them.
fn chain_of(device: &MemoryDevice) -> Vec<u32> {
    let sb = block(device, 0);
    let (main, count) = (word(&sb, 1024 + 92), word(&sb, 1024 + 68) * 512);
    let marked = |at: &u32| {
        let b = block(device, *at);
        // Numbers that are no file's data, the fsync mark, and a version with a checksum.
        let numbers = (3..5000).contains(&word(&b, FOOTER)) && word(&b, FOOTER + 4) < 5000;
        numbers && word(&b, FOOTER + 8) & 2 != 0 && word(&b, FOOTER + 16) != 0
    };
    let first: Vec<u32> = (main..main + count).filter(marked).collect();
    let version = |at: u32| block(device, at)[FOOTER + 12..FOOTER + 20].to_vec();
    let newest = first.last().map(|at| version(*at)).unwrap_or_default();
    let (from, to) = (
        first.first().copied().unwrap_or(0),
        first.last().copied().unwrap_or(0),
    );
    (from..=to).filter(|at| version(*at) == newest).collect()
}

fn damage(device: &MemoryDevice, chain: &[u32], rng: &mut SplitMix64) {
    use blockwright_device::BlockDevice as _;
    let pick = |rng: &mut SplitMix64| chain[common::below(rng, chain.len() as u64) as usize];
    let at = pick(rng);
    let mut b = block(device, at);
    let mut set = |at: usize, value: u32| b[at..at + 4].copy_from_slice(&value.to_le_bytes());
    let wild = rng.next_u64() as u32;
    match common::below(rng, 9) {
        // The next block: anywhere, in a circle, nowhere.
        0 => set(FOOTER + 20, wild),
        1 => set(FOOTER + 20, pick(rng)),
        2 => set(FOOTER + 20, at),
        // Whose, where in the tree, which marks.
        3 => set(FOOTER, wild % 100),
        4 => set(FOOTER + 4, wild % 100),
        5 => set(FOOTER + 8, wild % 5000),
        // Addresses, sizes, names, flags.
        6 => {
            let to = common::below(rng, 900) as usize * 4 + 360;
            set(to, at.wrapping_add(wild % 700));
        }
        7 => {
            let to = common::below(rng, 360) as usize;
            b[to] ^= 1 << common::below(rng, 8);
        }
        _ => {
            for _ in 0..40 {
                let to = common::below(rng, 4096) as usize;
                b[to] = rng.next_u64() as u8;
            }
        }
    }
    device
        .write_at(DevOffset(u64::from(at) << 12), &b, Flags::empty())
        .expect("written");
}

/// A volume that is full at the checkpoint: what was removed since is there again when a chain is recovered, beside what was written in
/// its place. Where both have no room, fsync writes a checkpoint.
#[test]
fn a_full_volume_recovers_what_took_the_place_of_others() {
    let memory = common::f2fs::formatted(64 << 20);
    let volume = options(false).open_device(memory.clone()).expect("mounted");
    let mut n = 0;
    while volume.vfs().statfs().expect("told").blocks_free > 300 {
        volume
            .write(format!("/old-{n}"), vec![1; 250 << 12])
            .expect("written");
        n += 1;
    }
    volume.sync().expect("synced");
    for k in 0..3 {
        volume.remove_file(format!("/old-{k}")).expect("removed");
        let new = volume.create_file(format!("/new-{k}")).expect("made");
        new.write_all_at(&vec![2; 240 << 12], 0).expect("written");
        new.sync_all().expect("synced");
    }
    let crashed = Arc::new(memory.snapshot());
    let after = options(false).open_device(crashed.clone() as SharedDevice);
    let after = after.expect("mounted");
    assert_eq!(after.read_only_reason(), None);
    for k in 0..3 {
        let bytes = after.read(format!("/new-{k}")).expect("it is there");
        assert!(bytes.len() == 240 << 12 && bytes.iter().all(|b| *b == 2));
    }
    let room = volume.vfs().stats().get("fsync_checkpoints_room");
    assert!(room.expect("counted") > 0);
    after.close().expect("closed");
    common::f2fs::assert_clean(&crashed);
}
