//! f2fs: damaged fields of superblocks, checkpoints, tables, summaries, nodes, directories and attributes, with the
//! checksums over them made right again. `BLOCKWRIGHT_FIELDS=FROM..TO` runs other rounds than the test's own.

use blockwright_test_support::lab::f2fs as lab;

use crate::judge::{Format, judge};
use crate::{VALUES, common, image};
use blockwright::Volume;
use blockwright_device::sim::rng::SplitMix64;
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ondisk::f2fs::superblock::RawSuperblock;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr, Ino, Nid, RawCheckpoint, inode};
use common::below;
use lab::F2Volume;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

const BYTES: u64 = 64 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Superblock,
    Checkpoint,
    Pack,
    Nat,
    Sit,
    Ssa,
    Inode,
    Node,
    Directory,
}

const KINDS: [Kind; 9] = [
    Kind::Superblock,
    Kind::Checkpoint,
    Kind::Pack,
    Kind::Nat,
    Kind::Sit,
    Kind::Ssa,
    Kind::Inode,
    Kind::Node,
    Kind::Directory,
];

struct Fields(Vec<(Kind, BlockAddr)>);

impl Fields {
    fn of(v: &F2Volume) -> Self {
        let (geo, cp) = (&v.geo, &v.pack.checkpoint);
        let mut all = vec![
            (Kind::Superblock, BlockAddr(0)),
            (Kind::Checkpoint, BlockAddr(0)),
        ];
        let start = geo.pack_start(v.pack.which).0;
        let total = cp.raw.cp_pack_total_block_count.get();
        all.extend((start + 1..start + total - 1).map(|b| (Kind::Pack, BlockAddr(b))));
        let nat = geo.nat_block(0, cp.nat_bitmap.get(0)).expect("there");
        let sit = geo.sit_block(0, cp.sit_bitmap.get(0)).expect("there");
        all.extend([(Kind::Nat, nat), (Kind::Sit, sit)]);
        for nid in 3..455 {
            let entry = v.nat_entry(Nid(nid));
            if entry.is_free() || !geo.in_main(entry.block) {
                continue;
            }
            let (segment, _) = geo.segment_of(entry.block).expect("in it");
            let ssa = (Kind::Ssa, geo.ssa_block(segment).expect("there"));
            if !all.contains(&ssa) {
                all.push(ssa);
            }
            if entry.ino.0 != nid {
                all.push((Kind::Node, entry.block));
                continue;
            }
            all.push((Kind::Inode, entry.block));
            let block = v.block(entry.block);
            let one = inode::Inode::parse(&block, Ino(nid), geo).expect("an inode");
            let directory = u16::from_le_bytes([block[0], block[1]]) & 0xF000 == 0x4000;
            // Inline directories and files have no addresses.
            if directory && one.inline.bits() & 0b110 == 0 {
                let stored = v.addresses(Ino(nid)).into_iter().filter(|b| b.is_stored());
                all.extend(stored.map(|b| (Kind::Directory, b)));
            }
        }
        for kind in KINDS {
            assert!(all.iter().any(|(k, _)| *k == kind), "no {kind:?}");
        }
        Fields(all)
    }

    fn draw(&self, rng: &mut SplitMix64) -> (Kind, BlockAddr) {
        let kind = KINDS[below(rng, KINDS.len() as u64) as usize];
        let all: Vec<_> = self.0.iter().filter(|(k, _)| *k == kind).collect();
        let n = below(rng, all.len() as u64) as usize;
        // Directories and the first inodes are few, and worth more.
        *all[if below(rng, 2) == 0 { n % 16 } else { n } % all.len()]
    }
}

/// Puts something into one field. `fields`: how many bytes hold more than the rest.
fn scramble(v: &F2Volume, bytes: &mut [u8], span: usize, rng: &mut SplitMix64) -> String {
    let span = match below(rng, 3) {
        0 => bytes.len(),
        _ => span.min(bytes.len()),
    };
    let at = below(rng, span as u64) as usize;
    let value = match below(rng, 5) {
        0 => below(rng, u64::from(v.geo.main_end() as u32)) as u32,
        1 => 3 + below(rng, 450) as u32,
        2 => rng.next_u64() as u32,
        _ => VALUES[below(rng, VALUES.len() as u64) as usize],
    };
    let (word, half) = (at / 4 * 4, at / 2 * 2);
    match below(rng, 5) {
        0 | 1 if word + 4 <= bytes.len() => {
            bytes[word..word + 4].copy_from_slice(&value.to_le_bytes());
        }
        2 if half + 2 <= bytes.len() => {
            bytes[half..half + 2].copy_from_slice(&(value as u16).to_le_bytes());
        }
        3 => bytes[at] ^= 1 << below(rng, 8),
        _ => bytes[at] = value as u8,
    }
    format!("at {at}: {value:#x}")
}

