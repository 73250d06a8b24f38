//! A change that is refused writes nothing: no byte of a file, no checkpoint and no flush, whatever the reason is and however late it shows.

use super::{MIB, fill, made, made_by_us, pattern, shared};
use blockwright::device::{BlockDevice, DevOffset, Flags, MemoryDevice, SharedDevice};
use blockwright::reshape::{
    self, ErrorBehaviour, ExternalJournal, Reserved, ResizeOptions, Settings,
};
use blockwright::{Error, ErrorKind, OpenOptions, Result, Volume};
use blockwright_device::{CrashPolicy, RecordingDevice};
use blockwright_ondisk::f2fs::inode::{self, InlineFlags};
use blockwright_ondisk::f2fs::{Geometry, Ino, SegNo, Superblock};
use blockwright_test_support::testing::have;
use std::collections::BTreeMap;
use std::sync::Arc;

const BLOCK: usize = 4096;
/// Where an inode has its flags, the length of its name, and the name.
const INLINE: usize = 3;
const NAME_LENGTH: usize = 88;
const NAME: usize = 92;
/// Where the footer of a node begins: its number, and its inode's.
const FOOTER: usize = BLOCK - 24;

/// A change by its name.
type Change<'a> = (String, Box<dyn Fn(&SharedDevice) -> Result<()> + 'a>);

/// Makes the change of a copy: it is made, or it is refused and nothing was written.
fn refused(base: &MemoryDevice, what: &str, change: &Change<'_>) -> Option<Error> {
    let recording = Arc::new(RecordingDevice::new(base));
    let device: SharedDevice = recording.clone();
    let what = format!("{what}, {}", change.0);
    let error = change.1(&device).err()?;
    assert_eq!(
        recording.log_len(),
        0,
        "{what}: {error}: something was written"
    );
    assert!(error.changed_nothing(), "{what}: {error}");
    Some(error)
}

fn read(device: &MemoryDevice, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    device
        .read_at(DevOffset(block * BLOCK as u64), &mut bytes)
        .expect("read");
    bytes
}

fn write(device: &MemoryDevice, block: u64, bytes: &[u8]) {
    device
        .write_at(DevOffset(block * BLOCK as u64), bytes, Flags::empty())
        .expect("written");
}

fn geometry(device: &MemoryDevice) -> Geometry {
    let bytes = device.geometry().bytes;
    let sb = Superblock::parse(&read(device, 0), Some(bytes)).expect("a superblock");
    sb.geo
}

