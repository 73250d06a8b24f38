use super::*;
use blockwright_device::{Flags, MemoryDevice};
use proptest::prelude::*;
use std::sync::Arc;

const DISK: u64 = 4 << 20;

fn write(device: &SharedDevice, at: u64, bytes: &[u8]) {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(512), 0);
    device
        .write_at(DevOffset(at), &padded, Flags::empty())
        .unwrap();
}

/// A header and its entries, with their checksums, at a sector.
fn gpt_copy(
    device: &SharedDevice,
    lba: u64,
    entries_lba: u64,
    alternate: u64,
    parts: &[(u64, u64, &str)],
) {
    let mut entries = vec![0u8; 128 * 128];
    for (n, (first, last, name)) in parts.iter().enumerate() {
        let entry = &mut entries[n * 128..(n + 1) * 128];
        entry[..16].fill(0x11);
        entry[16] = n as u8 + 1;
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
        for (c, unit) in name.encode_utf16().enumerate() {
            entry[56 + 2 * c..58 + 2 * c].copy_from_slice(&unit.to_le_bytes());
        }
    }
    let mut header = vec![0u8; 512];
    header[..8].copy_from_slice(gpt::SIGNATURE);
    header[8..12].copy_from_slice(&0x10000u32.to_le_bytes());
    header[12..16].copy_from_slice(&92u32.to_le_bytes());
    header[24..32].copy_from_slice(&lba.to_le_bytes());
    header[32..40].copy_from_slice(&alternate.to_le_bytes());
    header[56..72].fill(7);
    header[72..80].copy_from_slice(&entries_lba.to_le_bytes());
    header[80..84].copy_from_slice(&128u32.to_le_bytes());
    header[84..88].copy_from_slice(&128u32.to_le_bytes());
    header[88..92].copy_from_slice(&crc32fast::hash(&entries).to_le_bytes());
    seal(&mut header);
    write(device, lba * 512, &header);
    write(device, entries_lba * 512, &entries);
}

fn seal(header: &mut [u8]) {
    header[16..20].fill(0);
    let sum = crc32fast::hash(&header[..92]);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
}

