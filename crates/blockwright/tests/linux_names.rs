//! Case-insensitive directories, fs-verity and encryption, as Linux's ext4 and f2fs have them.
//!
//! `data/{ext4,f2fs}-names-by-linux.img.zst` were made by mke2fs (`-O casefold,encrypt,verity,^has_journal -E encoding=utf8`) and mkfs.f2fs 1.15
//! (`-O extra_attr,inode_checksum,sb_checksum,inode_crtime,casefold,verity,encrypt -C utf8`), and written by Debian's Linux 6.12 in a virtual
//! machine (`data/names-by-linux`: the program and the commands that ran in it; a boot takes ten seconds without hardware's help).
//! Linux's answers lie in the images as files, written after a remount that no key was given to:
//! - `/asked.DIR`: lines of a name that was opened and what was in the file, which is the name it was made by, or `!ERROR`. Bytes other
//!   than printable ASCII are `\xHH`. `fold/words` and `fold/many` are case-insensitive, `plain` is not.
//! - `/list.DIR`: name, mode, size, inode of every entry. `secret` is encrypted, `secretfold` that and case-insensitive.
//! - `/verity.sums`: name, SHA-256 of the contents, digest that Linux measured.

use blockwright_test_support as common;

use blockwright::build::EntryPolicy;
use blockwright::{ErrorKind, Format, OpenOptions, Volume, VolumeBuilder};
use blockwright_device::{MemoryDevice, SharedDevice};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EXT4: &[u8] = include_bytes!("data/ext4-names-by-linux.img.zst");
const F2FS: &[u8] = include_bytes!("data/f2fs-names-by-linux.img.zst");

fn images() -> [Arc<MemoryDevice>; 2] {
    [EXT4, F2FS].map(|packed| {
        let bytes = zstd::stream::decode_all(packed).expect("unpacked");
        Arc::new(MemoryDevice::from_image(&bytes))
    })
}

fn writable(device: &Arc<MemoryDevice>) -> Volume {
    let volume = Volume::open_device(device.clone()).expect("opens");
    assert!(!volume.is_read_only(), "{:?}", volume.read_only_reason());
    volume
}