fn number(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// Changes the inodes whose names begin so, wherever they were written. How often that was.
fn edit_inodes(device: &MemoryDevice, name: &str, edit: impl Fn(&mut [u8])) -> usize {
    let geo = geometry(device);
    let mut found = 0;
    for block in u64::from(geo.main.0)..device.geometry().bytes / BLOCK as u64 {
        let mut bytes = read(device, block);
        let (nid, ino) = (number(&bytes, FOOTER), number(&bytes, FOOTER + 4));
        let len = number(&bytes, NAME_LENGTH) as usize;
        if nid == 0
            || nid != ino
            || len < name.len()
            || &bytes[NAME..NAME + name.len()] != name.as_bytes()
        {
            continue;
        }
        edit(&mut bytes);
        inode::set_checksum(&mut bytes, Ino(ino), &geo);
        write(device, block, &bytes);
        found += 1;
    }
    found
}

/// A volume with files at both ends of what was in use, and room between them; and more room behind it.
fn base() -> Arc<MemoryDevice> {
    let device = made_by_us(200 * MIB, 400 * MIB);
    let volume = Volume::open_device(shared(&device)).expect("opened");
    let small = |range: std::ops::Range<usize>| {
        for n in range {
            let name = format!("/last-{n:02}");
            volume.write(name, pattern(n, 200_000)).expect("written");
        }
        volume.sync().expect("synced");
    };
    small(0..30);
    for n in 0..11 {
        let name = format!("/first-{n}");
        volume
            .write(name, pattern(n, 8 * MIB as usize))
            .expect("written");
        volume.sync().expect("synced");
    }
    small(30..60);
    for n in 0..11 {
        volume.remove_file(format!("/first-{n}")).expect("removed");
    }
    volume.close().expect("closed");
    device
}

/// As a crash leaves the volume after `work`.
pub(super) fn crashed(base: &MemoryDevice, work: impl Fn(&Volume)) -> Arc<MemoryDevice> {
    let recording = Arc::new(RecordingDevice::new(base));
    let device: SharedDevice = recording.clone();
    let volume = Volume::open_device(device).expect("opened");
    work(&volume);
    let image = recording.image_at(recording.log_len(), CrashPolicy::AllKept);
    volume.close().expect("closed");
    Arc::new(image)
}

fn volumes() -> Vec<(&'static str, Arc<MemoryDevice>)> {
    let base = base();
    let copy = || Arc::new(base.snapshot());
    let mut all = vec![("clean", copy())];
    let synced = crashed(&base, |volume| {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .open(volume, "/synced")
            .expect("a file");
        file.write_all_at(&pattern(3, 300_000), 0).expect("written");
        file.sync_all().expect("synced");
    });
    all.push(("synced after the checkpoint", synced));
    let orphan = crashed(&base, |volume| {
        let file = OpenOptions::new()
            .write(true)
            .open(volume, "/last-07")
            .expect("a file");
        volume.remove_file("/last-07").expect("removed");
        volume.sync().expect("synced");
        drop(file);
    });
    all.push(("a file without a name", orphan));
    let full = copy();
    let volume = Volume::open_device(shared(&full)).expect("opened");
    let mut n = 0;
    while volume.write(format!("/{n}"), pattern(n, 300_000)).is_ok() {
        n += 1;
    }
    volume.close().expect("closed");
    all.push(("full", full));
    let pinned = copy();
    let found = edit_inodes(&pinned, "last-", |inode| {
        inode[INLINE] |= InlineFlags::PIN_FILE.bits();
    });
    assert!(found > 0);
    all.push(("pinned", pinned));
    let lost = copy();
    // The words of its addresses, whatever stands in front of them.
    let found = edit_inodes(&lost, "last-", |inode| inode[400..600].fill(0));
    assert!(found > 0);
    all.push(("a lost block", lost));
    let kinds = copy();
    let geo = geometry(&kinds);
    // The type of each summary block is behind its entries and its journal.
    for seg in 0..geo.main_segments {
        let place = geo.ssa_block(SegNo(seg)).expect("a summary block");
        let mut bytes = read(&kinds, u64::from(place.0));
        bytes[BLOCK - 5] ^= 1;
        write(&kinds, u64::from(place.0), &bytes);
    }
    all.push(("wrong summaries", kinds));
    for (name, at, byte) in [
        ("zoned", 2180, 0x02),
        ("read-only", 2181, 0x40),
        ("a version that is not known", 2183, 0x80),
    ] {
        let other = copy();
        for block in 0..2 {
            let mut bytes = read(&other, block);
            bytes[1024 + at] |= byte;
            write(&other, block, &bytes);
        }
        all.push((name, other));
    }
    all
}

fn changes(journal: &ExternalJournal) -> Vec<Change<'static>> {
    let mut all: Vec<Change<'static>> = Vec::new();
    for mib in [
        0,
        1,
        20,
        30,
        40,
        50,
        60,
        80,
        100,
        150,
        199,
        200,
        201,
        300,
        400,
        401,
        1 << 30,
    ] {
        let size = move |device: &SharedDevice| {
            reshape::resize(device, &ResizeOptions::to_bytes(mib * MIB)).map(drop)
        };
        all.push((format!("{mib} MiB"), Box::new(size)));
    }
    for free in [0, 10, 1000] {
        let size = move |device: &SharedDevice| {
            reshape::resize(device, &ResizeOptions::to_minimum(free * MIB)).map(drop)
        };
        all.push((format!("minimum and {free} MiB"), Box::new(size)));
    }
    let journal = Some(journal.clone());
    let none = Settings::default;
    for (name, settings) in [
        (
            "journal",
            Settings {
                label: Some(b"new".to_vec()),
                journal,
                ..none()
            },
        ),
        (
            "label and features",
            Settings {
                label: Some(b"new".to_vec()),
                features: Some("quota".into()),
                ..none()
            },
        ),
        (
            "label, extensions and features",
            Settings {
                label: Some(b"new".to_vec()),
                cold_extensions: Some("log".into()),
                features: Some("verity,inode_checksum".into()),
                ..none()
            },
        ),
        (
            "extension",
            Settings {
                hot_extensions: Some("wal,^db,extension".into()),
                ..none()
            },
        ),
        (
            "long label",
            Settings {
                label: Some(vec![b'x'; 600]),
                uuid: Some([3; 16]),
                ..none()
            },
        ),
        (
            "label that is no text",
            Settings {
                label: Some(vec![0xFF; 3]),
                ..none()
            },
        ),
        (
            "reserved",
            Settings {
                reserved: Some(Reserved::Percent(3.0)),
                ..none()
            },
        ),
        (
            "errors",
            Settings {
                errors: Some(ErrorBehaviour::Panic),
                ..none()
            },
        ),
        (
            "hash seed",
            Settings {
                hash_seed: Some([3; 16]),
                ..none()
            },
        ),
        (
            "options",
            Settings {
                default_options: Some("acl".into()),
                ..none()
            },
        ),
        (
            "journal size",
            Settings {
                journal_bytes: Some(MIB),
                ..none()
            },
        ),
    ] {
        let set = move |device: &SharedDevice| reshape::set(device, &settings);
        all.push((name.to_owned(), Box::new(set)));
    }
    all
}

#[test]
fn a_refused_change_writes_nothing() {
    let journal = ExternalJournal {
        device: Arc::new(MemoryDevice::new(MIB)),
        number: 0,
    };
    let changes = changes(&journal);
    let (mut reasons, mut made) = (BTreeMap::<String, usize>::new(), 0);
    for (name, volume) in volumes() {
        for change in &changes {
            match refused(&volume, name, change) {
                Some(error) => *reasons.entry(error.to_string()).or_default() += 1,
                None => made += 1,
            }
        }
    }
    println!("{made} changes made: {reasons:#?}");
    assert!(made > 50, "{made}");
    // Reasons that only the change itself finds are among them.
    for part in [
        "is pinned",
        "does not name it",
        "of the wrong kind",
        "room for",
        "fewer than the",
    ] {
        assert!(
            reasons.keys().any(|reason| reason.contains(part)),
            "{part}: {reasons:#?}"
        );
    }
}

#[test]
fn a_uuid_that_checksums_start_from_stays() {
    if !have("mkfs.f2fs") {
        return;
    }
    let device = made(&["-O", "extra_attr,inode_checksum"], 100 * MIB, 100 * MIB);
    fill(&device, 10, 1);
    let uuid = |device: &SharedDevice| {
        let settings = Settings {
            label: Some(b"new".to_vec()),
            uuid: Some([3; 16]),
            ..Settings::default()
        };
        reshape::set(device, &settings)
    };
    let change: Change<'_> = ("uuid".to_owned(), Box::new(uuid));
    let error = refused(&device, "checksums", &change).expect("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
