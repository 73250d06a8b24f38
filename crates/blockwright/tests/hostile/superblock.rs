//! Absurd superblocks and group descriptors: every numeric field at its ends, and in between.

use crate::{both, image};

/// Offset and width of every field with a meaning, from the format's documentation.
const FIELDS: [(usize, usize); 73] = [
    (0x0, 4),
    (0x4, 4),
    (0x8, 4),
    (0xC, 4),
    (0x10, 4),
    (0x14, 4),
    (0x18, 4),
    (0x1C, 4),
    (0x20, 4),
    (0x24, 4),
    (0x28, 4),
    (0x2C, 4),
    (0x30, 4),
    (0x34, 2),
    (0x36, 2),
    (0x3A, 2),
    (0x3C, 2),
    (0x3E, 2),
    (0x40, 4),
    (0x44, 4),
    (0x48, 4),
    (0x4C, 4),
    (0x50, 2),
    (0x52, 2),
    (0x54, 4),
    (0x58, 2),
    (0x5A, 2),
    (0x5C, 4),
    (0x60, 4),
    (0x64, 4),
    (0xC8, 4),
    (0xCC, 1),
    (0xCD, 1),
    (0xCE, 2),
    (0xE0, 4),
    (0xE4, 4),
    (0xE8, 4),
    (0xEC, 4),
    (0xFC, 1),
    (0xFD, 1),
    (0xFE, 2),
    (0x100, 4),
    (0x104, 4),
    (0x108, 4),
    (0x10C, 4),
    (0x14C, 4),
    (0x150, 4),
    (0x154, 4),
    (0x158, 4),
    (0x15C, 2),
    (0x15E, 2),
    (0x160, 4),
    (0x164, 2),
    (0x166, 2),
    (0x168, 4),
    (0x170, 4),
    (0x174, 1),
    (0x175, 1),
    (0x178, 4),
    (0x17C, 4),
    (0x180, 4),
    (0x184, 4),
    (0x188, 4),
    (0x194, 4),
    (0x240, 4),
    (0x244, 4),
    (0x248, 4),
    (0x24C, 4),
    (0x250, 4),
    (0x268, 4),
    (0x26C, 4),
    (0x270, 4),
    (0x280, 4),
];

#[test]
fn every_superblock_field_at_its_ends() {
    for features in ["", "^metadata_csum,^has_journal"] {
        let good = image::make(features);
        for (at, width) in FIELDS {
            for value in [0u32, 1, u32::MAX] {
                let mut bad = good.clone();
                bad.0[1024 + at..1024 + at + width].copy_from_slice(&value.to_le_bytes()[..width]);
                if bad.0 == good.0 {
                    continue;
                }
                bad.sign_superblock();
                let what = format!("{features}: superblock {at:#x} = {value:#x}");
                both(&what, bad.0);
            }
        }
    }
}

#[test]
fn every_group_descriptor_field_at_its_ends() {
    let good = image::make("^metadata_csum,^resize_inode");
    for group in 0..2 {
        for at in (0..64).step_by(2) {
            for value in [0u16, 0xFF, u16::MAX] {
                let mut bad = good.clone();
                let place = bad.group_desc(group) + at;
                bad.put16(place, value);
                if bad.0 == good.0 {
                    continue;
                }
                both(&format!("descriptor {group} {at:#x} = {value:#x}"), bad.0);
            }
        }
    }
}
