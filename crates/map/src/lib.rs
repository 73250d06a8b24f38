//! Maps of volumes: what each block holds, as letters, as a picture, and as a page to zoom in.
//!
//! [`survey`] walks a volume of either format. [`letters`], [`picture`] and [`page()`] draw what it found.
//!
//! # Calls
//! `check` walks the volume, `plot` draws.
//!
//! # Not responsible for
//! Opening devices, and where a map is written.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod colours;
mod page;
mod size;
mod squares;

pub use colours::{colour, letter};
pub use page::{page, places};
pub use size::human;
pub use squares::{letters, picture};

use blockwright_check::usage::{FragmentedFile, Place, Usage, UsageOptions};
use blockwright_check::{Issue, Severity, ext4, f2fs};
use blockwright_device::SharedDevice;

/// Why nothing can be said about a volume.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An ext4 volume, or no volume.
    #[error(transparent)]
    Ext4(#[from] ext4::CheckError),
    /// An f2fs volume.
    #[error(transparent)]
    F2fs(#[from] f2fs::CheckError),
}

/// An issue of either format, as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// For people.
    pub text: String,
    /// Where it is.
    pub place: Option<Place>,
}

/// The same survey with issues of no format, so that what is drawn of it need not know which one it was.
fn told<K: std::fmt::Display>(usage: Usage<K>, place: impl Fn(&K) -> Option<Place>) -> Usage<Told> {
    usage.map_issues(|issue| Issue {
        kind: Told {
            text: issue.kind.to_string(),
            place: place(&issue.kind),
        },
        severity: issue.severity,
        outcome: issue.outcome,
    })
}

/// The format of the volume on a device (`ext4`, which ext2 and ext3 are, too, or `f2fs`), and what its blocks hold.
///
/// # Errors
/// When nothing can be said about the volume. Damage is no error.
pub fn survey(
    device: SharedDevice,
    options: &UsageOptions,
) -> Result<(&'static str, Usage<Told>), Error> {
    if f2fs::is_f2fs(&device)? {
        let usage = f2fs::usage(device, options)?;
        return Ok(("f2fs", told(usage, f2fs::IssueKind::place)));
    }
    let usage = ext4::usage(device, options)?;
    Ok(("ext4", told(usage, ext4::IssueKind::place)))
}

/// The volume in a line: `ext4, 16384 blocks of 4.0 KiB (64.0 MiB)`.
#[must_use]
pub fn about(usage: &Usage<Told>, format: &str) -> String {
    let bytes = |blocks: u64| human(blocks.saturating_mul(u64::from(usage.block_bytes)));
    format!(
        "{format}, {} blocks of {} ({})",
        usage.blocks,
        human(u64::from(usage.block_bytes)),
        bytes(usage.blocks)
    )
}

/// A fragmented file in a line.
#[must_use]
pub fn fragmented_text(file: &FragmentedFile, block_bytes: u32) -> String {
    let bytes = file.blocks.saturating_mul(u64::from(block_bytes));
    format!(
        "inode {}: {} in {} pieces",
        file.ino,
        human(bytes),
        file.pieces
    )
}

/// What the volume's structures say against each other.
fn contradictions(usage: &Usage<Told>) -> Vec<String> {
    let mut out = Vec::new();
    for (blocks, what) in [
        (usage.claimed_twice, "claimed by more than one owner"),
        (usage.marked_free, "in use, but free in the bitmaps"),
    ] {
        if blocks > 0 {
            out.push(format!("{blocks} blocks are {what}"));
        }
    }
    for (more, what) in [
        (usage.suppressed, "issues"),
        (usage.unread_more, "unreadable places"),
    ] {
        if more > 0 {
            out.push(format!("{more} more {what}"));
        }
    }
    out
}

/// What is wrong with the volume, in sentences: first what holds for all of it.
#[must_use]
pub fn problems(usage: &Usage<Told>) -> Vec<String> {
    let unread = usage.unread.iter().map(ToString::to_string);
    let worse = usage.issues.iter().filter(|i| i.severity > Severity::Note);
    let mut out = contradictions(usage);
    out.extend(unread);
    out.extend(worse.map(|issue| issue.kind.text.clone()));
    out
}
