//! Tables that are made and changed: sgdisk and sfdisk find nothing wrong with them, and no cut leaves a disk without a table.

mod common;

use blockwright_device::{
    CrashPolicy, DevOffset, DeviceExt, Flags, HostDevice, MemoryDevice, RecordingDevice,
    SharedDevice,
};
use blockwright_disk::table::{Architecture, NewPartition, NewTable, PartitionType, Purpose};
use blockwright_disk::{Scheme, Selector, Table};
use common::{Scratch, ok, run};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn partition(name: &str, start: u64, bytes: u64, scheme: Scheme) -> NewPartition {
    let purpose = Purpose::of_name(name, Some(Architecture::X86_64)).unwrap_or(Purpose::Linux);
    NewPartition {
        start: start * MIB,
        bytes: bytes * MIB,
        kind: purpose.kind(scheme),
        name: name.to_owned(),
        uuid: [start as u8; 16],
    }
}

fn table(scheme: Scheme) -> NewTable {
    NewTable {
        scheme,
        id: *b"\x01\x02\x03\x04\x05\x06\x07\x08\x09abcdefg",
        partitions: vec![
            partition("esp", 1, 34, scheme),
            partition("root", 35, 20, scheme),
            partition("data", 60, 4, scheme),
        ],
    }
}

fn read(device: &SharedDevice) -> Table {
    Table::read(device).unwrap().expect("a table")
}

fn verify(image: &str, scheme: Scheme) {
    if scheme == Scheme::Gpt {
        let said = ok("sgdisk", &["-v", image]);
        assert!(said.contains("No problems found"), "{said}");
    }
    let said = run("sfdisk", &["--verify", image]);
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr)
    );
    assert!(said.contains("No errors detected"), "{said}");
}

#[test]
fn tools_agree_with_tables_made_and_changed() {
    if !blockwright_oracles::have(&["sgdisk", "sfdisk"]) {
        return;
    }
    let scratch = Scratch::new();
    for scheme in [Scheme::Gpt, Scheme::Mbr] {
        let (path, image) = (scratch.path(scheme.name()), scratch.text(scheme.name()));
        let device = HostDevice::create(&path, 100 * MIB).unwrap();
        table(scheme).write(&device).unwrap();
        verify(&image, scheme);
        let found = read(&device);
        let said: Vec<_> = found
            .partitions
            .iter()
            .map(|p| (p.number, p.start / MIB, p.bytes / MIB))
            .collect();
        assert_eq!(said, [(1, 1, 34), (2, 35, 20), (3, 60, 4)]);
        assert!(
            found.remarks.is_empty() && found.partitions.iter().all(|p| p.problem.is_none()),
            "{found:?}"
        );
        let dump = ok("sfdisk", &["--dump", &image]);
        if scheme == Scheme::Gpt {
            assert_eq!(
                found.find(&Selector::Name("root".into())).unwrap().number,
                2
            );
            for text in [
                "C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
                "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709",
                "label-id: 04030201-0605-0807",
            ] {
                assert!(dump.contains(text), "{dump}");
            }
        } else {
            assert!(
                dump.contains("type=ef") && dump.contains("label-id: 0x04030201"),
                "{dump}"
            );
        }
        // A partition more, in the first room; a larger one, up to the next.
        let free = found.free();
        assert_eq!(free[0], 55 * MIB..60 * MIB);
        assert_eq!(free[1].start, 64 * MIB);
        let number = found
            .add(&device, &partition("more", 64, 10, scheme))
            .unwrap();
        assert_eq!(number, 4);
        verify(&image, scheme);
        let found = read(&device);
        let root = found.partitions[1].clone();
        assert_eq!(found.room_until(&root).unwrap(), 60 * MIB);
        found.grow(&device, &root, 60 * MIB).unwrap();
        verify(&image, scheme);
        let found = read(&device);
        assert_eq!(
            (found.partitions[1].bytes, found.partitions.len()),
            (25 * MIB, 4)
        );
        assert!(found.grow(&device, &found.partitions[1], 61 * MIB).is_err());
        let overlapping = found.add(&device, &partition("x", 58, 4, scheme));
        assert!(overlapping.unwrap_err().to_string().contains("not free"));
        if scheme == Scheme::Mbr {
            let full = found.add(&device, &partition("five", 80, 1, scheme));
            assert!(full.unwrap_err().to_string().contains("four"));
        }
        // On a longer disk, the backup moves to the end.
        drop(device);
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(200 * MIB)
            .unwrap();
        let device = common::open(&path);
        let found = read(&device);
        let last = found.partitions[3].clone();
        let end = found.room_until(&last).unwrap();
        assert!(end > 199 * MIB);
        found.grow(&device, &last, 190 * MIB).unwrap();
        drop(device);
        verify(&image, scheme);
        assert!(read(&common::open(&path)).remarks.is_empty());
    }
}

