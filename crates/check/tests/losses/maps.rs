//! Mappings of which one block is refused: what the others map is kept.

use std::process::Command;

use blockwright_check::Mode;
use blockwright_ondisk::ext4::extent::{ExtentNode, NodePlace, NodeRules};
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{BlockNo, Ino};

use crate::common::volume::Volume;
use crate::common::{Lab, repair, show, tools, verify};
use crate::judge::{put32, repaired_by_e2fsck};

const BLOCK: usize = 1024;
/// Blocks of data, each followed by a hole.
const BLOCKS: usize = 400;
const NAME: &str = "holes";

/// Blocks of the mapping: those that the inode names first.
fn tree(v: &Volume, ino: Ino) -> Vec<BlockNo> {
    let inode = v.inode(ino);
    let mut out = Vec::new();
    if inode.flags.contains(InodeFlags::EXTENTS) {
        let mut nodes = vec![(inode.block.to_vec(), NodePlace::Inode)];
        while let Some((bytes, place)) = nodes.pop() {
            let node = ExtentNode::parse(&bytes, place, NodeRules::ROOT, &v.geo).unwrap();
            for index in node.indexes() {
                out.push(index.child);
                let at = v.at(index.child);
                let bytes = v.image[at..at + BLOCK].to_vec();
                nodes.push((bytes, NodePlace::Block(index.child)));
            }
        }
        return out;
    }
    let word = |bytes: &[u8], n: usize| {
        let word = u32::from_le_bytes(bytes[n * 4..n * 4 + 4].try_into().unwrap());
        BlockNo(u64::from(word))
    };
    for level in 0..2 {
        let top = word(&inode.block, 12 + level);
        out.push(top);
        let at = v.at(top);
        let below = (0..BLOCK / 4).map(|n| word(&v.image[at..at + BLOCK], n));
        out.extend(below.filter(|b| level > 0 && b.0 != 0));
    }
    out
}

