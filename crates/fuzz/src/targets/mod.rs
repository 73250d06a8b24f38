//! The targets, and what they share.

pub(crate) mod archive;
pub(crate) mod check_repair;
pub(crate) mod chunks;
pub(crate) mod disk;
pub(crate) mod listing;
pub(crate) mod nbd;
pub(crate) mod ops;
pub(crate) mod replay;
pub(crate) mod resize;
pub(crate) mod trace;
pub(crate) mod tree;
pub(crate) mod walk;

use crate::base::Base;
use crate::patch::Input;
use blockwright_check::Mode;
use blockwright_device::SharedDevice;

/// No bases: inputs are bytes of their own.
fn no_bases() -> &'static [Base] {
    &[]
}

/// Each base untouched, with this program.
fn untouched(bases: &[Base], program: &[u8]) -> Vec<Vec<u8>> {
    (0..bases.len() as u8)
        .map(|base| {
            Input {
                base,
                program: program.to_vec(),
                ..Input::default()
            }
            .encode()
        })
        .collect()
}

/// What the checker of a format says.
enum Verdict {
    /// Nothing worse than a note.
    Clean,
    /// What is wrong, the first of it.
    Dirty(String),
    /// It does not take this volume, and says why.
    Refused,
}

fn is_f2fs(base: &Base) -> bool {
    base.name.starts_with("f2fs")
}

/// Runs the checker of a base's format.
fn check(base: &Base, device: &SharedDevice, mode: Mode) -> Verdict {
    if is_f2fs(base) {
        let options = blockwright_check::f2fs::CheckOptions {
            mode,
            ..Default::default()
        };
        let report = blockwright_check::f2fs::check(device.clone(), &options);
        return report.map_or(Verdict::Refused, |r| verdict(r.is_clean(), &r.issues));
    }
    let options = blockwright_check::ext4::CheckOptions {
        mode,
        ..Default::default()
    };
    let report = blockwright_check::ext4::check(device.clone(), &options);
    report.map_or(Verdict::Refused, |r| verdict(r.is_clean(), &r.issues))
}

fn verdict(clean: bool, issues: &[impl std::fmt::Debug]) -> Verdict {
    if clean {
        return Verdict::Clean;
    }
    let said: Vec<String> = issues.iter().take(4).map(|i| format!("{i:?}")).collect();
    Verdict::Dirty(said.join("; "))
}
