//! The alphabet of short workloads: operations on six names, ways to make them durable, and the sequences of them.

use crate::plan::Rng;
use blockwright_vfs::FallocMode;

/// Where in a file a write goes, and how many bytes it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At its beginning.
    Begin(usize),
    /// At its end.
    End(usize),
    /// At this offset.
    At(usize, usize),
}

/// What is done to a file that has no name any more, through a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // they are what their names say
pub enum Nameless {
    Truncate(u64),
    /// From one byte to another.
    Write(u64, u64),
    Falloc(FallocMode, u64, u64),
}

/// An operation of the alphabet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // they are what their names say
pub enum Op {
    Create(&'static str),
    Mkdir(&'static str),
    Rmdir(&'static str),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    /// The file stays open, and is changed then.
    UnlinkOpen(&'static str, Nameless),
    Rename(&'static str, &'static str),
    Exchange(&'static str, &'static str),
    Write(&'static str, Place),
    DirectWrite(&'static str, Place),
    Truncate(&'static str, usize),
    /// From one block to another.
    Falloc(&'static str, FallocMode, u64, u64),
    SetXattr(&'static str, usize),
    RemoveXattr(&'static str),
    Chmod(&'static str, u32),
}

impl Op {
    /// What fsync is called on afterwards; its directory is the one whose names changed.
    #[must_use]
    pub fn file(&self) -> &'static str {
        match self {
            Op::Link(_, path) | Op::Rename(_, path) | Op::Exchange(_, path) => path,
            Op::Create(path) | Op::Mkdir(path) | Op::Rmdir(path) | Op::Unlink(path) => path,
            Op::Write(path, _) | Op::DirectWrite(path, _) | Op::Truncate(path, _) => path,
            Op::Falloc(path, ..) | Op::SetXattr(path, _) | Op::UnlinkOpen(path, _) => path,
            Op::RemoveXattr(path) | Op::Chmod(path, _) => path,
        }
    }
}

/// How an operation is made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persist {
    /// Not at all.
    None,
    /// fsync of its file.
    Fsync,
    /// fdatasync of its file.
    Fdatasync,
    /// fsync of the directory that has its name.
    FsyncDir,
    /// sync of the volume.
    Sync,
}

impl Persist {
    /// All of them.
    pub const ALL: [Persist; 5] = [
        Persist::None,
        Persist::Fsync,
        Persist::Fdatasync,
        Persist::FsyncDir,
        Persist::Sync,
    ];
}

/// A workload.
pub type Sequence = Vec<(Op, Persist)>;

/// All operations.
#[must_use]
pub fn alphabet() -> Vec<Op> {
    use FallocMode::{Allocate, CollapseRange, InsertRange, PunchHole, ZeroRange};
    use Place::{At, Begin, End};
    vec![
        Op::Create("/A/new"),
        Op::Create("/A/foo"),
        Op::Create("/bar"),
        Op::Mkdir("/A/sub"),
        Op::Mkdir("/A/foo"),
        Op::Rmdir("/B"),
        Op::Link("/A/foo", "/B/link"),
        Op::Link("/bar", "/A/new"),
        Op::Unlink("/A/foo"),
        Op::Unlink("/bar"),
        Op::UnlinkOpen("/A/foo", Nameless::Truncate(0)),
        Op::UnlinkOpen("/bar", Nameless::Truncate(5000)),
        Op::UnlinkOpen("/bar", Nameless::Truncate(30_000)),
        Op::UnlinkOpen("/A/foo", Nameless::Write(2000, 9000)),
        Op::UnlinkOpen(
            "/A/foo",
            Nameless::Falloc(Allocate { keep_size: false }, 0, 12_000),
        ),
        Op::UnlinkOpen("/bar", Nameless::Falloc(PunchHole, 1024, 8192)),
        Op::Rename("/A/foo", "/A/new"),
        Op::Rename("/A/foo", "/B/foo"),
        Op::Rename("/A/foo", "/bar"),
        Op::Rename("/bar", "/A/foo"),
        Op::Rename("/A/new", "/A/foo"),
        Op::Rename("/B", "/A/sub"),
        Op::Rename("/A", "/B"),
        Op::Exchange("/A/foo", "/bar"),
        Op::Write("/A/foo", Begin(700)),
        Op::Write("/A/foo", End(3000)),
        Op::Write("/A/foo", At(20_000, 300)),
        Op::Write("/A/new", Begin(5000)),
        Op::Write("/bar", At(4000, 1000)),
        Op::DirectWrite("/A/foo", Begin(1)),
        Op::DirectWrite("/A/foo", End(5000)),
        Op::DirectWrite("/A/new", Begin(9000)),
        Op::DirectWrite("/bar", At(8192, 4096)),
        Op::Truncate("/A/foo", 0),
        Op::Truncate("/A/foo", 1000),
        Op::Truncate("/A/foo", 9000),
        Op::Truncate("/bar", 0),
        Op::Falloc("/A/foo", Allocate { keep_size: false }, 0, 6),
        Op::Falloc("/A/foo", Allocate { keep_size: true }, 4, 12),
        Op::Falloc("/bar", PunchHole, 1, 3),
        Op::Falloc("/bar", ZeroRange { keep_size: false }, 2, 20),
        Op::Falloc("/bar", ZeroRange { keep_size: true }, 0, 2),
        Op::Falloc("/bar", CollapseRange, 1, 2),
        Op::Falloc("/bar", InsertRange, 1, 2),
        Op::SetXattr("/A/foo", 3),
        Op::SetXattr("/bar", 600),
        Op::RemoveXattr("/bar"),
        Op::Chmod("/A/foo", 0o640),
    ]
}

/// All workloads of this many operations: each operation but the last persisted in one of the given ways, the last in
/// one of the others than none.
#[must_use]
pub fn sequences(ops: usize, between: &[Persist]) -> Vec<Sequence> {
    let alphabet = alphabet();
    let mut all: Vec<Sequence> = vec![Vec::new()];
    for n in 0..ops {
        let last = n + 1 == ops;
        let ways = if last { &Persist::ALL[1..] } else { between };
        let longer = |s: &Sequence| {
            let mut out = Vec::new();
            for op in &alphabet {
                for way in ways {
                    out.push([&s[..], &[(*op, *way)]].concat());
                }
            }
            out
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

/// One workload of this many operations, drawn.
#[must_use]
pub fn drawn(ops: usize, seed: u64) -> Sequence {
    let alphabet = alphabet();
    let mut rng = Rng::new(seed ^ 0xace);
    (0..ops)
        .map(|n| {
            let first = usize::from(n + 1 == ops);
            let op = alphabet[rng.below(alphabet.len() as u64) as usize];
            let ways = &Persist::ALL[first..];
            (op, ways[rng.below(ways.len() as u64) as usize])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_all_there_are() {
        let n = alphabet().len();
        assert_eq!(sequences(1, &[]).len(), n * 4);
        let two = sequences(2, &[Persist::None, Persist::Sync]);
        assert_eq!(two.len(), n * 2 * n * 4);
        assert!(two.iter().all(|s| s.len() == 2 && s[1].1 != Persist::None));
        assert_eq!(drawn(3, 9), drawn(3, 9));
        assert!((0..50).all(|seed| drawn(3, seed)[2].1 != Persist::None));
    }
}
