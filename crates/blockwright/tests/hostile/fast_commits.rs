//! Damaged fields of fast commits, with the checksum in the record that ends them made right again: what reaches the code
//! behind it. Every field of every record is wrong in turn. `BLOCKWRIGHT_FIELDS=FROM..TO` runs other rounds than the
//! test's own; from 1 on times the number of fields, they have other values.

use crate::exercise::exercise;
use crate::image::BLOCK;
use crate::judge::{Format, judge};
use crate::records::Scene;
use crate::{VALUES, common, fields};
use blockwright::{ErrorKind, Volume, VolumeOptions};
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ondisk::ext4::fast_commit::{ADDED_MAX, tag};
use common::lab::fast_commits::{added_range, full_of_records, removed_range};
use common::lab::{Lab, tools};
use std::sync::Arc;

/// Where every field is: in the header and the value of each record. The checksum is none.
fn fields_of(scene: &Scene) -> Vec<(u16, usize, usize)> {
    let mut out = Vec::new();
    let mut at = 0;
    for (n, r) in scene.records.iter().enumerate() {
        out.extend([(r.tag, at, 2), (r.tag, at + 2, 2)]);
        let value = at + 4;
        let last = n + 1 == scene.records.len();
        let end = match r.tag {
            _ if last => 4,
            // The inode's number, and then its fields: 16 bits, which the larger ones are two of.
            tag::INODE => r.value.len(),
            tag::CREAT | tag::LINK | tag::UNLINK => 12,
            _ => r.value.len(),
        };
        let narrow = match r.tag {
            tag::INODE => 4,
            // The length and the upper half of a block's number.
            tag::ADD_RANGE => 8,
            _ => end,
        };
        out.extend((0..narrow).step_by(4).map(|f| (r.tag, value + f, 4)));
        out.extend((narrow..end).step_by(2).map(|f| (r.tag, value + f, 2)));
        at = value + r.value.len();
    }
    out
}

/// The records are replayed: without that, no field of theirs would be looked at.
#[test]
fn whole_ones_are_replayed() {
    let scene = Scene::new(fields::dirty("fast_commit"));
    let image = scene.with(&scene.records);
    judge(Format::Ext4, "whole fast commits", &image.device());
    let v = Volume::open_device(image.device()).expect("opens");
    assert_eq!(v.metadata("/made by a record").expect("there").len(), 4000);
    assert!(v.metadata("/dir/and linked").is_err());
    assert!(v.metadata("/empty").is_err());
    let holes = v.open_file("/holes").expect("opens");
    assert_eq!(
        holes.seek_data(10 * BLOCK as u64).expect("data"),
        20 * BLOCK as u64
    );
    drop(holes);
    v.close().expect("closed");
    // A wrong checksum: they never happened.
    let mut bytes = scene.bytes();
    *bytes.last_mut().expect("bytes") ^= 1;
    let v = Volume::open_device(scene.raw(&bytes).device());
    let v = v.expect("opens");
    assert!(v.metadata("/made by a record").is_err() && v.metadata("/empty").is_ok());
    v.close().expect("closed");
}

#[test]
fn fields_of_fast_commits() {
    let scene = Scene::new(fields::dirty("fast_commit"));
    let (bytes, fields) = (scene.bytes(), fields_of(&scene));
    let (mut opened, mut refused) = (0, 0);
    crate::rounds(fields.len() as u64, &[], |round| {
        let (tag, at, width) = fields[round as usize % fields.len()];
        let value = VALUES[(round as usize * 7 + round as usize / fields.len()) % VALUES.len()];
        let mut bad = bytes.clone();
        bad[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        let what = format!("round {round}: record {tag}, {width} bytes at {at} are {value:#x}");
        let image = scene.signed(bad);
        judge(Format::Ext4, &what, &image.device());
        for options in [
            VolumeOptions::new().read_only(true),
            VolumeOptions::default(),
        ] {
            let outcome = exercise(&image.0, options);
            match &outcome.refused {
                None => opened += 1,
                Some(e) => {
                    refused += 1;
                    let text = e.to_string();
                    let place = text.contains("inode") || text.contains("block");
                    assert!(place, "{what}: {text}");
                }
            }
        }
    });
    assert!(
        opened > 50 && refused > 20,
        "{opened} opened, {refused} not"
    );
}

/// Records that would leave more in memory than any real ones are refused, for reading and for writing. They stay in the log, and the error says what else
/// replays them.
#[test]
fn more_than_any_real_ones_are_refused() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let open = |device: &Arc<MemoryDevice>, read_only| {
        let shared: SharedDevice = device.clone();
        VolumeOptions::new()
            .read_only(read_only)
            .open_device(shared)
    };
    let (image, records) = full_of_records(&lab, true, added_range);
    assert!(records > ADDED_MAX as u64);
    let device = Arc::new(MemoryDevice::from_image(&image.image));
    for read_only in [true, false, true] {
        let e = open(&device, read_only).map(drop).expect_err("too many");
        assert_eq!(e.kind(), ErrorKind::UnsupportedFeature, "{e}");
        let text = e.to_string();
        let helps = text.contains(&ADDED_MAX.to_string()) && text.contains("e2fsck");
        assert!(helps, "{text}");
    }
    drop((device, image));
    // As many that add nothing.
    let (image, records) = full_of_records(&lab, true, removed_range);
    assert!(records > ADDED_MAX as u64);
    let device = Arc::new(MemoryDevice::from_image(&image.image));
    drop(image);
    let v = open(&device, true).expect("opens");
    v.close().expect("closed");
}