/// What is done to a block of the mapping. Words from the fourth on are entries, of extents three each.
type Harm = (&'static str, fn(&mut [u8]));

const OF_EXTENTS: &[Harm] = &[
    ("zeroes", |b| b.fill(0)),
    ("noise", |b| b.fill(0xA5)),
    ("another magic", |b| b[0] ^= 1),
    ("more entries than fit", |b| b[2..4].fill(0xFF)),
    ("an entry too many", |b| b[2] += 1),
    ("half of the entries", |b| b[2] /= 2),
    ("no entries", |b| b[2..4].fill(0)),
    ("room for nothing", |b| b[4..6].fill(0)),
    ("another depth", |b| b[6] += 1),
    ("a first place of 0", |b| put32(b, 12, 0)),
    ("a first place behind all", |b| put32(b, 12, u32::MAX)),
    ("a first place in a hole", |b| b[12] ^= 1),
    ("a second place of 0", |b| put32(b, 24, 0)),
    ("a second place behind all", |b| put32(b, 24, u32::MAX)),
    ("a first block outside", |b| b[18..24].fill(0xFF)),
    ("a second block outside", |b| b[30..36].fill(0xFF)),
    ("a first length of 0", |b| b[16..18].fill(0)),
    ("entries in another order", |b| {
        let (first, second) = b[12..36].split_at_mut(12);
        first.swap_with_slice(second);
    }),
];

const OF_POINTERS: &[Harm] = &[
    ("zeroes", |b| b.fill(0)),
    ("noise", |b| b.fill(0xA5)),
    ("a first block outside", |b| put32(b, 0, u32::MAX)),
    ("a second block outside", |b| put32(b, 4, u32::MAX)),
    ("a last block outside", |b| put32(b, BLOCK - 4, u32::MAX)),
    ("a first block in the metadata", |b| put32(b, 0, 3)),
    ("every other block outside", |b| {
        b.chunks_exact_mut(8).for_each(|pair| pair[..4].fill(0xFF));
    }),
];

/// What the file holds, as debugfs reads it; nothing where it is gone. The volume must be one that debugfs opens.
fn contents(lab: &Lab, image: &[u8]) -> Vec<u8> {
    let (path, out) = (lab.dir.path().join("dump.img"), lab.dir.path().join("dump"));
    std::fs::write(&path, image).unwrap();
    let _ = std::fs::remove_file(&out);
    let dump = format!("dump /{NAME} {}", out.display());
    let mut debugfs = Command::new("debugfs");
    let done = debugfs.args(["-R", &dump]).arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    let gone = said.contains("File not found by ext2_lookup");
    assert!(done.status.success(), "{said}");
    assert!(gone != out.exists(), "{said}");
    std::fs::read(&out).unwrap_or_default()
}

/// Whether a file's block holds what it held.
fn kept(bytes: &[u8], whole: &[u8], n: usize) -> bool {
    let at = 2 * n * BLOCK;
    bytes.get(at..at + BLOCK) == Some(&whole[at..at + BLOCK])
}

#[test]
fn what_sound_blocks_of_a_mapping_map_is_kept() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut whole = vec![0; (2 * BLOCKS - 1) * BLOCK];
    let file = std::fs::File::create(lab.tree.join(NAME)).unwrap();
    for n in 0..BLOCKS {
        let at = 2 * n * BLOCK;
        whole[at..at + BLOCK].fill(1 + (n % 250) as u8);
        put32(&mut whole, at, n as u32 + 1);
        std::os::unix::fs::FileExt::write_all_at(&file, &whole[at..at + BLOCK], at as u64).unwrap();
    }
    drop(file);
    let mut wrong = Vec::new();
    for (features, sums, harms) in [
        ("^metadata_csum,^has_journal", false, OF_EXTENTS),
        ("metadata_csum,^has_journal", true, OF_EXTENTS),
        (
            "^extent,^64bit,^metadata_csum,^has_journal",
            false,
            OF_POINTERS,
        ),
    ] {
        let clean = Volume::new(
            lab.make("4M", &["-t", "ext4", "-b", "1024", "-O", features])
                .unwrap(),
        );
        assert!(contents(&lab, &clean.image) == whole, "{features}");
        let ino = clean.lookup(NAME);
        let blocks = tree(&clean, ino);
        assert!(blocks.len() > 3, "{features}: {blocks:?}");
        let (mut compared, mut kept_by_e2fsck) = (0, 0);
        // Of the leaves, those at both ends.
        let places = [0, 1, blocks.len() - 1];
        for (place, block) in places.map(|place| (place, blocks[place])) {
            for (what, harm) in harms {
                let what = format!("{features}: block {place} of the mapping: {what}");
                let mut v = clean.clone();
                match sums {
                    true => v.edit_extent_block(ino, block, harm),
                    false => harm(v.block(block)),
                }
                // Some places are 0 already.
                if v.image == clean.image {
                    continue;
                }
                if verify(&v.image).unwrap().is_clean() {
                    wrong.push(format!("{what}: nothing is found"));
                }
                let (report, ours) = repair(&v.image, Mode::Yes);
                let text = show(&report.unwrap());
                let again = verify(&ours).unwrap();
                let (code, said) = lab.e2fsck(&ours);
                if !again.is_clean() || code != 0 {
                    wrong.push(format!(
                        "{what}: {text}then {}-- e2fsck {said}",
                        show(&again)
                    ));
                }
                let Some(theirs) = repaired_by_e2fsck(&lab, &v.image) else {
                    continue;
                };
                let (ours, theirs) = (contents(&lab, &ours), contents(&lab, &theirs));
                compared += 1;
                kept_by_e2fsck += usize::from((0..BLOCKS).any(|n| kept(&theirs, &whole, n)));
                let lost = |n: &usize| kept(&theirs, &whole, *n) && !kept(&ours, &whole, *n);
                let count = (0..BLOCKS).filter(lost).count();
                let more = (0..BLOCKS).filter(|n| kept(&ours, &whole, *n)).count();
                if count > 0 {
                    wrong.push(format!(
                        "{what}: {count} blocks are lost, {more} kept: {text}"
                    ));
                }
            }
        }
        // Where e2fsck keeps nothing, nothing can be lost.
        assert!(
            kept_by_e2fsck * 2 >= compared.max(1),
            "{features}: {kept_by_e2fsck} of {compared}"
        );
    }
    assert!(
        wrong.is_empty(),
        "{} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
