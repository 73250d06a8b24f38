//! Contexts of encrypted inodes: what is none, e2fsck clears with its inode, and a repair here keeps the contents.

use blockwright_ondisk::ext4::Ino;
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::xattr::{self, NewXattr, XattrValue};

use crate::common::volume::Volume;
use crate::common::{Lab, show, tools, verify};
use crate::judge::{judge, listing, with};

/// A context of a version, cut or continued to `len` bytes.
fn context(version: u8, len: usize) -> Vec<u8> {
    let head: &[u8] = match version {
        2 => &[2, 1, 4, 0, 0, 0, 0, 0],
        _ => &[version, 1, 4, 0],
    };
    let mut bytes = head.to_vec();
    bytes.extend((0..80).map(|n| 0x40 + n));
    bytes.truncate(len);
    bytes
}

/// Encrypts an inode, as far as the volume can tell.
fn encrypt(v: &mut Volume, ino: Ino, context: &[u8]) {
    let at = v.inode(ino).attributes_offset(&v.geo).unwrap();
    v.edit_raw(ino, |raw| {
        raw[at..].fill(0);
        let one = NewXattr {
            name_index: xattr::INDEX_ENCRYPTION,
            name: b"c",
            value: XattrValue::Local(context),
            value_inode_hash: 0,
        };
        xattr::write_ibody(&mut raw[at..], &[one]).unwrap();
    });
    v.edit_inode(ino, |i| i.flags |= InodeFlags::ENCRYPT);
}

fn volume(lab: &Lab) -> Volume {
    let args = with("encrypt,^metadata_csum,^has_journal");
    Volume::new(lab.make("8M", &args).unwrap())
}

#[test]
fn contexts_are_judged_as_by_e2fsck() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let clean = volume(&lab);
    let before = listing(&lab, &clean.image);
    let mut wrong = Vec::new();
    let cases = [
        (1, 28),
        (2, 40),
        (3, 1),
        (3, 28),
        (255, 40),
        (1, 0),
        (1, 1),
        (1, 27),
        (1, 29),
        (1, 40),
        (2, 28),
        (2, 39),
        (2, 44),
        (0, 28),
    ];
    for (version, len) in cases {
        for path in ["dir/big", "empty"] {
            let mut v = clean.clone();
            let ino = v.lookup(path);
            encrypt(&mut v, ino, &context(version, len));
            let what = format!("{path}: version {version}, {len} bytes");
            let (code, text) = lab.e2fsck(&v.image);
            let report = verify(&v.image).unwrap();
            if report.is_clean() != (code == 0) {
                wrong.push(format!("{what}: {}-- e2fsck: {text}", show(&report)));
            }
            let (mut bad, ours) = judge(&lab, &what, &v.image);
            wrong.append(&mut bad);
            // Without a context that says how, the ciphertext is all there is: it stays.
            if listing(&lab, &ours) != before {
                wrong.push(format!("{what}: paths or bytes differ"));
            }
            // The room of these is that of a whole one.
            let restored = matches!((version, len), (1, 27) | (2, 39));
            let flags = Volume::new(ours).inode(ino).flags;
            if flags.contains(InodeFlags::ENCRYPT) != (code == 0 || restored) {
                wrong.push(format!("{what}: flags {flags:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The version says, and the room for it confirms, what the length was: the file stays encrypted, by the same context.
#[test]
fn a_wrong_length_of_a_context_is_restored() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let clean = volume(&lab);
    for (version, len) in [(1, 28), (2, 40)] {
        let mut whole = clean.clone();
        let ino = whole.lookup("dir/big");
        encrypt(&mut whole, ino, &context(version, len));
        let at = whole.inode(ino).attributes_offset(&whole.geo).unwrap() + xattr::IBODY_HEADER;
        for found in [1u32, 12, 27, 29, 39, 41] {
            if found as usize == len {
                continue;
            }
            let mut v = whole.clone();
            v.edit_raw(ino, |raw| {
                raw[at + 8..at + 12].copy_from_slice(&found.to_le_bytes())
            });
            // No longer than the inode.
            let what = format!("version {version}, length {found}");
            assert!(!verify(&v.image).unwrap().is_clean(), "{what}");
            let (wrong, ours) = judge(&lab, &what, &v.image);
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
            let longer = found as usize > len.next_multiple_of(4);
            let same = Volume::new(ours).raw_inode(ino) == whole.raw_inode(ino);
            assert!(same || longer, "{what}");
        }
    }
}

/// Contexts of versions that no tool knows are not compared, neither with each other nor with others.
#[test]
fn policies_are_compared_as_by_e2fsck() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let name = "a-name-as-long-as-a-ciphertext";
    std::fs::write(lab.tree.join("empty").join(name), b"contents").unwrap();
    let clean = volume(&lab);
    let other = |mut bytes: Vec<u8>, at: usize| {
        bytes[at] ^= 1;
        bytes
    };
    let one = context(1, 28);
    let two = context(2, 40);
    let cases = [
        (one.clone(), one.clone()),
        (one.clone(), other(one.clone(), 3)),
        (one.clone(), other(one.clone(), 6)),
        (one.clone(), other(one.clone(), 20)),
        (two.clone(), other(two.clone(), 5)),
        (two.clone(), other(two.clone(), 30)),
        (one.clone(), two.clone()),
        (context(3, 28), context(3, 40)),
        (context(3, 28), context(4, 28)),
        (context(3, 28), one.clone()),
        (one, context(3, 28)),
    ];
    let mut wrong = Vec::new();
    for (dir, file) in cases {
        let mut v = clean.clone();
        let ino = v.lookup("empty");
        encrypt(&mut v, ino, &dir);
        let ino = clean.lookup(&format!("empty/{name}"));
        encrypt(&mut v, ino, &file);
        let what = format!("{dir:?}, {file:?}");
        let (code, text) = lab.e2fsck(&v.image);
        let report = verify(&v.image).unwrap();
        if report.is_clean() != (code == 0) {
            wrong.push(format!("{what}: {}-- e2fsck: {text}", show(&report)));
        }
        wrong.append(&mut judge(&lab, &what, &v.image).0);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
