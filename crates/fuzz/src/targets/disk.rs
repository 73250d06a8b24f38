//! Containers and tables of partitions.

use super::no_bases;
use crate::Target;
use blockwright_device::{BlockDevice, DevOffset, Flags, MemoryDevice, SharedDevice};
use blockwright_disk::container::{Other, Role};
use blockwright_disk::qcow2::{self, CreateOptions, DataFile};
use blockwright_disk::table::{NewPartition, NewTable, Purpose};
use blockwright_disk::{Disk, Error, Scheme, Selector, probe};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const TARGET: Target = Target {
    name: "disk",
    property: "whatever a container and a table of partitions hold, opening, reading and writing end with a value or an error",
    run,
    max_len: 64 << 10,
    bases: no_bases,
    seeds,
};

/// Room behind the input, which allocations take.
const ROOM_BYTES: usize = 256 << 10;
/// Partitions that are looked at.
const PARTS_MAX: usize = 16;

fn look(device: &SharedDevice) {
    let end = device.geometry().bytes;
    let _found = probe::contents(device);
    for at in [0, end / 2 / 512 * 512, end.saturating_sub(8192) / 512 * 512] {
        let len = 8192.min(end - at) as usize / 512 * 512;
        let mut buf = vec![0; len];
        let _read = device.read_at(DevOffset(at), &mut buf);
        assert!(device.next_data(DevOffset(at)).0 >= at, "data before {at}");
    }
}

fn change(device: &SharedDevice) {
    let end = device.geometry().bytes;
    let middle = end / 2 / 512 * 512;
    for at in [0, middle, end.saturating_sub(512) / 512 * 512] {
        if at + 512 <= end {
            let _wrote = device.write_at(DevOffset(at), &[0xA5; 512], Flags::empty());
        }
    }
    let _flushed = device.flush();
    let some = end.min(128 << 10) / 512 * 512;
    let _zeroed = device.write_zeroes(DevOffset(0), some);
    let _dropped = device.discard(DevOffset(0), some);
    let _flushed = device.flush();
}

/// Makes partitions as large as they can be: the table is one afterwards, too.
fn grow(disk: &Disk) {
    let Ok(Some(table)) = disk.table() else {
        return;
    };
    let _free = table.free();
    for partition in table.partitions.iter().take(PARTS_MAX) {
        let Ok(end) = table.room_until(partition) else {
            return;
        };
        if table.grow(disk.device(), partition, end).is_ok() {
            assert!(disk.table().is_ok_and(|table| table.is_some()));
            return;
        }
    }
}

fn run(data: &[u8]) {
    let mut image = data.to_vec();
    image.resize(data.len().next_multiple_of(512) + ROOM_BYTES, 0);
    let file: SharedDevice = Arc::new(MemoryDevice::from_image(&image));
    let mut others = |other: &Other<'_>| match other.role {
        Role::Data => {
            let data: SharedDevice = Arc::new(MemoryDevice::new(ROOM_BYTES as u64));
            Ok((PathBuf::from("data"), data))
        }
        Role::Backing => Err(Error::NotFound("no backing file".to_owned())),
    };
    let Ok(disk) = Disk::on(Path::new("image"), file, &mut others) else {
        return;
    };
    look(disk.device());
    if let Ok(Some(table)) = disk.table() {
        for partition in table.partitions.iter().take(PARTS_MAX) {
            if let Ok(part) = disk.part(&Selector::Number(partition.number)) {
                look(&part);
            }
        }
    }
    if !disk.device().geometry().read_only {
        grow(&disk);
        change(disk.device());
        look(disk.device());
    }
}

/// An empty qcow2 file, and one that knows data; with data in it, or in an external data file.
fn qcow2_files(data_file: Option<DataFile>) -> Vec<Vec<u8>> {
    let is_external = data_file.is_some();
    let options = CreateOptions {
        bytes: 96 << 10,
        cluster_bits: 9,
        backing: None,
        data_file,
    };
    let bytes = qcow2::file_bytes(&options);
    let file = Arc::new(MemoryDevice::new(bytes + (64 << 10)));
    let shared: SharedDevice = file.clone();
    if qcow2::create(&shared, &options).is_err() {
        return Vec::new();
    }
    let empty = file.to_vec()[..bytes as usize].to_vec();
    let data: SharedDevice = Arc::new(MemoryDevice::new(ROOM_BYTES as u64));
    let data = is_external.then_some(data);
    if let Ok(disk) = qcow2::Qcow2::open_with_data(shared, None, data) {
        let _wrote = disk.write_at(DevOffset(4096), &[7; 2048], Flags::FUA);
    }
    let full = file.to_vec()[..bytes as usize + (16 << 10)].to_vec();
    vec![empty, full]
}

/// A GPT with two partitions, as long as the target makes it: the backup is at the end.
fn gpt_file() -> Option<Vec<u8>> {
    let bytes = (48 << 10) + ROOM_BYTES;
    let file = Arc::new(MemoryDevice::new(bytes as u64));
    let device: SharedDevice = file.clone();
    let partition = |start: u64| NewPartition {
        start,
        bytes: 16 << 10,
        kind: Purpose::Linux.kind(Scheme::Gpt),
        name: String::from("part"),
        uuid: [start as u8; 16],
    };
    let table = NewTable {
        scheme: Scheme::Gpt,
        id: [7; 16],
        partitions: vec![partition(32 << 10), partition(64 << 10)],
    };
    table.write(&device).ok()?;
    Some(file.to_vec()[..48 << 10].to_vec())
}

/// Little-endian words at offsets.
fn words(bytes: usize, start: &[u8], words: &[(usize, u32)]) -> Vec<u8> {
    let mut all = vec![0; bytes];
    all[..start.len()].copy_from_slice(start);
    for (at, value) in words {
        all[*at..*at + 4].copy_from_slice(&value.to_le_bytes());
    }
    all
}

fn seeds() -> Vec<Vec<u8>> {
    let simg = words(
        48,
        &[0x3A, 0xFF, 0x26, 0xED, 1],
        &[
            (8, 0x000C_001C),
            (12, 4096),
            (16, 3),
            (20, 1),
            (28, 0xCAC3),
            (32, 3),
            (36, 12),
        ],
    );
    let vmdk = words(
        4096,
        b"KDMV",
        &[
            (4, 1),
            (12, 128),
            (20, 8),
            (44, 16),
            (56, 2),
            (1024, 4),
            (2048, 6),
        ],
    );
    let mut mbr = words(
        512 * 12,
        &[],
        &[
            (0x1C2, 0x83),
            (0x1C6, 4),
            (0x1CA, 2),
            (0x1D2, 5),
            (0x1D6, 8),
            (0x1DA, 4),
        ],
    );
    mbr[0x1FE..0x200].copy_from_slice(&[0x55, 0xAA]);
    mbr[512 * 8 + 0x1FE..512 * 9].copy_from_slice(&[0x55, 0xAA]);
    let external = |raw: bool| DataFile {
        name: b"data".to_vec(),
        raw,
    };
    let mut all = qcow2_files(None);
    all.extend(qcow2_files(Some(external(false))));
    all.extend(qcow2_files(Some(external(true))));
    all.extend(gpt_file());
    all.extend([simg, vmdk, mbr, b"conectix".to_vec()]);
    all
}