fn mutate(v: &mut F2Volume, f: &Fields, rng: &mut SplitMix64) -> String {
    let mut what = String::new();
    for _ in 0..=below(rng, 3) {
        let (kind, at) = f.draw(rng);
        let how = match kind {
            Kind::Superblock => {
                let mut block = v.block(at);
                let how = scramble(v, &mut block[1024..1024 + 2800], 120, rng);
                let mut raw = RawSuperblock::read(&block).expect("long enough");
                raw.set_checksum();
                for copy in 0..2 {
                    v.put(BlockAddr(copy), &raw.to_block());
                }
                how
            }
            Kind::Checkpoint => {
                let mut bytes = v.pack.checkpoint.raw.as_bytes().to_vec();
                let size = v.pack.checkpoint.raw.cp_pack_total_block_count.get();
                let how = scramble(v, &mut bytes, 192, rng);
                let raw = RawCheckpoint::read_from_bytes(&bytes).expect("as long");
                // The pack's size says where its end is written.
                if raw.cp_pack_total_block_count.get() == size
                    && raw.checksum_offset.get() == v.pack.checkpoint.raw.checksum_offset.get()
                {
                    v.edit_checkpoint(|cp| cp.raw = raw);
                }
                how
            }
            _ => {
                let mut block = v.block(at);
                let how = match below(rng, 8) {
                    0 => {
                        // Another block of the kind, or of any other.
                        let (_, other) = f.draw(rng);
                        let n = (4usize << below(rng, 11)).min(BLOCK_SIZE);
                        block[..n].copy_from_slice(&v.block(other)[..n]);
                        format!("{n} bytes of block {other}")
                    }
                    _ => {
                        let span = match kind {
                            Kind::Inode => 420,
                            Kind::Directory => 400,
                            Kind::Nat => 9 * 60,
                            Kind::Sit => 74 * 20,
                            _ => 200,
                        };
                        scramble(v, &mut block, span, rng)
                    }
                };
                if kind == Kind::Inode {
                    let word = |b: &[u8], at: usize| {
                        u32::from_le_bytes(b[at..at + 4].try_into().expect("four"))
                    };
                    let ino = word(&block, 4072);
                    inode::set_checksum(&mut block, Ino(ino), &v.geo);
                }
                v.put(at, &block);
                how
            }
        };
        what += &format!("{kind:?} block {at} {how}; ");
    }
    what
}

/// A volume of everything; `crashed`: with files fsynced since its last checkpoint.
fn volume(features: &str, crashed: bool) -> F2Volume {
    let device = Arc::new(MemoryDevice::new(BYTES));
    let shared = Arc::clone(&device) as SharedDevice;
    let options = blockwright_mkfs::f2fs::FormatOptions {
        features: features.to_owned(),
        ..Default::default()
    };
    blockwright_mkfs::f2fs::format(&shared, &options).expect("formatted");
    let v = Volume::open_device(shared).expect("opens");
    image::populate(&v);
    // Beyond the inode's own addresses.
    v.write("/long", vec![0x77; 6 << 20]).expect("written");
    if crashed {
        v.sync().expect("durable");
        for n in 0..12u8 {
            let file = v.create_file(format!("/dir/rolled-{n}")).expect("made");
            file.write_all_at(&[n; 9000], 0).expect("written");
            file.sync_all().expect("durable");
        }
        let copy = device.snapshot();
        v.close().expect("closed");
        return F2Volume::new(copy);
    }
    v.close().expect("closed");
    F2Volume::new(device.snapshot())
}

fn fields(features: &str, crashed: bool, own_seed: u64, rounds: u64, once: &[u64]) {
    let good = volume(features, crashed);
    let f = Fields::of(&good);
    let seed = common::seed(own_seed);
    judge(Format::F2fs, "undamaged", &good.device);
    crate::rounds(rounds, once, |round| {
        let mut rng = SplitMix64::new(seed.wrapping_add(round * 6151));
        let mut bad = good.copy();
        let what = mutate(&mut bad, &f, &mut rng);
        let what = format!("f2fs {features}, seed {seed} round {round}: {what}");
        judge(Format::F2fs, &what, &bad.device);
    });
}

#[test]
fn plain() {
    fields("", false, 51_001, 50, &[]);
}

#[test]
fn behind_checksums() {
    let all = "extra_attr,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr,project_quota,quota";
    fields(all, false, 52_001, 50, &[199]);
}

#[test]
fn with_files_to_roll_forward() {
    fields("extra_attr,inode_checksum", true, 53_001, 50, &[]);
}