fn assert_clean(device: &Arc<MemoryDevice>, format: Format) {
    let shared: SharedDevice = device.clone();
    let issues = if format == Format::F2fs {
        let options = blockwright_check::f2fs::CheckOptions::default();
        let report = blockwright_check::f2fs::check(shared, &options).expect("checked");
        format!("{:#?}", report.issues)
    } else {
        let options = blockwright_check::ext4::CheckOptions::default();
        let report = blockwright_check::ext4::check(shared, &options).expect("checked");
        format!("{:#?}", report.issues)
    };
    assert_eq!(issues, "[]", "{format:?}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    device.save(file.path()).expect("saved");
    if format != Format::F2fs {
        common::testing::assert_e2fsck_clean(file.path());
    } else if common::have_tool("fsck.f2fs") {
        common::assert_fsck_f2fs_clean(file.path());
    }
}

/// A name as the lists have it, in bytes.
fn plain(escaped: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = escaped.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        match after {
            [b'x', a, b, after @ ..] if *first == b'\\' => {
                let digits = [*a, *b];
                let digits = std::str::from_utf8(&digits).expect("ASCII");
                out.push(u8::from_str_radix(digits, 16).expect("two digits"));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

fn at(dir: &str, name: &[u8]) -> PathBuf {
    Path::new(dir).join(OsStr::from_bytes(name))
}

/// Lines of a file of the volume, each cut at tabs.
fn lines(volume: &Volume, path: &str) -> Vec<Vec<String>> {
    let text = String::from_utf8(volume.read(path).expect("read")).expect("ASCII");
    let cut = |line: &str| line.split('\t').map(str::to_owned).collect();
    text.lines().map(cut).collect()
}

/// (what was asked, what Linux found in it).
fn asked(volume: &Volume, dir: &str) -> Vec<(Vec<u8>, Option<String>)> {
    let lines = lines(volume, &format!("/asked.{dir}"));
    let pair = |line: Vec<String>| {
        let found = (line[1] != "!ENOENT").then(|| line[1].clone());
        assert!(!line[1].starts_with('!') || found.is_none(), "{line:?}");
        (plain(&line[0]), found)
    };
    lines.into_iter().map(pair).collect()
}

#[test]
fn names_are_found_as_linux_finds_them() {
    for device in images() {
        let volume = Volume::options()
            .read_only(true)
            .open_device(device.clone())
            .expect("opens");
        let format = volume.format();
        let mut seen = (0, 0);
        for (list, dir) in [
            ("words", "/fold/words"),
            ("many", "/fold/many"),
            ("plain", "/plain"),
        ] {
            for (name, expected) in asked(&volume, list) {
                let shown = String::from_utf8_lossy(&name).into_owned();
                match (volume.read(at(dir, &name)), expected) {
                    (Ok(found), Some(expected)) => {
                        assert_eq!(found, expected.as_bytes(), "{format:?} {dir}/{shown}");
                        seen.0 += 1;
                    }
                    (Err(e), None) => {
                        assert_eq!(e.kind(), ErrorKind::NotFound, "{dir}/{shown}: {e}");
                        seen.1 += 1;
                    }
                    (ours, theirs) => panic!("{format:?} {dir}/{shown}: {ours:?}, not {theirs:?}"),
                }
            }
        }
        assert!(seen.0 > 600 && seen.1 > 100, "{seen:?}");
        assert_clean(&device, format);
    }
}

/// What is listed, in the form of Linux's lists.
fn listed(volume: &Volume, dir: &str) -> BTreeSet<(Vec<u8>, String, String, String)> {
    let entries = volume.read_dir(dir).expect("listed");
    entries
        .map(|entry| {
            let entry = entry.expect("an entry");
            // As a user does who has only the name.
            let meta = volume.symlink_metadata(entry.path()).expect("found");
            assert_eq!(meta.ino(), entry.ino(), "{}", entry.path().display());
            (
                entry.file_name().as_bytes().to_vec(),
                format!("{:o}", meta.mode()),
                meta.len().to_string(),
                entry.ino().to_string(),
            )
        })
        .collect()
}

fn listed_by_linux(
    volume: &Volume,
    list: &str,
    known_size: bool,
) -> BTreeSet<(Vec<u8>, String, String, String)> {
    let lines = lines(volume, &format!("/list.{list}"));
    let entry = |l: Vec<String>| {
        let size = match known_size || !l[1].starts_with("12") {
            true => l[2].clone(),
            false => String::new(),
        };
        (plain(&l[0]), l[1].clone(), size, l[3].clone())
    };
    lines.into_iter().map(entry).collect()
}

#[test]
fn directories_are_listed_as_linux_lists_them() {
    for device in images() {
        let volume = Volume::options()
            .read_only(true)
            .open_device(device.clone())
            .expect("opens");
        for (list, dir, least) in [
            ("fold-words", "/fold/words", 40),
            ("fold-many", "/fold/many", 400),
            ("secretfold", "/secretfold", 40),
            ("secret", "/secret", 135),
        ] {
            let theirs = listed_by_linux(&volume, list, true);
            assert!(theirs.len() >= least, "{list}: {}", theirs.len());
            let ours = listed(&volume, dir);
            // The size of a link's target is what it would be shown by without the key, in Linux; here it is what is stored.
            let no_links = |set: &BTreeSet<(Vec<u8>, String, String, String)>| {
                let links = set.iter().filter(|e| e.1.starts_with("12")).count();
                let mut set = set.clone();
                set.retain(|e| !e.1.starts_with("12"));
                (links, set)
            };
            assert_eq!(
                no_links(&ours),
                no_links(&theirs),
                "{:?} {dir}",
                volume.format()
            );
        }
    }
}

#[test]
fn case_insensitive_directories_are_changed() {
    for device in images() {
        let volume = writable(&device);
        let format = volume.format();
        let exists = volume.create_dir("/fold/words/strasse");
        assert_eq!(exists.expect_err("there is one").kind(), ErrorKind::Exists);
        // The name stays as it was made, also after a write through another one.
        volume.write("/fold/words/READme", b"x").expect("written");
        volume.remove_file("/fold/words/makeFILE").expect("removed");
        // One name for one file, as in Linux: nothing is done. By way of another it gets its new case.
        let rename = |from: &str, to: &str| {
            let at = |name| format!("/fold/words/{name}");
            volume.rename(at(from), at(to)).expect("renamed");
        };
        rename("gross", "Gross");
        rename("dot.txt", "other");
        rename("OTHER", "Dot.Txt");
        for n in (0..400).step_by(2) {
            let name = format!("/fold/many/eNTRY-{n:04}-a\u{308}öÜ");
            volume.remove_file(name).expect("removed");
        }
        for n in 400..600 {
            let name = format!("/fold/many/entry-{n:04}-ÄÖÜ");
            volume.write(name, b"new").expect("written");
        }
        volume.create_dir("/fold/below").expect("made");
        volume.write("/fold/below/Ärger", b"y").expect("written");
        volume.close().expect("closed");
        assert_clean(&device, format);
        let volume = Volume::options()
            .read_only(true)
            .open_device(device.clone())
            .expect("opens");
        let names: BTreeSet<Vec<u8>> = listed(&volume, "/fold/words")
            .into_iter()
            .map(|e| e.0)
            .collect();
        for (name, there) in [
            ("README", true),
            ("READme", false),
            ("GROẞ", true),
            ("Gross", false),
            ("Dot.Txt", true),
        ] {
            assert_eq!(names.contains(name.as_bytes()), there, "{name}");
        }
        assert_eq!(volume.read("/fold/words/readme").expect("read"), b"x");
        assert!(!volume.exists("/fold/words/Makefile").expect("known"));
        assert_eq!(volume.read("/fold/BELOW/a\u{308}RGER").expect("read"), b"y");
        for n in 0..600 {
            let name = format!("/fold/many/ENTRY-{n:04}-äöü");
            let there = volume.exists(&name).expect("known");
            assert_eq!(there, n >= 400 || n % 2 == 1, "{format:?} {name}");
        }
    }
}

#[test]
fn verity_files_are_read_and_never_changed() {
    for device in images() {
        let volume = writable(&device);
        let format = volume.format();
        let sums = String::from_utf8(volume.read("/verity.sums").expect("read")).expect("ASCII");
        assert_eq!(sums.lines().count(), 3);
        for line in sums.lines() {
            let (name, sum) = line.split_once(' ').expect("two words");
            let path = format!("/verity.{name}");
            let same = |bytes: &[u8]| {
                let ours: String = Sha256::digest(bytes)
                    .iter()
                    .map(|b| format!("{b:02x}"))
                    .collect();
                assert_eq!(Some(ours.as_str()), sum.split(' ').next(), "{path}");
            };
            same(&volume.read(&path).expect("read"));
            for mut options in [OpenOptions::new(), OpenOptions::new()] {
                let e = options
                    .write(true)
                    .open(&volume, &path)
                    .expect_err("refused");
                assert_eq!(e.kind(), ErrorKind::NotPermitted, "{e}");
            }
            for done in [volume.set_len(&path, 1), volume.write(&path, b"other")] {
                let e = done.expect_err("refused");
                assert_eq!(e.kind(), ErrorKind::NotPermitted, "{format:?} {path}: {e}");
            }
            // The tree of hashes behind the end is not shown.
            let file = volume.open_file(&path).expect("opens");
            let size = file.metadata().expect("known").len();
            assert_eq!(file.read_at(&mut [0; 10], size).expect("read"), 0, "{path}");
            volume.rename(&path, format!("/fold{path}")).expect("moved");
            same(&volume.read(format!("/fold{path}")).expect("read"));
        }
        volume.remove_file("/fold/verity.big").expect("removed");
        volume.close().expect("closed");
        assert_clean(&device, format);
    }
}

/// Bytes of an image that Linux and mkfs must both have, found in it block by block.
fn has_blocks(image: &[u8], blocks: &[u8]) -> bool {
    let mut wanted: Vec<&[u8]> = blocks.chunks(4096).collect();
    let mut held = image.chunks_exact(4096);
    // In a row, since neither had another file between them.
    held.any(|block| {
        if block == wanted[0] {
            wanted.remove(0);
        }
        wanted.is_empty()
    })
}

/// The salt of the files that Linux protects in the images, as `fsverity` takes it.
const SALT: &str = "--salt=626c6f636b777269676874";

/// What is stored behind the end of a file: tree and descriptor as `fsverity digest` writes them, the rest by the
/// documentation of the format. With the bytes of the tree and the digest.
fn metadata_by_fsverity(
    dir: &Path,
    file: &Path,
    options: &[&str],
    format: Format,
) -> (Vec<u8>, u64, String) {
    let (tree, descriptor) = (dir.join("tree"), dir.join("descriptor"));
    let said = std::process::Command::new("fsverity")
        .args(["digest", "--compact"])
        .args(options)
        .arg(format!("--out-merkle-tree={}", tree.display()))
        .arg(format!("--out-descriptor={}", descriptor.display()))
        .arg(file)
        .output()
        .expect("fsverity");
    assert!(said.status.success());
    let mut stored = std::fs::read(tree).expect("written");
    let tree_bytes = stored.len() as u64;
    stored.extend(std::fs::read(descriptor).expect("written"));
    stored.resize(stored.len().next_multiple_of(4096), 0);
    if format == Format::Ext4 {
        let end = stored.len() - 4;
        stored[end..].copy_from_slice(&256u32.to_le_bytes());
    }
    let digest = String::from_utf8(said.stdout).expect("text");
    (stored, tree_bytes, digest.trim().to_owned())
}

#[test]
fn what_mkfs_protects_is_stored_as_linux_stores_it() {
    if !common::testing::have("fsverity") {
        return;
    }
    for device in images() {
        let dir = tempfile::tempdir().expect("a directory");
        let (from, image) = (dir.path().join("from"), dir.path().join("image"));
        std::fs::create_dir(&from).expect("made");
        let volume = writable(&device);
        let format = volume.format();
        let sums = String::from_utf8(volume.read("/verity.sums").expect("read")).expect("ASCII");
        for line in sums.lines() {
            let name = format!("verity.{}", line.split(' ').next().expect("a name"));
            let data = volume.read(format!("/{name}")).expect("read");
            std::fs::write(from.join(name), data).expect("written");
        }
        drop(volume);
        std::fs::write(from.join("other"), b"other").expect("written");
        let report = VolumeBuilder::new()
            .format(format)
            .size(64 << 20)
            .from(&from)
            .entries(EntryPolicy::new().fsverity("verity.*").expect("a pattern"))
            .create(&image)
            .expect("made");
        assert_eq!((report.files, report.protected), (4, 3));
        let theirs = dir.path().join("theirs");
        device.save(&theirs).expect("saved");
        let (ours, theirs) = (
            std::fs::read(&image).expect("read"),
            std::fs::read(&theirs).expect("read"),
        );
        for line in sums.lines() {
            let [name, _, digest] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let file = from.join(format!("verity.{name}"));
            let metadata =
                |options: &[&str]| metadata_by_fsverity(dir.path(), &file, options, format);
            let (by_linux, tree_bytes, salted) = metadata(&[SALT]);
            assert_eq!(digest, salted, "{name}: Linux measured it so");
            assert!(has_blocks(&theirs, &by_linux), "{format:?} {name}: Linux");
            let (stored, ..) = metadata(&[]);
            assert!(has_blocks(&ours, &stored), "{format:?} {name}: mkfs");
            let size = std::fs::metadata(&file).expect("known").len();
            let at = size.next_multiple_of(64 << 10) + tree_bytes;
            if format == Format::Ext4 {
                for (path, image, stored) in [
                    (dir.path().join("theirs"), &theirs, &by_linux),
                    (image.clone(), &ours, &stored),
                ] {
                    assert_eq!(block_of(&path, name, at / 4096 + 1), None, "{name}");
                    let place = block_of(&path, name, at / 4096).expect("stored") as usize * 4096;
                    let descriptor = &stored[tree_bytes as usize..];
                    assert_eq!(&image[place..][..4096], descriptor, "{name}");
                }
                continue;
            }
            // Its place: an attribute of index 11 named "v", of 16 bytes: version 1, length, place.
            let mut entry = b"\x0B\x01\x10\0v\x01\0\0\0\0\x01\0\0".to_vec();
            entry.extend(at.to_le_bytes());
            for image in [&ours, &theirs] {
                let found = image.windows(entry.len()).any(|w| w == entry);
                assert!(found, "{name}");
            }
        }
        let volume = Volume::open(&image).expect("opens");
        for (path, protected) in [("/other", false), ("/verity.big", true)] {
            let written = volume.write(path, b"x").map_err(|e| e.kind());
            let expected = if protected {
                Err(ErrorKind::NotPermitted)
            } else {
                Ok(())
            };
            assert_eq!(written, expected, "{path}");
        }
        let data = std::fs::read(from.join("verity.big")).expect("read");
        assert_eq!(volume.read("/verity.big").expect("read"), data);
        volume.close().expect("closed");
        let made = std::fs::read(&image).expect("read");
        assert_clean(&Arc::new(MemoryDevice::from_image(&made)), format);
    }
}

/// The block of an ext4 image that a block of a file is in, from debugfs.
fn block_of(image: &Path, name: &str, logical: u64) -> Option<u64> {
    let ask = format!("bmap /verity.{name} {logical}");
    let said = common::testing::run("debugfs", &["-R", &ask, &image.display().to_string()]);
    let text = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    text.parse().ok().filter(|block| *block != 0)
}

#[test]
fn encrypted_directories_are_listed_and_otherwise_refused() {
    for device in images() {
        let volume = writable(&device);
        let format = volume.format();
        let refused = |what: &str, result: blockwright::Result<()>| {
            let e = result.expect_err(what);
            assert_eq!(e.kind(), ErrorKind::KeyRequired, "{format:?} {what}: {e}");
        };
        let entries: Vec<_> = volume
            .read_dir("/secret")
            .expect("listed")
            .map(|e| e.expect("an entry").path())
            .collect();
        let mut kinds = [0; 3];
        for path in &entries {
            let meta = volume.symlink_metadata(path).expect("found");
            if meta.is_dir() {
                kinds[0] += 1;
                let below = volume.read_dir(path).expect("listed").count();
                assert_eq!(below, 2, "{}", path.display());
            } else if meta.is_symlink() {
                kinds[1] += 1;
                refused("a link's target", volume.read_link(path).map(drop));
            } else {
                kinds[2] += 1;
                refused("contents", volume.read(path).map(drop));
                refused("a change", volume.write(path, b"x"));
                refused("a new size", volume.set_len(path, 10_000));
            }
        }
        assert_eq!(kinds, [1, 2, 133], "{format:?}");
        for dir in ["/secret", "/secretfold"] {
            refused("a new file", volume.write(format!("{dir}/new"), b"x"));
            refused("a new directory", volume.create_dir(format!("{dir}/new")));
            let into = volume.rename("/verity.sums", format!("{dir}/in"));
            refused("a move into it", into);
            let link = volume.hard_link("/verity.sums", format!("{dir}/in"));
            refused("a link into it", link);
            for name in ["a", "README", "file-001"] {
                assert!(!volume.exists(format!("{dir}/{name}")).expect("known"));
            }
        }
        assert_eq!(volume.read_dir("/secret").expect("listed").count(), 136);
        volume.close().expect("closed");
        assert_clean(&device, format);
        // A user who may write a directory can remove its entries, with or without the key.
        let volume = writable(&device);
        volume.remove_dir_all("/secret").expect("removed");
        let some = volume.read_dir("/secretfold").expect("listed");
        for entry in some.skip(5) {
            volume
                .remove_file(entry.expect("an entry").path())
                .expect("removed");
        }
        volume.close().expect("closed");
        assert_clean(&device, format);
        let volume = writable(&device);
        assert_eq!(volume.read_dir("/secretfold").expect("listed").count(), 5);
        assert!(!volume.exists("/secret").expect("known"));
    }
}

/// Changes the number of the name encoding, and its flags.
fn set_encoding(device: &Arc<MemoryDevice>, format: Format, encoding: u16, encoding_flags: u16) {
    use blockwright_device::{BlockDevice, DevOffset, Flags};
    let mut block = vec![0; 4096];
    let read = device.read_at(DevOffset(0), &mut block);
    read.expect("read");
    let blocks: &[u64] = if format == Format::F2fs {
        let mut raw = blockwright_ondisk::f2fs::superblock::RawSuperblock::read(&block)
            .expect("a superblock");
        raw.s_encoding.set(encoding);
        raw.s_encoding_flags.set(encoding_flags);
        raw.set_checksum();
        block.copy_from_slice(&raw.to_block());
        &[0, 4096]
    } else {
        let mut raw = blockwright_ondisk::ext4::RawSuperblock::read(&block[1024..2048])
            .expect("a superblock");
        raw.encoding.set(encoding);
        raw.encoding_flags.set(encoding_flags);
        raw.set_checksum();
        block[1024..2048].copy_from_slice(&raw.to_bytes());
        &[0]
    };
    for at in blocks {
        let written = device.write_at(DevOffset(*at), &block, Flags::empty());
        written.expect("written");
    }
}

/// Makes the volume strict: names in case-insensitive directories must be UTF-8.
fn make_strict(device: &Arc<MemoryDevice>, format: Format) {
    set_encoding(device, format, 1, 1);
}

/// Nothing says how names of such a volume are folded: they are found by their bytes, and none is added.
#[test]
fn names_of_an_unknown_encoding_are_read() {
    for device in images() {
        let known = Volume::open_device(device.clone()).expect("opens");
        let format = known.format();
        let dirs = ["/fold/words", "/fold/many"];
        let names = |volume: &Volume, dir: &str| -> Vec<Vec<u8>> {
            // Their order is that of hashes, where these are known.
            let mut names: Vec<_> = (volume.read_dir(dir).expect("listed"))
                .map(|e| e.expect("an entry").file_name().as_bytes().to_vec())
                .collect();
            names.sort();
            names
        };
        let contents = |volume: &Volume| -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
            let read = |dir: &str, name: Vec<u8>| {
                let bytes = volume.read(at(dir, &name)).expect("read");
                (name, bytes)
            };
            let all = |dir: &&str| {
                let names = names(volume, dir);
                names.into_iter().map(|name| read(dir, name)).collect()
            };
            dirs.iter().map(all).collect()
        };
        for (dir, n) in dirs.iter().flat_map(|dir| (0..5).map(move |n| (dir, n))) {
            let path = format!("{dir}/Datei-{n}");
            known.write(path, [n]).expect("written");
        }
        let before = contents(&known);
        assert!(before.iter().all(|dir| dir.len() > 3), "{format:?}");
        known.close().expect("closed");

        set_encoding(&device, format, 7, 0);
        let volume = (Volume::options().read_only(true))
            .open_device(device.clone())
            .expect("opens");
        assert!(contents(&volume) == before, "{format:?}");
        let e = volume.read("/fold/many/no such name").expect_err("absent");
        assert_eq!(e.kind(), ErrorKind::NotFound, "{format:?}: {e}");
        volume.close().expect("closed");

        // Writing is refused, with the encoding as the reason.
        let why = match Volume::open_device(device.clone()) {
            Err(e) => e.to_string(),
            Ok(volume) => {
                let e = volume.write("/fold/words/new", b"x").expect_err("refused");
                assert_eq!(e.kind(), ErrorKind::ReadOnly, "{format:?}: {e}");
                volume.read_only_reason().expect("a reason").to_string()
            }
        };
        assert!(why.contains("encoding"), "{format:?}: {why}");
        assert!(why.contains('7'), "{format:?}: {why}");
    }
}

/// What Linux answers on a strict volume, for lookups too: EINVAL. (No kernel at hand in tests has casefolding: the running one and the one of
/// user-mode-linux were built without it, so its answers are not asked for.)
#[test]
fn strict_volumes_take_only_utf8() {
    let bad: &[u8] = b"bad\xFF\xC3name";
    for device in images() {
        // A name that was there before, as damage would put one.
        let volume = writable(&device);
        let format = volume.format();
        volume.create_dir("/fold/strict").expect("made");
        volume
            .write(at("/fold/strict", bad), b"kept")
            .expect("not strict yet");
        volume.close().expect("closed");
        assert_clean(&device, format);
        make_strict(&device, format);

        let volume = writable(&device);
        assert_eq!(
            volume.read(at("/fold/strict", bad)).expect("found"),
            b"kept"
        );
        let listed: Vec<Vec<u8>> = (volume.read_dir("/fold/strict").expect("listed"))
            .map(|e| e.expect("an entry").file_name().as_bytes().to_vec())
            .collect();
        assert_eq!(listed, [bad.to_vec()]);
        volume
            .write("/fold/strict/Gut-\u{E9}", b"x")
            .expect("written");
        let other = at("/fold/strict", b"other\xFF");
        let refused = |what: &str, result: blockwright::Result<()>| {
            let e = result.expect_err(what);
            assert_eq!(e.kind(), ErrorKind::Invalid, "{format:?}: {what}: {e}");
        };
        refused("look up", volume.symlink_metadata(&other).map(drop));
        refused("open", volume.read(&other).map(drop));
        refused("create", volume.write(&other, b""));
        refused("mkdir", volume.create_dir(&other));
        refused("symlink", volume.symlink("x", &other));
        refused(
            "link",
            volume.hard_link("/fold/strict/gut-e\u{301}", &other),
        );
        refused("rename", volume.rename("/fold/strict/GUT-\u{C9}", &other));
        refused("unlink", volume.remove_file(&other));
        // Elsewhere any name is one.
        volume.write(at("/plain", bad), b"x").expect("written");
        volume
            .rename(at("/plain", bad), "/fold/strict/moved")
            .expect("renamed");
        volume.close().expect("closed");

        // e2fsck and the checker put points into the name. To fsck.f2fs any name is one.
        if format == Format::F2fs {
            assert_clean(&device, format);
        } else {
            let options = blockwright_check::ext4::CheckOptions {
                mode: blockwright_check::Mode::Yes,
                ..Default::default()
            };
            let report = blockwright_check::ext4::check(device.clone(), &options);
            let issues = report.expect("checked").issues;
            let text: String = issues.iter().map(|i| format!("{i}\n")).collect();
            assert!(text.contains("is not UTF-8"), "{text}");
            let volume = writable(&device);
            let kept = volume.read("/fold/strict/BAD..NAME").expect("read");
            assert_eq!(kept, b"kept");
            volume
                .rename("/fold/strict/bad..name", "/bad")
                .expect("renamed");
            volume.close().expect("closed");
            assert_clean(&device, format);
            continue;
        }
        let volume = writable(&device);
        volume
            .rename(at("/fold/strict", bad), "/bad")
            .expect("renamed");
        assert_eq!(volume.read("/bad").expect("read"), b"kept");
        volume.close().expect("closed");
        assert_clean(&device, format);
    }
}
