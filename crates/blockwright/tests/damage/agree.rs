//! Where listing and reading, or the engine and the checker, once disagreed over a volume.

use super::lab::volume::Volume as LabVolume;
use super::lab::{Lab, repair, show, verify};
use super::records::Scene;
use super::{known, tools, trees};
use blockwright::{ErrorKind, Volume};
use blockwright_check::Mode;
use blockwright_check::ext4::IssueKind;
use blockwright_device::MemoryDevice;
use blockwright_ondisk::ext4::InodeFlags;
use blockwright_ondisk::ext4::fast_commit::tag;
use blockwright_ondisk::ext4::htree::DxPlace;
use blockwright_ondisk::nokey;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

/// The volume with names that Linux folded and encrypted.
fn by_linux() -> Vec<u8> {
    let packed = include_bytes!("../data/ext4-names-by-linux.img.zst");
    zstd::decode_all(&packed[..]).expect("unpacked")
}

/// By rules that are not known, no name can be folded. e2fsck and Linux refuse such a volume, and so does the checker, which leaves it as it is.
/// The engine reads all of it: names are found by their bytes.
#[test]
fn an_unknown_encoding_of_names_hides_nothing() {
    if !super::lab::tools() {
        return;
    }
    let lab = Lab::new();
    let args = ["-t", "ext4", "-b", "1024", "-O", "casefold,inline_data"];
    let made = lab.make("8M", &args).expect("made");
    // `many` gets an index; `empty` and `dir` are in their inodes, or in one block.
    let fold = ["many", "empty", "dir"].map(|dir| {
        let ino = LabVolume::new(made.clone()).lookup(dir);
        let flags = LabVolume::new(made.clone()).inode(ino).flags.bits();
        format!("sif <{}> flags {:#x}", ino.0, flags | 0x4000_0000)
    });
    let marked = lab.debugfs(&made, &fold.each_ref().map(String::as_str));
    let path = lab.dir.path().join("folded.img");
    std::fs::write(&path, &marked).expect("written");
    let (code, text) = tools::run("e2fsck", &["-fyD"], &path);
    assert!(code <= 1, "{code}: {text}");
    let folded = std::fs::read(&path).expect("read");
    for (name, base) in [("mke2fs", folded), ("Linux", by_linux())] {
        let before = trees::read(&MemoryDevice::from_image(&base)).expect("opens");
        assert!(before.nodes.len() > 10 && before.errors.is_empty());
        for encoding in [0, 2, 7, 0xFFFF] {
            let what = format!("{name}, encoding {encoding}");
            let mut v = LabVolume::new(base.clone());
            v.edit_sb(|sb| sb.encoding.set(encoding));
            for how in ["-fn", "-fy"] {
                std::fs::write(&path, &v.image).expect("written");
                let (code, text) = tools::run("e2fsck", &[how], &path);
                assert!(code & 8 != 0, "{what}: {code}: {text}");
            }
            let refused = verify(&v.image).expect_err("refused").to_string();
            assert!(
                refused.contains(&format!("name encoding {encoding}")),
                "{what}: {refused}"
            );
            let (report, after) = repair(&v.image, Mode::Yes);
            assert!(report.is_err() && after == v.image, "{what}");
            let found = trees::read(&MemoryDevice::from_image(&v.image)).expect("opens");
            assert!(found.errors.is_empty(), "{what}: {:?}", found.errors);
            assert_eq!(found.nodes, before.nodes, "{what}");
            let volume = Volume::options()
                .read_only(true)
                .open_device(Arc::new(MemoryDevice::from_image(&v.image)))
                .expect("opens");
            if name == "mke2fs" {
                volume.metadata("/dir/small").expect("found");
                let e = volume.metadata("/dir/SMALL").expect_err("another name");
                assert_eq!(e.kind(), ErrorKind::NotFound, "{what}: {e}");
            }
            drop(volume);
            let device = Arc::new(MemoryDevice::from_image(&v.image));
            let e = Volume::open_device(device).map(|v| v.is_read_only());
            let e = e.map_or_else(|e| e.to_string(), |read_only| read_only.to_string());
            assert!(e == "true" || e.contains("encoding"), "{what}: {e}");
        }
    }
}

/// The superblock's hash is for new directories. An index has its own, and names of encrypted entries carry that one.
#[test]
fn encrypted_names_are_found_by_the_hash_of_their_index() {
    let base = by_linux();
    let before = trees::read(&MemoryDevice::from_image(&base)).expect("opens");
    assert!(before.errors.is_empty(), "{:?}", before.errors);
    for version in [0, 1, 2, 3, 4, 5, 0xFF] {
        let mut v = LabVolume::new(base.clone());
        v.edit_sb(|sb| sb.def_hash_version = version);
        let found = trees::read(&MemoryDevice::from_image(&v.image)).expect("opens");
        assert!(found.errors.is_empty(), "{version}: {:?}", found.errors);
        assert_eq!(found.nodes.len(), before.nodes.len(), "{version}");
    }
}

