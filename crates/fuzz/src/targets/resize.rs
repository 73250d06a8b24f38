//! Sizes, features and settings of a volume, changed one after the other.

use super::{Verdict, check, tree, untouched};
use crate::Target;
use crate::base::{self, Base, options};
use crate::patch::Input;
use blockwright::reshape::{self, ErrorBehaviour, Mode, Reserved, ResizeOptions, Settings};
use blockwright::{Error, ErrorKind};
use blockwright_check::Mode as CheckMode;
use blockwright_device::{BlockDevice, DevOffset, Flags, MemoryDevice, SharedDevice};
use blockwright_ondisk::ext4::checksum::{CRC32C_INIT, crc32c};
use std::sync::Arc;

pub(crate) const TARGET: Target = Target {
    name: "resize",
    property: "after each change of size or settings a clean volume is clean and has the same files; a refusal or a dry run leaves the image alone",
    run,
    max_len: 512,
    bases: base::all,
    seeds: || {
        // Each feature on and off, with changes of size between them.
        let features: Vec<u8> = (0..FEATURES.len() as u8)
            .flat_map(|n| [4, n, 5, n])
            .collect();
        let sizes: Vec<u8> = (0..24u8).flat_map(|n| [n, n.wrapping_mul(83)]).collect();
        let mixed: Vec<u8> = (0..40u8).map(|n| n.wrapping_mul(57)).collect();
        [features, sizes, mixed]
            .into_iter()
            .flat_map(|program| untouched(base::all(), &program))
            .collect()
    },
};

/// Bytes of the device: what a volume may grow to.
const DEVICE_BYTES: u64 = 48 << 20;
/// Kinds of changes; what a kind's byte has above is a detail of it.
const KINDS: u8 = 10;
/// Changes of one input.
const STEPS_MAX: usize = 10;
/// Unit of copying and comparing images.
const PIECE_BYTES: u64 = 64 << 10;

const FEATURES: &[&str] = &[
    "has_journal",
    "metadata_csum",
    "64bit",
    "quota",
    "project",
    "orphan_file",
    "dir_index",
    "mmp",
    "uninit_bg",
    "metadata_csum_seed",
    "fast_commit",
    "large_dir",
    "inline_data",
    "casefold",
    "verity",
    "stable_inodes",
    "ea_inode",
    "sparse_super2",
    "resize_inode",
    "extra_isize",
    "encrypt",
    "lost_found",
    "sb_checksum",
    "compression",
    "inode_crtime",
    "project_quota",
];

/// The pieces of a device that are not zero, with their offsets.
fn pieces(device: &dyn BlockDevice, mut piece: impl FnMut(u64, &[u8])) {
    let end = device.geometry().bytes;
    let mut bytes = vec![0; PIECE_BYTES as usize];
    let mut at = device.next_data(DevOffset(0)).0;
    while at < end {
        let part = &mut bytes[..PIECE_BYTES.min(end - at) as usize];
        let read = device.read_at(DevOffset(at), part);
        assert!(read.is_ok(), "memory fails: {read:?}");
        if part.iter().any(|byte| *byte != 0) {
            piece(at, part);
        }
        at = device.next_data(DevOffset(at + part.len() as u64)).0;
    }
}

/// The image on a device with room behind it.
fn roomy(image: &MemoryDevice) -> SharedDevice {
    let device = MemoryDevice::new(DEVICE_BYTES.max(image.geometry().bytes));
    pieces(image, |at, bytes| {
        let written = device.write_at(DevOffset(at), bytes, Flags::empty());
        assert!(written.is_ok(), "memory fails: {written:?}");
    });
    Arc::new(device)
}

/// A checksum of all bytes.
fn digest(device: &SharedDevice) -> u32 {
    let mut sum = CRC32C_INIT;
    pieces(&**device, |at, bytes| {
        sum = crc32c(crc32c(sum, &at.to_le_bytes()), bytes);
    });
    sum
}

/// The files and their contents, in an order that does not depend on that of directories; and what could not be read.
fn files(base: &Base, device: &SharedDevice) -> Vec<String> {
    let volume = match options(true).open_device(device.clone()) {
        Ok(volume) => volume,
        Err(e) => panic!("{}: clean, and not to be opened: {e}", base.name),
    };
    let walked = tree::walk(&volume);
    // The walk may have ended in the middle of a large directory.
    let mut names = match walked.is_whole() {
        true => [walked.names, walked.errors].concat(),
        false => vec![format!("{} names", walked.names.len())],
    };
    names.sort_unstable();
    names
}

