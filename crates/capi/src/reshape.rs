//! Changing volumes that are not open: their size and settings.

use crate::call::{call, known, outside};
use crate::error::{Fault, Result, bw_error, bw_status};
use crate::place::{bw_place, image_at};
use crate::raw::{Text, User, Versioned, sized};
use blockwright::reshape::{ErrorBehaviour, Mode, Phase, Reserved, Settings, Watch, random_uuid};
use blockwright_ffi::Target;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

/// As few bytes as the files need; `bytes` is how much stays free.
pub const BW_RESIZE_MINIMUM: u32 = 1;
/// All of the image, partition or device; `bytes` is 0.
pub const BW_RESIZE_FILL: u32 = 2;
/// Only find out what would be done.
pub const BW_RESIZE_DRY_RUN: u32 = 4;

/// `path` is a partition, as `disk.img:p2`, which becomes larger first, into the free room behind it. With `BW_RESIZE_FILL` it takes all of that room.
pub const BW_RESIZE_GROW_PARTITION: u32 = 8;

/// It looks at inodes, and may change each of them. `done` and `total` count block groups.
pub const BW_PHASE_INODES: u32 = 0;
/// Inodes get other numbers. They count inodes.
pub const BW_PHASE_NUMBERS: u32 = 1;
/// Files are copied from one place to another. They count bytes.
pub const BW_PHASE_DATA: u32 = 2;
/// Metadata is written or moved. They count block groups, directories, or blocks of a table.
pub const BW_PHASE_METADATA: u32 = 3;
/// The change is gone through in memory. They count what that step counts.
pub const BW_PHASE_PLAN: u32 = 4;

/// Called with how far a change is: `phase` is a `BW_PHASE_`. Another result than 0 stops the change, which then fails with `BW_INTERRUPTED`. The volume is
/// whole then, and the same call makes the rest.
pub type bw_change_progress =
    Option<extern "C" fn(user: User, phase: u32, done: u64, total: u64) -> i32>;

/// How a volume is changed. A structure of zeroes with `struct_size` set has the defaults, as null has.
#[repr(C)]
pub struct bw_change_options {
    /// `sizeof(bw_change_options)`.
    pub struct_size: usize,
    /// Where the volume is.
    pub place: bw_place,
    /// May be null.
    pub progress: bw_change_progress,
    /// Handed to `progress`.
    pub user: User,
}

// SAFETY: numbers, texts and a function after `struct_size`.
unsafe impl Versioned for bw_change_options {}

fn watch(options: Option<&bw_change_options>) -> Watch {
    let Some((tell, user)) = options.and_then(|o| Some((o.progress?, o.user))) else {
        return Watch::default();
    };
    Watch::new(move |p| {
        let phase = match p.phase {
            Phase::Inodes => BW_PHASE_INODES,
            Phase::Numbers => BW_PHASE_NUMBERS,
            Phase::Data => BW_PHASE_DATA,
            Phase::Plan => BW_PHASE_PLAN,
            _ => BW_PHASE_METADATA,
        };
        match outside(|| tell(user, phase, p.done, p.total)) {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    })
}

/// What a change of size came to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bw_resized {
    /// Bytes of the volume before.
    pub bytes_before: u64,
    /// Bytes of the volume now.
    pub bytes: u64,
    /// Bytes per block.
    pub block_bytes: u32,
    /// 0.
    pub reserved: u32,
}

fn target(bytes: u64, flags: u32) -> Result<Target> {
    let how = BW_RESIZE_DRY_RUN | BW_RESIZE_GROW_PARTITION;
    known(flags, BW_RESIZE_MINIMUM | BW_RESIZE_FILL | how, "flags")?;
    match (flags & !how, bytes) {
        (0, bytes) => Ok(Target::Bytes(bytes)),
        (BW_RESIZE_MINIMUM, free) => Ok(Target::Minimum { free }),
        (BW_RESIZE_FILL, 0) => Ok(Target::Fill),
        _ => Err(Fault::Misuse(
            "BW_RESIZE_FILL takes no size and no BW_RESIZE_MINIMUM".to_owned(),
        )),
    }
}

/// Makes the volume at `path`, which must not be open, as large as `bytes`, or a little smaller. The file of a plain image gets longer or shorter with it.
/// `flags` has `BW_RESIZE_` flags. `options` and `resized` may be null.
#[unsafe(no_mangle)]
pub extern "C" fn bw_resize(
    path: Text,
    bytes: u64,
    flags: u32,
    options: *const bw_change_options,
    resized: Option<&mut MaybeUninit<bw_resized>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let mode = match flags & BW_RESIZE_DRY_RUN {
            0 => Mode::Change,
            _ => Mode::DryRun,
        };
        let options = sized(options, "options")?;
        let image = image_at(path, options.map(|o| &o.place))?;
        let target = target(bytes, flags)?;
        let resize = match flags & BW_RESIZE_GROW_PARTITION {
            0 => blockwright_ffi::resize,
            _ => blockwright_ffi::resize_with_partition,
        };
        let done = resize(&image, target, mode, &watch(options))?;
        if let Some(resized) = resized {
            resized.write(bw_resized {
                bytes_before: done.bytes_before(),
                bytes: done.bytes(),
                block_bytes: done.block_bytes,
                reserved: 0,
            });
        }
        Ok(())
    })
}

