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
        let says = match scheme {
            Scheme::Gpt => "not free",
            Scheme::Mbr => "all four entries",
        };
        assert!(overlapping.unwrap_err().to_string().contains(says));
        if scheme == Scheme::Mbr {
            let full = found.add(&device, &partition("five", 80, 1, scheme));
            assert!(full.unwrap_err().to_string().contains("four"));
            assert!(found.free().is_empty());
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
    let many = |count: u64, step: u64| {
        let part = |n| partition("p", 1 + n * step, 1, Scheme::Mbr);
        (0..count).map(part).collect::<Vec<_>>()
    };
    refused(many(60, 1), Scheme::Mbr, "at most 59");
    refused(many(5, 1), Scheme::Mbr, "free bytes in front");
    let mut unordered = many(6, 2);
    unordered.swap(4, 5);
    refused(unordered, Scheme::Mbr, "free bytes in front");
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

/// What sfdisk reads: for each partition its number, first MiB, MiB and type.
fn sfdisk_reads(image: &str) -> Vec<(u32, u64, u64, String)> {
    let dump = ok("sfdisk", &["--dump", image]);
    let value = |line: &str, name: &str| -> String {
        let (_, after) = line.split_once(&format!("{name}=")).unwrap();
        let text = after.split(',').next().unwrap();
        text.trim().to_owned()
    };
    let lines = dump.lines().filter(|line| line.contains("start="));
    let sectors = |line: &str, name| value(line, name).parse::<u64>().unwrap();
    lines
        .map(|line| {
            let device = line.split(" :").next().unwrap();
            let number = device.strip_prefix(image).unwrap().trim().parse().unwrap();
            let (start, size) = (sectors(line, "start"), sectors(line, "size"));
            (number, start / 2048, size / 2048, value(line, "type"))
        })
        .collect()
}

/// What this crate reads.
fn own_reads(device: &SharedDevice) -> Vec<(u32, u64, u64, String)> {
    let table = read(device);
    assert!(table.remarks.is_empty(), "{:?}", table.remarks);
    let told = table.partitions.iter().map(|p| {
        let PartitionType::Byte(kind) = p.kind else {
            panic!("{p:?}");
        };
        assert!(matches!(kind, 5 | 0xF) || p.problem.is_none(), "{p:?}");
        (p.number, p.start / MIB, p.bytes / MIB, format!("{kind:x}"))
    });
    told.collect()
}

/// A table with three primary partitions and so many logical ones, each of 2 MiB behind the MiB of its record.
fn with_logical(count: u64) -> NewTable {
    let primary = (0..3).map(|n| partition("p", 1 + 2 * n, 2, Scheme::Mbr));
    let logical = (0..count).map(|n| partition("l", 8 + 3 * n, 2, Scheme::Mbr));
    NewTable {
        scheme: Scheme::Mbr,
        id: [3; 16],
        partitions: primary.chain(logical).collect(),
    }
}

#[test]
fn tools_agree_with_logical_partitions() {
    if !blockwright_oracles::have(&["sfdisk", "fdisk"]) {
        return;
    }
    let scratch = Scratch::new();
    for count in [2, 5, 56] {
        let (path, image) = (scratch.path("mbr"), scratch.text("mbr"));
        let _absent = std::fs::remove_file(&path);
        let device = HostDevice::create(&path, 300 * MIB).unwrap();
        with_logical(count).write(&device).unwrap();
        let check = |device: &SharedDevice, partitions: u64| {
            device.flush().unwrap();
            verify(&image, Scheme::Mbr);
            let theirs = sfdisk_reads(&image);
            assert_eq!(theirs.len() as u64, partitions);
            assert_eq!(theirs, own_reads(device));
            let listed = ok("fdisk", &["-l", &image]);
            let last = theirs.last().unwrap().0;
            assert!(listed.contains(&format!("{image}{last}")), "{listed}");
        };
        check(&device, 4 + count);
        let numbers =
            (0..3 + count as usize).map(|n| NewTable::number(Scheme::Mbr, 3 + count as usize, n));
        let found = read(&device);
        assert!(
            numbers.eq(found
                .partitions
                .iter()
                .map(|p| p.number)
                .filter(|n| *n != 4))
        );
        if count == 56 {
            continue;
        }
        // One more behind the others, and one that is deleted by sfdisk gives its room to the next.
        let end = 7 + 3 * count;
        let free = found.free();
        assert_eq!((free.len(), &free[0]), (1, &((end + 1) * MIB..300 * MIB)));
        let new = partition("more", end + 1, 4, Scheme::Mbr);
        assert_eq!(found.add(&device, &new).unwrap() as u64, 5 + count);
        check(&device, 5 + count);
        drop(device);
        ok("sfdisk", &["-q", "--delete", &image, "6"]);
        let device = common::open(&path);
        let found = read(&device);
        assert_eq!(found.free()[0], 11 * MIB..13 * MIB);
        let new = partition("again", 11, 2, Scheme::Mbr);
        assert_eq!(found.add(&device, &new).unwrap() as u64, 5 + count);
        check(&device, 5 + count);
        // One grows up to the record of the next, and the last one past the end of the extended partition, when the disk is longer.
        let found = read(&device);
        let first = found.find(&Selector::Number(5)).unwrap().clone();
        assert_eq!(found.room_until(&first).unwrap(), 10 * MIB);
        drop(device);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(400 * MIB).unwrap();
        let device = common::open(&path);
        let found = read(&device);
        let last = found
            .partitions
            .iter()
            .max_by_key(|p| p.start)
            .unwrap()
            .clone();
        assert_eq!(found.room_until(&last).unwrap(), 400 * MIB);
        found.grow(&device, &last, 350 * MIB).unwrap();
        check(&device, 5 + count);
        let found = read(&device);
        let free = found.free();
        assert_eq!((free.len(), &free[0]), (1, &(351 * MIB..400 * MIB)));
        found
            .add(&device, &partition("end", 351, 49, Scheme::Mbr))
            .unwrap();
        check(&device, 6 + count);
        assert!(read(&device).free().is_empty());
    }
}

#[test]
fn logical_partitions_of_other_tools_are_added_to() {
    if !blockwright_oracles::have(&["sfdisk"]) {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.text("script");
    for (text, number) in [
        // An extended partition without a logical one, alone and behind others; one with two, and primary entries left.
        ("label: dos\n,10M,5\n", 5),
        ("label: dos\n,1M\n,1M\n,1M\n,,f\n", 5),
        ("label: dos\n,1M\n,30M,5\n,1M\n,1M\n,5M\n,5M\n", 7),
    ] {
        let (path, image) = (scratch.path("other"), scratch.text("other"));
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(64 * MIB).unwrap();
        std::fs::write(&script, text).unwrap();
        ok("sh", &["-c", &format!("sfdisk -q {image} < {script}")]);
        let device = common::open(&path);
        let found = read(&device);
        let extended = found
            .partitions
            .iter()
            .find(|p| p.problem.is_some())
            .unwrap();
        let within = extended.start..extended.start + extended.bytes;
        let free = found.free();
        let room = free
            .iter()
            .find(|room| within.contains(&room.start))
            .unwrap();
        let new = partition("new", room.start / MIB, 1, Scheme::Mbr);
        assert_eq!(found.add(&device, &new).unwrap(), number);
        device.flush().unwrap();
        verify(&image, Scheme::Mbr);
        assert_eq!(sfdisk_reads(&image), own_reads(&device));
    }
}

#[test]
fn each_cut_keeps_the_logical_partitions() {
    let memory = Arc::new(MemoryDevice::new(100 * MIB));
    let device: SharedDevice = memory.clone();
    with_logical(3).write(&device).unwrap();
    // The extended partition ends before the disk does: it has to grow.
    let longer = [memory.to_vec(), vec![0; 20 << 20]].concat();
    let base = MemoryDevice::from_image(&longer);
    let recording = Arc::new(RecordingDevice::new(&base));
    let device: SharedDevice = recording.clone();
    let state = |device: &SharedDevice| -> Vec<_> {
        let all = own_reads(device);
        all.into_iter().filter(|p| p.0 != 4).collect()
    };
    let mut states = vec![state(&device)];
    let grow = |number, end| {
        let table = read(&device);
        let found = table.find(&Selector::Number(number)).unwrap();
        table.grow(&device, found, end * MIB).unwrap();
    };
    let add = |start, mib| {
        let new = partition("more", start, mib, Scheme::Mbr);
        read(&device).add(&device, &new).unwrap();
    };
    add(18, 10);
    states.push(state(&device));
    grow(8, 50);
    states.push(state(&device));
    add(52, 60);
    states.push(state(&device));
    grow(9, 120);
    states.push(state(&device));
    let mut seen = vec![false; states.len()];
    for cut in 0..=recording.log_len() {
        let random = (0..8).map(|seed| CrashPolicy::Random { seed });
        for policy in [CrashPolicy::NoneKept, CrashPolicy::AllKept]
            .into_iter()
            .chain(random)
        {
            let image: SharedDevice = Arc::new(recording.image_at(cut, policy));
            let found = state(&image);
            let known = states.iter().position(|state| *state == found);
            seen[known.unwrap_or_else(|| panic!("cut {cut}: {found:?}"))] = true;
        }
    }
    assert!(seen.iter().all(|seen| *seen), "{seen:?}");
}

/// Chains by an attacker: a record in a partition, or a partition outside of the extended one, would make a change destroy contents.
#[test]
fn hostile_chains_are_not_changed() {
    let made = || {
        let device: SharedDevice = Arc::new(MemoryDevice::new(100 * MIB));
        with_logical(2).write(&device).unwrap();
        device
    };
    let patch = |device: &SharedDevice, sector: u64, at: usize, value: u32| {
        let mut bytes = device
            .read_buf(DevOffset(sector * 512), 512)
            .unwrap()
            .to_vec();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        device
            .write_at(DevOffset(sector * 512), &bytes, Flags::empty())
            .unwrap();
    };
    // The first record is at 7 MiB; its link leads to the one at 10 MiB.
    let record = 7 * 2048;
    for (at, value, says) in [
        (0x1CE + 8, 2048 + 100, "no record"),
        (0x1BE + 12, 5 * 2048, "overlaps"),
        (0x1BE + 8, 93 * 2048, "not changed"),
        (0x1CE + 8, 0, "returns to"),
    ] {
        let device = made();
        patch(&device, record, at, value);
        let table = read(&device);
        let before = device.read_buf(DevOffset(0), 100 << 20).unwrap();
        let error = table
            .add(&device, &partition("x", 20, 2, Scheme::Mbr))
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{at:#x}: {error}");
        assert!(before[..] == device.read_buf(DevOffset(0), 100 << 20).unwrap()[..]);
    }
    // A record in the contents of the partition before it.
    let device = made();
    let copy = device.read_buf(DevOffset(10 * MIB), 512).unwrap().to_vec();
    device
        .write_at(DevOffset(9 * MIB), &copy, Flags::empty())
        .unwrap();
    patch(&device, record, 0x1CE + 8, 2 * 2048);
    let error = read(&device).add(&device, &partition("x", 20, 2, Scheme::Mbr));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("is in partition 5"), "{error}");
}
