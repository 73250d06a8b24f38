//! Random operations on a damaged volume, which is then closed, opened again, read and checked.

use super::{Verdict, check, tree, untouched};
use crate::Target;
use crate::base::{self, options};
use crate::patch::Input;
use blockwright::{Error, ErrorKind, File, OpenOptions, Volume, XattrMode};
use blockwright_check::Mode;
use blockwright_device::SharedDevice;
use std::sync::Arc;

pub(crate) const TARGET: Target = Target {
    name: "ops",
    property: "a volume that check calls clean, and whose operations met no damage, is clean after them and a close",
    run,
    max_len: 768,
    bases: base::all,
    seeds: || {
        let spread: Vec<u8> = (0..60u8).map(|n| n.wrapping_mul(37)).collect();
        let rising: Vec<u8> = (0..90u8).collect();
        [
            untouched(base::all(), &spread),
            untouched(base::all(), &rising),
        ]
        .concat()
    },
};

const PATHS: &[&str] = &[
    "/a/small",
    "/a/large",
    "/a/scattered",
    "/a/b/block",
    "/a/b/empty",
    "/a/new",
    "/new",
    "/many/new",
    "/a/b/c/again",
    "/many/00000000-nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
    "/a/short",
    "/a/long",
    "/a/fifo",
    "/a/b",
    "/a/b/c",
    "/many",
];
/// Operations of one input.
const STEPS_MAX: usize = 48;

struct Run<'a> {
    volume: &'a Volume,
    program: std::slice::Iter<'a, u8>,
    /// Something on the volume is damaged, and an operation has said so.
    met_damage: bool,
}

fn run(data: &[u8]) {
    let input = Input::decode(data);
    let Some((base, device)) = input.image(base::all()) else {
        return;
    };
    let device: SharedDevice = Arc::new(device);
    let intact = input.patches.is_empty();
    let clean_before = intact || matches!(check(base, &device, Mode::ReadOnly), Verdict::Clean);
    let volume = match options(false).open_device(device.clone()) {
        Ok(volume) => volume,
        Err(e) => return assert!(!intact, "{}: {e}", base.name),
    };
    if volume.is_read_only() {
        return;
    }
    let mut run = Run {
        volume: &volume,
        program: input.program.iter(),
        met_damage: false,
    };
    for _ in 0..STEPS_MAX {
        match run.step() {
            None => break,
            Some(Err(e)) => run.met_damage |= !harmless(&e),
            Some(Ok(())) => {}
        }
    }
    let met_damage = run.met_damage;
    assert!(
        !(intact && met_damage),
        "{}: an operation met damage on an intact volume",
        base.name
    );
    let closed = volume.close();
    assert!(!intact || closed.is_ok(), "{}: {closed:?}", base.name);
    if closed.is_err() {
        return;
    }
    let after = check(base, &device, Mode::ReadOnly);
    if clean_before && !met_damage {
        if let Verdict::Dirty(why) = after {
            panic!(
                "{}: clean before these operations and not after: {why}",
                base.name
            );
        }
        match options(true).open_device(device) {
            Ok(volume) => {
                let walked = tree::walk(&volume);
                assert!(
                    !intact || walked.errors.is_empty(),
                    "{}: {:?}",
                    base.name,
                    walked.errors
                );
            }
            Err(e) => panic!("{}: clean, and yet not to be opened: {e}", base.name),
        }
    }
}

/// Errors that say nothing about the volume's structures.
fn harmless(e: &Error) -> bool {
    !matches!(
        e.kind(),
        ErrorKind::Corrupt | ErrorKind::Io | ErrorKind::ReadOnly | ErrorKind::UnsupportedFeature
    )
}

impl Run<'_> {
    fn byte(&mut self) -> u8 {
        self.program.next().copied().unwrap_or(0)
    }

    fn path(&mut self) -> &'static str {
        PATHS[usize::from(self.byte()) % PATHS.len()]
    }

    /// An offset or a length: small, or a few hundred KiB, rarely at the limits.
    fn number(&mut self) -> u64 {
        let (kind, n) = (self.byte(), u64::from(self.byte()));
        match kind % 8 {
            0 | 1 => n,
            2..=4 => n * 512,
            5 | 6 => n * 1024 + u64::from(kind),
            _ => n << 12 << (kind % 29),
        }
    }

    fn file(&mut self) -> blockwright::Result<File> {
        let path = self.path();
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(self.volume, path)
    }

    /// `None` at the program's end.
    fn step(&mut self) -> Option<blockwright::Result<()>> {
        let op = *self.program.next()?;
        Some(self.operation(op))
    }

    fn operation(&mut self, op: u8) -> blockwright::Result<()> {
        let volume = self.volume;
        match op % 20 {
            0 | 1 => {
                let (file, at, len) = (self.file()?, self.number(), self.number() % 9000);
                file.write_all_at(&vec![op | 1; len as usize], at % (1 << 42))
            }
            2 => {
                let path = self.path();
                volume.set_len(path, self.number())
            }
            3 => volume.remove_file(self.path()),
            4 => volume.rename(self.path(), self.path()),
            5 => volume.hard_link(self.path(), self.path()),
            6 => volume.create_dir(self.path()),
            7 => volume.remove_dir(self.path()),
            8 => volume.symlink("t".repeat(self.byte().max(1).into()), self.path()),
            9 => {
                let (file, at, len) = (self.file()?, self.number(), self.number());
                file.allocate_keep_size(at, len % (1 << 18))
            }
            10 => {
                let (file, at, len) = (self.file()?, self.number(), self.number());
                file.punch_hole(at, len)
            }
            11 => {
                let (file, at, len) = (self.file()?, self.number(), self.number());
                file.zero_range(at, len % (1 << 18))
            }
            12 => {
                let (file, at, len) = (self.file()?, self.number(), self.number());
                file.collapse_range(at, len)
            }
            13 => {
                let (file, at, len) = (self.file()?, self.number(), self.number());
                file.insert_range(at, len)
            }
            14 => {
                let name = format!("user.{}", self.byte() % 4);
                let value = vec![op; usize::from(self.byte()) * 5];
                volume.set_xattr(self.path(), name, value, XattrMode::Any)
            }
            15 => {
                let name = format!("user.{}", self.byte() % 4);
                volume.remove_xattr(self.path(), name)
            }
            16 => self.file()?.sync_all(),
            17 => volume.sync(),
            18 => {
                let dir = ["/many", "/a/b", "/"][usize::from(self.byte()) % 3];
                for n in 0..self.byte() % 16 {
                    volume.write(format!("{dir}/{n}-{}", "m".repeat(60)), [n; 40])?;
                }
                Ok(())
            }
            _ => volume.chown(self.path(), Some(self.byte().into()), None),
        }
    }
}