/// The hash that goes into the names of encrypted entries stands in the root of the index: an operation looks there a few times, not for every entry.
#[test]
fn a_damaged_index_of_encrypted_names_is_an_error_of_the_operation() {
    let base = by_linux();
    let mut seen = 0;
    for name in ["secret", "secretfold"] {
        let mut v = LabVolume::new(base.clone());
        let dir = v.lookup(name);
        if !v.inode(dir).flags.contains(InodeFlags::INDEX) {
            continue;
        }
        seen += 1;
        let path = format!("/{name}");
        let open = |image: &[u8]| {
            let device = Arc::new(MemoryDevice::from_image(image));
            let v = Volume::options().read_only(true).open_device(device);
            v.expect("opens")
        };
        let list = |v: &Volume| {
            let entries = v.read_dir(&path).expect("listed");
            entries.filter_map(Result::ok).count() as u64
        };
        let whole = list(&open(&v.image));
        assert!(whole > 20, "{whole}");
        let root = v.blocks(dir)[0];
        // No hash has this number.
        v.edit_index(dir, root, DxPlace::Root, |bytes| bytes[28] = 9);
        let damaged = open(&v.image);
        let errors = |v: &Volume| v.vfs().stats().get("errors_found").unwrap_or(0);
        let before = errors(&damaged);
        assert_eq!(list(&damaged), whole, "{name}");
        let listing = errors(&damaged) - before;
        // One listing takes several calls of the engine.
        assert!(
            listing > 0 && listing < 10,
            "{name}: {listing} errors in {whole} entries"
        );
        let before = errors(&damaged);
        let absent = nokey::encode((2, 4), &[7; 32]);
        let absent = [path.as_bytes(), b"/", &absent].concat();
        let absent = std::path::PathBuf::from(std::ffi::OsString::from_vec(absent));
        damaged.metadata(&absent).expect_err("not there");
        let lookup = errors(&damaged) - before;
        assert!(lookup < 10, "{name}: {lookup} errors of a lookup");
    }
    assert!(seen > 0);
}

/// An attribute whose kind has whole names only, with a name all the same: nothing asks for it. Linux lists it, and refuses to read it.
#[test]
fn attributes_that_no_name_asks_for_are_not_listed() {
    if !super::lab::tools() {
        return;
    }
    let lab = Lab::new();
    let args = ["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"];
    let base = LabVolume::new(lab.make("8M", &args).expect("made"));
    let ino = base.lookup("a");
    for (index, listed) in [(1, 1), (2, 0), (3, 0), (4, 1), (8, 0), (9, 0)] {
        let mut v = base.clone();
        let raw = v.raw_inode(ino);
        let name = raw.windows(5).position(|w| w == b"short").expect("there");
        raw[name - 15] = index;
        let tree = trees::read(&MemoryDevice::from_image(&v.image)).expect("opens");
        assert!(tree.errors.is_empty(), "{index}: {:?}", tree.errors);
        let node = &tree.nodes[std::path::Path::new("/a")];
        assert_eq!(node.attributes.len(), listed, "{index}");
        let volume = Volume::options()
            .read_only(true)
            .open_device(Arc::new(MemoryDevice::from_image(&v.image)))
            .expect("opens");
        for name in volume.list_xattr("/a").expect("listed") {
            volume.get_xattr("/a", &name).expect("read");
        }
    }
}

/// Fast commits count with the record that ends them: features that are not known, in what was torn, refuse nothing.
#[test]
fn features_of_fast_commits_count_with_their_end() {
    let scene = Scene::new(known::with_fast_commits_to_replay());
    let named = |image: &[u8]| {
        let report = verify(image).expect("checked");
        let is = |kind: &IssueKind| matches!(kind, IssueKind::FastCommitUnknown);
        report.issues.iter().any(|i| is(&i.kind))
    };
    let open = |image: &[u8]| {
        let device = MemoryDevice::from_image(image);
        trees::read(&device)
    };
    let whole = scene.with(&scene.records);
    let replayed = open(&whole.0).expect("opens");
    assert!(!named(&whole.0));
    let made = std::path::Path::new("/made by a record");
    assert!(replayed.nodes.contains_key(made));
    let mut records = scene.records.clone();
    let head = records.iter_mut().find(|r| r.tag == tag::HEAD);
    head.expect("a head").value[0] = 1;
    let newer = scene.with(&records);
    let refused = open(&newer.0).expect_err("refused");
    assert!(
        refused.contains("unknown fast-commit features 0x1"),
        "{refused}"
    );
    assert!(named(&newer.0));
    // The same, torn before its end.
    let mut torn = whole;
    torn.0[scene.area + 4] = 1;
    let tree = open(&torn.0).expect("opens");
    assert!(tree.errors.is_empty(), "{:?}", tree.errors);
    assert!(!tree.nodes.contains_key(made));
    assert!(!named(&torn.0));
    let (report, after) = repair(&torn.0, Mode::Yes);
    let report = report.expect("repaired");
    assert!(!report.has_uncorrected(), "{}", show(&report));
    assert!(open(&after).is_ok_and(|t| t.nodes == tree.nodes));
}