/// Errors that say that a change is not possible. By their documentation nothing was changed.
fn refuses(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::Invalid
            | ErrorKind::Unsupported
            | ErrorKind::UnsupportedFeature
            | ErrorKind::Busy
            | ErrorKind::NoSpace
    )
}

/// One change, as two bytes of the program describe it.
struct Step {
    kind: u8,
    n: u8,
}

impl Step {
    /// Whether it only says what would be done.
    fn is_dry(&self) -> bool {
        self.kind / KINDS % 8 == 7 && self.kind % KINDS < 4
    }

    fn perform(&self, device: &SharedDevice) -> Result<(), Error> {
        let n = self.n;
        let mode = match self.is_dry() {
            true => Mode::DryRun,
            false => Mode::Change,
        };
        let resize =
            |options: ResizeOptions| reshape::resize(device, &options.mode(mode)).map(drop);
        let set = |settings: Settings| reshape::set(device, &settings);
        match self.kind % KINDS {
            0 | 1 => {
                // Also sizes that are not whole blocks.
                let bytes = DEVICE_BYTES / 256 * u64::from(n) + u64::from(self.kind / KINDS) * 512;
                resize(ResizeOptions::to_bytes(bytes))
            }
            2 => resize(ResizeOptions::to_minimum(u64::from(n) << 12)),
            3 => resize(ResizeOptions::to_bytes(DEVICE_BYTES)),
            4 | 5 => {
                let name = FEATURES[usize::from(n) % FEATURES.len()];
                let clear = if self.kind % KINDS == 5 { "^" } else { "" };
                set(Settings {
                    features: Some(format!("{clear}{name}")),
                    ..Settings::default()
                })
            }
            6 => set(Settings {
                journal_bytes: Some(u64::from(n) << 16),
                ..Settings::default()
            }),
            7 => set(Settings {
                uuid: Some([n; 16]),
                ..Settings::default()
            }),
            8 => set(Settings {
                reserved: Some(Reserved::Percent(f64::from(n) / 4.0)),
                errors: Some(ErrorBehaviour::from_raw(u16::from(n))),
                ..Settings::default()
            }),
            _ => set(Settings {
                label: Some(vec![n; usize::from(n) % 20]),
                hash_seed: n.is_multiple_of(2).then_some([n; 16]),
                hot_extensions: n.is_multiple_of(5).then(|| format!("x{n},^db")),
                ..Settings::default()
            }),
        }
    }
}

fn run(data: &[u8]) {
    let input = Input::decode(data);
    let Some((base, image)) = input.image(base::all()) else {
        return;
    };
    let device = roomy(&image);
    let intact = input.patches.is_empty();
    let opened = options(false)
        .open_device(device.clone())
        .and_then(|volume| volume.close());
    if let Err(e) = opened {
        return assert!(!intact, "{}: not to be opened: {e}", base.name);
    }
    // A volume that check calls clean stays so, with its files. Of another one, only refusals and dry runs promise something.
    let clean = matches!(check(base, &device, CheckMode::ReadOnly), Verdict::Clean);
    assert!(clean || !intact, "{}: not clean", base.name);
    let before = clean.then(|| files(base, &device));
    let mut image = digest(&device);
    let mut said = Vec::new();
    for step in input.program.chunks_exact(2).take(STEPS_MAX) {
        let step = Step {
            kind: step[0],
            n: step[1],
        };
        let done = step.perform(&device);
        said.push(format!("{} {}: {done:?}", step.kind, step.n));
        let now = digest(&device);
        let refused = |e: &Error| e.changed_nothing() || clean && refuses(e);
        let promised = step.is_dry() || done.as_ref().is_err_and(refused);
        assert!(
            now == image || !promised,
            "{}: changed by a refusal or a dry run: {said:?}",
            base.name
        );
        if let Err(e) = &done {
            assert!(!intact || refuses(e), "{}: {said:?}", base.name);
        }
        let changed = now != image;
        image = now;
        let Some(before) = before.as_ref().filter(|_| changed) else {
            continue;
        };
        match check(base, &device, CheckMode::ReadOnly) {
            Verdict::Clean => {}
            Verdict::Dirty(why) => panic!("{}: {why}, after {said:?}", base.name),
            Verdict::Refused => panic!("{}: refused by check, after {said:?}", base.name),
        }
        let after = files(base, &device);
        assert!(
            &after == before,
            "{}: files differ after {said:?}",
            base.name
        );
    }
}