#[test]
fn what_was_in_other_entries_stays() {
    if !blockwright_oracles::have(&["sgdisk"]) {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.text("d.img");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(64 * MIB)
        .unwrap();
    ok(
        "sgdisk",
        &[
            "-n1:1M:+8M",
            "-c1:a",
            "-A1:set:60",
            "-n3:16M:+8M",
            "-c3:b",
            &image,
        ],
    );
    let device = common::open(image.as_ref());
    let number = read(&device)
        .add(&device, &partition("new", 9, 2, Scheme::Gpt))
        .unwrap();
    assert_eq!(number, 2);
    let found = read(&device);
    found
        .grow(&device, &found.partitions[0].clone(), 9 * MIB)
        .unwrap();
    let said = ok("sgdisk", &["-i1", &image]);
    assert!(
        said.contains("1000000000000000") && said.contains("'a'"),
        "{said}"
    );
    verify(&image, Scheme::Gpt);
}

/// A disk whose table counts in the copy that `broken` leaves.
fn disk(scheme: Scheme, broken: Option<u64>) -> MemoryDevice {
    let memory = Arc::new(MemoryDevice::new(100 * MIB));
    let device: SharedDevice = memory.clone();
    table(scheme).write(&device).unwrap();
    if let Some(sector) = broken {
        device
            .write_at(DevOffset(sector * 512), &[0; 512], Flags::empty())
            .unwrap();
    }
    MemoryDevice::from_image(&memory.to_vec())
}

#[test]
fn each_cut_leaves_the_old_table_or_the_new_one() {
    let last = 100 * MIB / 512 - 1;
    for (scheme, broken) in [
        (Scheme::Gpt, None),
        (Scheme::Gpt, Some(1)),
        (Scheme::Gpt, Some(last)),
        (Scheme::Mbr, None),
    ] {
        let base = disk(scheme, broken);
        let recording = Arc::new(RecordingDevice::new(&base));
        let device: SharedDevice = recording.clone();
        let before = read(&device).partitions;
        read(&device)
            .add(&device, &partition("more", 64, 10, scheme))
            .unwrap();
        let added = read(&device);
        added
            .grow(&device, &added.partitions[1].clone(), 58 * MIB)
            .unwrap();
        let states = [before, added.partitions, read(&device).partitions];
        let mut seen = [false; 3];
        for cut in 0..=recording.log_len() {
            for policy in [CrashPolicy::NoneKept, CrashPolicy::AllKept]
                .into_iter()
                .chain((0..8).map(|seed| CrashPolicy::Random { seed }))
            {
                let image: SharedDevice = Arc::new(recording.image_at(cut, policy));
                let found = read(&image).partitions;
                let state = states.iter().position(|state| *state == found);
                seen[state.unwrap_or_else(|| panic!("{scheme:?}, cut {cut}: {found:?}"))] = true;
            }
        }
        assert_eq!(seen, [true; 3]);
    }
}

#[test]
fn tables_that_cannot_be() {
    let device: SharedDevice = Arc::new(MemoryDevice::new(100 * MIB));
    let refused = |partitions: Vec<NewPartition>, scheme, what: &str| {
        let table = NewTable {
            scheme,
            id: [1; 16],
            partitions,
        };
        let error = table.write(&device).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    let gpt = |name, start, bytes| partition(name, start, bytes, Scheme::Gpt);
    refused(vec![gpt("a", 1, 4), gpt("b", 4, 4)], Scheme::Gpt, "b: ");
    refused(vec![gpt("a", 1, 99)], Scheme::Gpt, "not free");
    refused(vec![gpt("a", 0, 4)], Scheme::Gpt, "not free");
    refused(vec![gpt("a", 1, 1)], Scheme::Mbr, "types of one byte");
    refused(vec![gpt(&"x".repeat(37), 1, 1)], Scheme::Gpt, "36");
    let many = (0..5)
        .map(|n| partition("p", 1 + n, 1, Scheme::Mbr))
        .collect();
    refused(many, Scheme::Mbr, "four");
    // A table with a partition that lies elsewhere is not changed.
    let mut bad = table(Scheme::Mbr);
    bad.partitions[2].kind = PartitionType::Byte(0x83);
    bad.write(&device).unwrap();
    let small: SharedDevice = Arc::new(MemoryDevice::from_image(
        &device.read_buf(DevOffset(0), 50 << 20).unwrap(),
    ));
    let error = read(&small)
        .add(&small, &partition("more", 37, 1, Scheme::Mbr))
        .unwrap_err();
    assert!(error.to_string().contains("not changed"), "{error}");
}