fn mbr_record(entries: &[(u8, u32, u32)]) -> Vec<u8> {
    let mut sector = vec![0u8; 512];
    for (n, (kind, first, sectors)) in entries.iter().enumerate() {
        let at = 0x1BE + 16 * n;
        sector[at + 4] = *kind;
        sector[at + 8..at + 12].copy_from_slice(&first.to_le_bytes());
        sector[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
    }
    sector[0x1FE..].copy_from_slice(&[0x55, 0xAA]);
    sector
}

fn gpt_disk(parts: &[(u64, u64, &str)]) -> SharedDevice {
    let device: SharedDevice = Arc::new(MemoryDevice::new(DISK));
    write(&device, 0, &mbr_record(&[(0xEE, 1, 8191)]));
    let last = DISK / 512 - 1;
    gpt_copy(&device, 1, 2, last, parts);
    gpt_copy(&device, last, last - 32, 1, parts);
    device
}

fn mbr_disk(entries: &[(u8, u32, u32)]) -> SharedDevice {
    let device: SharedDevice = Arc::new(MemoryDevice::new(DISK));
    write(&device, 0, &mbr_record(entries));
    device
}

fn table(device: &SharedDevice) -> Table {
    Table::read(device).unwrap().unwrap()
}

fn problem(device: &SharedDevice, number: u32) -> String {
    let table = table(device);
    let found = table
        .find(&Selector::Number(number))
        .unwrap()
        .problem
        .clone();
    found.unwrap_or_default()
}

#[test]
fn a_gpt_is_read() {
    let device = gpt_disk(&[
        (2048, 4095, "root"),
        (4096, 4096, "β home"),
        (4100, 4101, "root"),
    ]);
    let table = table(&device);
    assert_eq!((table.scheme, table.sector_bytes), (Scheme::Gpt, 512));
    assert!(table.remarks.is_empty(), "{:?}", table.remarks);
    let one = table.find(&Selector::Number(1)).unwrap();
    assert_eq!(
        (one.start, one.bytes, &one.name[..]),
        (1 << 20, 1 << 20, "root")
    );
    let two = table.find(&Selector::Name("β home".into())).unwrap();
    assert_eq!((two.number, two.bytes), (2, 512));
    let e = table.find(&Selector::Name("root".into())).unwrap_err();
    assert!(e.to_string().contains("1 and 3 have the same name"), "{e}");
    let e = table.find(&Selector::Number(9)).unwrap_err();
    assert!(e.to_string().contains("p2 (β home)"), "{e}");
}

#[test]
fn either_copy_of_a_gpt_is_enough_and_it_is_said() {
    let parts = [(2048, 4095, "root")];
    for byte in [520, 512 + 80, 1024, 1024 + 40] {
        let device = gpt_disk(&parts);
        let mut sector = device
            .read_buf(DevOffset(byte / 512 * 512), 512)
            .unwrap()
            .to_vec();
        sector[byte as usize % 512] ^= 0x40;
        write(&device, byte / 512 * 512, &sector);
        let table = table(&device);
        assert_eq!(table.partitions.len(), 1);
        assert!(
            table.remarks[0].contains("the backup is"),
            "{:?}",
            table.remarks
        );
    }
    let device = gpt_disk(&parts);
    write(&device, DISK - 512, &[0; 512]);
    assert!(table(&device).remarks[0].contains("the backup GPT cannot be used"));
    write(&device, 512, &[0; 512]);
    let e = Table::read(&device).unwrap_err().to_string();
    assert!(e.contains("neither copy") && e.contains("backup"), "{e}");
}

#[test]
fn partitions_that_cannot_be_are_not_opened() {
    let device = gpt_disk(&[
        (2048, 3000, "a"),
        (2999, 3005, "b"),
        (100, u64::MAX, "c"),
        (u64::MAX, u64::MAX, "d"),
        (5000, 4000, "e"),
        (8000, 9000, "f"),
        (4000, 4001, "good"),
        (6000, 7000, "outer"),
        (6100, 6200, "inner"),
        (6900, 7001, "later"),
    ]);
    for (number, says) in [
        (1, "overlaps partition 2"),
        (2, "overlaps partition 1"),
        (3, "sector 18446744073709551615"),
        (4, "sector"),
        (5, "from sector 5000 to sector 4000"),
        (6, "do not lie on the disk"),
        (8, "overlaps"),
        (9, "overlaps partition 8"),
        (10, "overlaps partition 8"),
    ] {
        let found = problem(&device, number);
        assert!(found.contains(says), "{number}: {found}");
    }
    assert_eq!(problem(&device, 7), "");
}

#[test]
fn a_gpt_that_claims_too_much_is_refused() {
    for (at, value) in [
        (80, u32::MAX),
        (80, 4097),
        (84, u32::MAX),
        (84, 0),
        (84, 129),
        (84, 8192),
        (12, 10),
        (12, u32::MAX),
    ] {
        let device = gpt_disk(&[]);
        for lba in [1, DISK / 512 - 1] {
            let mut header = device.read_buf(DevOffset(lba * 512), 512).unwrap().to_vec();
            header[at..at + 4].copy_from_slice(&value.to_le_bytes());
            seal(&mut header);
            write(&device, lba * 512, &header);
        }
        let e = Table::read(&device).unwrap_err().to_string();
        assert!(e.contains("neither copy"), "{at}: {e}");
    }
}

#[test]
fn logical_partitions_are_numbered_from_five() {
    let device = mbr_disk(&[(0x83, 64, 64), (0x0F, 1000, 5000)]);
    write(
        &device,
        1000 * 512,
        &mbr_record(&[(0x83, 10, 100), (0x05, 500, 600)]),
    );
    write(&device, 1500 * 512, &mbr_record(&[(0x82, 10, 100)]));
    let table = table(&device);
    let all: Vec<_> = table
        .partitions
        .iter()
        .map(|p| (p.number, p.start / 512, p.bytes / 512))
        .collect();
    assert_eq!(
        all,
        [(1, 64, 64), (2, 1000, 5000), (5, 1010, 100), (6, 1510, 100)]
    );
    assert!(problem(&device, 2).contains("extended"));
    assert_eq!(problem(&device, 6), "");
    assert!(table.remarks.is_empty());
}

#[test]
fn chains_of_logical_partitions_end() {
    // To itself, to an earlier one, off the disk, and one that continues forever.
    let device = mbr_disk(&[(0x05, 1000, 5000)]);
    write(
        &device,
        1000 * 512,
        &mbr_record(&[(0x83, 1, 1), (0x05, 0, 1)]),
    );
    assert!(table(&device).remarks[0].contains("returns to sector 1000"));
    write(
        &device,
        1000 * 512,
        &mbr_record(&[(0x83, 1, 1), (0x05, 10, 1)]),
    );
    write(
        &device,
        1010 * 512,
        &mbr_record(&[(0x83, 1, 1), (0x05, 0, 1)]),
    );
    assert!(table(&device).remarks[0].contains("returns to sector 1000"));
    write(
        &device,
        1010 * 512,
        &mbr_record(&[(0x83, 1, 1), (0x05, u32::MAX, 1)]),
    );
    assert!(table(&device).remarks[0].contains("not on the disk"));
    let mut at = 1000;
    for _ in 0..2 * LOGICAL_MAX {
        write(
            &device,
            at * 512,
            &mbr_record(&[(0x83, 1, 1), (0x05, (at - 1000 + 4) as u32, 1)]),
        );
        at += 4;
    }
    let table = table(&device);
    assert!(
        table.remarks[0].contains("more than 256"),
        "{:?}",
        table.remarks
    );
    assert_eq!(table.partitions.len(), 1 + LOGICAL_MAX);
    assert!(problem(&device, 7).is_empty());
}

#[test]
fn what_is_no_table_is_none() {
    let device: SharedDevice = Arc::new(MemoryDevice::new(DISK));
    assert_eq!(Table::read(&device).unwrap(), None);
    // The boot sector of a FAT volume: the mark, and code where entries are.
    let mut boot = vec![0x90u8; 512];
    boot[0x1FE..].copy_from_slice(&[0x55, 0xAA]);
    write(&device, 0, &boot);
    assert_eq!(Table::read(&device).unwrap(), None);
    let tiny: SharedDevice = Arc::new(MemoryDevice::new(512));
    assert_eq!(Table::read(&tiny).unwrap(), None);
}

#[test]
fn claims_of_a_hostile_gpt_are_not_followed_by_changes() {
    let device = gpt_disk(&[(64, 127, "a")]);
    let mut header = device.read_buf(DevOffset(512), 512).unwrap().to_vec();
    header[40..48].fill(0xFF);
    seal(&mut header);
    write(&device, 512, &header);
    let table = Table::read(&device).unwrap().unwrap();
    assert!(table.free().is_empty());
    // Entries that take more than half of the disk.
    let device: SharedDevice = Arc::new(MemoryDevice::new(48 * 512));
    write(&device, 0, &mbr_record(&[(0xEE, 1, 47)]));
    gpt_copy(&device, 1, 2, 47, &[(3, 4, "a")]);
    let table = Table::read(&device).unwrap().unwrap();
    let grown = table.grow(&device, &table.partitions[0], 15 * 512);
    assert!(grown.is_err_and(|e| e.to_string().contains("no room")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever a table says: what can be opened lies on the disk, and overlaps nothing that can be opened.
    #[test]
    fn what_can_be_opened_is_sound(
        parts in prop::collection::vec((0u64..9000, 0u64..9000), 0..12),
        wild in prop::collection::vec(any::<(u64, u64)>(), 0..3),
        flips in prop::collection::vec((512usize..1024 + 2048, any::<u8>()), 0..3),
    ) {
        let parts: Vec<_> = parts.into_iter().chain(wild).map(|(a, b)| (a, b, "x")).collect();
        let device = gpt_disk(&parts);
        for (at, value) in flips {
            let mut sector = device.read_buf(DevOffset(at as u64 / 512 * 512), 512).unwrap().to_vec();
            sector[at % 512] = value;
            write(&device, at as u64 / 512 * 512, &sector);
        }
        let Ok(Some(table)) = Table::read(&device) else { return Ok(()) };
        let good: Vec<_> = table.partitions.iter().filter(|p| p.problem.is_none()).collect();
        for (n, p) in good.iter().enumerate() {
            prop_assert!(p.start.checked_add(p.bytes).is_some_and(|end| end <= DISK));
            for other in &good[n + 1..] {
                let apart = p.start + p.bytes <= other.start || other.start + other.bytes <= p.start;
                prop_assert!(apart || p.bytes == 0 || other.bytes == 0, "{p:?} {other:?}");
            }
        }
    }

    /// As for GPT, with entries and chains of an MBR.
    #[test]
    fn mbrs_are_sound(
        entries in prop::collection::vec((prop::sample::select(vec![0u8, 5, 0x83]), 1u32..9000, 1u32..9000), 1..5),
        links in prop::collection::vec((0u32..9000, 0u32..9000, 0u32..9000), 0..20),
    ) {
        let entries: Vec<_> = entries.into_iter().map(|(k, a, b)| (k, a, if k == 0 { 0 } else { b })).collect();
        let device = mbr_disk(&entries);
        for (at, first, next) in links {
            let at = u64::from(at).clamp(1, DISK / 512 - 1);
            write(&device, at * 512, &mbr_record(&[(0x83, first, 7), (5, next, 1)]));
        }
        let Ok(Some(table)) = Table::read(&device) else { return Ok(()) };
        prop_assert!(table.partitions.len() <= 4 + LOGICAL_MAX);
        for p in table.partitions.iter().filter(|p| p.problem.is_none()) {
            prop_assert!(p.start + p.bytes <= DISK);
        }
    }
}
