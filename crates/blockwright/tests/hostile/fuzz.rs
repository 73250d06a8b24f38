//! Random damage to metadata blocks. `BLOCKWRIGHT_ROUND` runs one round of a seed alone.

use crate::{both, common, image};
use blockwright_device::sim::rng::SplitMix64;
use common::below;

/// Values that break assumptions more often than random ones.
const NASTY: [u32; 12] = [
    0,
    1,
    2,
    4,
    12,
    0xFF,
    0x400,
    0x7FFF,
    0xFFFF,
    0xF30A,
    0x7FFF_FFFF,
    0xFFFF_FFFF,
];

fn mutate(image: &mut image::Image, blocks: &[usize], rng: &mut SplitMix64) {
    for _ in 0..=below(rng, 4) {
        let block = blocks[below(rng, blocks.len() as u64) as usize];
        // Structures keep their important fields at the start of a block, so half of the hits go there.
        let span = if rng.next_u64() & 1 == 0 {
            128
        } else {
            image::BLOCK
        };
        let at = block + below(rng, span as u64 / 4) as usize * 4;
        let nasty = NASTY[below(rng, NASTY.len() as u64) as usize];
        match below(rng, 6) {
            0 => image.put32(at, nasty),
            1 => image.put16(at, nasty as u16),
            2 => image.put16(at + 2, nasty as u16),
            3 => image.0[at] ^= 1 << below(rng, 8),
            4 => image.put32(at, rng.next_u64() as u32),
            _ => {
                // Parts of another structure.
                let from = blocks[below(rng, blocks.len() as u64) as usize];
                let len = 1 << below(rng, 8);
                let to = at.min(block + image::BLOCK - len);
                let part = image.0[from..from + len].to_vec();
                image.0[to..to + len].copy_from_slice(&part);
            }
        }
    }
}

fn fuzz(features: &str, own_seed: u64, rounds: usize) {
    let good = image::make(features);
    let blocks = good.metadata_blocks();
    let seed = common::seed(own_seed);
    let only = std::env::var("BLOCKWRIGHT_ROUND")
        .ok()
        .and_then(|r| r.parse().ok());
    for round in (0..rounds).filter(|r| only.is_none_or(|o: usize| o == *r)) {
        let mut rng = SplitMix64::new(seed.wrapping_add(round as u64 * 7919));
        let mut bad = good.clone();
        mutate(&mut bad, &blocks, &mut rng);
        if round % 2 == 0 {
            bad.sign_superblock();
        }
        both(&format!("{features}: seed {seed} round {round}"), bad.0);
    }
}

#[test]
fn without_checksums() {
    fuzz("^metadata_csum,^resize_inode", 1001, 150);
}

#[test]
fn without_checksums_and_journal() {
    fuzz("^metadata_csum,^has_journal,inline_data", 2002, 100);
}

#[test]
fn with_checksums() {
    fuzz("orphan_file,inline_data", 3003, 60);
}