/// `uuid` counts.
pub const BW_SET_UUID: u32 = 1;
/// The volume gets a random UUID.
pub const BW_SET_RANDOM_UUID: u32 = 2;
/// `hash_seed` counts.
pub const BW_SET_HASH_SEED: u32 = 4;
/// `reserved_bytes` counts.
pub const BW_SET_RESERVED_BYTES: u32 = 8;
/// `reserved_percent` counts.
pub const BW_SET_RESERVED_PERCENT: u32 = 16;

const ALL_SETTINGS: u32 = 31;

/// Go on after damage was found.
pub const BW_ERRORS_CONTINUE: u32 = 1;
/// Go on for reading only.
pub const BW_ERRORS_REMOUNT_READ_ONLY: u32 = 2;
/// Stop the machine: for kernels.
pub const BW_ERRORS_PANIC: u32 = 3;

/// Settings of a volume to change. Zeroes and null leave a setting as it is; `struct_size` must be set.
#[repr(C)]
pub struct bw_settings {
    /// `sizeof(bw_settings)`.
    pub struct_size: usize,
    /// `BW_SET_` flags.
    pub flags: u32,
    /// The reaction to damage: a `BW_ERRORS_`.
    pub errors: u32,
    /// The label, or null.
    pub label: Text,
    /// Changes of the default mount options, such as `acl,^user_xattr`, or null.
    pub default_options: Text,
    /// Changes of the features, such as `fast_commit,^has_journal`, or null.
    pub features: Text,
    /// Bytes for the super user.
    pub reserved_bytes: u64,
    /// Hundredths of the volume for the super user, 0 to 50.
    pub reserved_percent: f64,
    /// Size of the journal in bytes.
    pub journal_bytes: u64,
    /// UUID.
    pub uuid: [u8; 16],
    /// Seed of the directory hashes.
    pub hash_seed: [u8; 16],
    /// f2fs: changes of the names that make files cold, such as `mp4,^jpg`, or null.
    pub cold_extensions: Text,
    /// f2fs: changes of the names that make files hot, or null.
    pub hot_extensions: Text,
}

// SAFETY: numbers, texts and bytes after `struct_size`.
unsafe impl Versioned for bw_settings {}

fn settings(s: &bw_settings) -> Result<Settings> {
    known(s.flags, ALL_SETTINGS, "settings.flags")?;
    let has = |flag: u32| s.flags & flag != 0;
    let twice = |both: u32| s.flags & both == both;
    if twice(BW_SET_UUID | BW_SET_RANDOM_UUID)
        || twice(BW_SET_RESERVED_BYTES | BW_SET_RESERVED_PERCENT)
    {
        let what = "settings.flags name one setting twice";
        return Err(Fault::Misuse(what.to_owned()));
    }
    let errors = match s.errors {
        0 => None,
        BW_ERRORS_CONTINUE => Some(ErrorBehaviour::Continue),
        BW_ERRORS_REMOUNT_READ_ONLY => Some(ErrorBehaviour::RemountReadOnly),
        BW_ERRORS_PANIC => Some(ErrorBehaviour::Panic),
        other => {
            let what = format!("settings.errors: {other} is no BW_ERRORS_");
            return Err(Fault::Misuse(what));
        }
    };
    let text = |text: Text, name| -> Result<Option<String>> {
        let given = text.optional().is_some();
        Ok(given.then_some(text.utf8(name)?.to_owned()))
    };
    Ok(Settings {
        label: s.label.optional().map(<[u8]>::to_vec),
        uuid: match s.flags & (BW_SET_UUID | BW_SET_RANDOM_UUID) {
            BW_SET_UUID => Some(s.uuid),
            BW_SET_RANDOM_UUID => Some(random_uuid()),
            _ => None,
        },
        reserved: match s.flags & (BW_SET_RESERVED_BYTES | BW_SET_RESERVED_PERCENT) {
            BW_SET_RESERVED_BYTES => Some(Reserved::Bytes(s.reserved_bytes)),
            BW_SET_RESERVED_PERCENT => Some(Reserved::Percent(s.reserved_percent)),
            _ => None,
        },
        errors,
        hash_seed: has(BW_SET_HASH_SEED).then_some(s.hash_seed),
        default_options: text(s.default_options, "settings.default_options")?,
        features: text(s.features, "settings.features")?,
        cold_extensions: text(s.cold_extensions, "settings.cold_extensions")?,
        hot_extensions: text(s.hot_extensions, "settings.hot_extensions")?,
        journal_bytes: (s.journal_bytes != 0).then_some(s.journal_bytes),
        ..Settings::default()
    })
}

/// Changes settings of the volume at `path`, which must not be open: label, UUID, features and so on. `options` may be null. A journal on another device is
/// attached by `options.place.journal` with the feature `has_journal`. What is not possible is refused before anything is written.
#[unsafe(no_mangle)]
pub extern "C" fn bw_set(
    path: Text,
    to: *const bw_settings,
    options: *const bw_change_options,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let to = sized(to, "to")?.ok_or(Fault::Null("to"))?;
        let options = sized(options, "options")?;
        let image = image_at(path, options.map(|o| &o.place))?;
        blockwright_ffi::set(&image, &settings(to)?, &watch(options))?;
        Ok(())
    })
}
