//! The operations, as data.

use crate::common::below;
use blockwright::RenameMode;
use blockwright_device::sim::rng::SplitMix64;

/// One operation. `usize`s choose among what exists, `u8`s among names.
#[derive(Clone, Debug)]
pub enum Op {
    Create {
        dir: usize,
        name: u8,
    },
    Mkdir {
        dir: usize,
        name: u8,
    },
    Symlink {
        dir: usize,
        name: u8,
        len: usize,
    },
    Fifo {
        dir: usize,
        name: u8,
    },
    Link {
        node: usize,
        dir: usize,
        name: u8,
    },
    Remove {
        node: usize,
    },
    Rename {
        node: usize,
        dir: usize,
        name: u8,
        mode: RenameMode,
    },
    RenameOver {
        node: usize,
        onto: usize,
        mode: RenameMode,
    },
    Write {
        file: usize,
        at: usize,
        len: usize,
        salt: u8,
    },
    Append {
        file: usize,
        len: usize,
        salt: u8,
    },
    SetLen {
        file: usize,
        len: usize,
    },
    Allocate {
        file: usize,
        at: usize,
        len: usize,
        keep_size: bool,
    },
    Punch {
        file: usize,
        at: usize,
        len: usize,
    },
    Zero {
        file: usize,
        at: usize,
        len: usize,
    },
    /// In blocks.
    Collapse {
        file: usize,
        at: usize,
        len: usize,
    },
    /// In blocks.
    Insert {
        file: usize,
        at: usize,
        len: usize,
    },
    CopyRange {
        from: usize,
        to: usize,
        at: usize,
        to_at: usize,
        len: usize,
    },
    Open {
        file: usize,
        slot: usize,
        direct: bool,
    },
    Close {
        slot: usize,
    },
    WriteOpen {
        slot: usize,
        at: usize,
        len: usize,
        salt: u8,
    },
    Fsync {
        file: usize,
        data: bool,
    },
    Chmod {
        node: usize,
        mode: u32,
    },
    Chown {
        node: usize,
        uid: u32,
        gid: u32,
    },
    SetTimes {
        node: usize,
        secs: i64,
        nanos: u32,
    },
    SetXattr {
        node: usize,
        name: u8,
        len: usize,
        salt: u8,
    },
    RemoveXattr {
        node: usize,
        name: u8,
    },
    ManyFiles {
        dir: usize,
        count: usize,
    },
    RemoveTree {
        node: usize,
    },
    Segments {
        file: usize,
    },
    Sync,
    DropCaches,
    Reopen,
    CheckAll,
}

/// Sizes: mostly around the edges of inodes, blocks and pages.
fn length(rng: &mut SplitMix64) -> usize {
    let max = match below(rng, 10) {
        0..3 => 200,
        3..6 => 5000,
        6..9 => 60_000,
        _ => 300_000,
    };
    1 + below(rng, max) as usize
}

fn offset(rng: &mut SplitMix64) -> usize {
    match below(rng, 4) {
        0 => 0,
        1 => below(rng, 100) as usize * 1024,
        _ => length(rng),
    }
}

/// The list of a seed.
pub fn make(seed: u64, count: usize) -> Vec<Op> {
    let mut rng = SplitMix64::new(seed);
    (0..count).map(|_| one(&mut rng)).collect()
}

fn one(rng: &mut SplitMix64) -> Op {
    let index = |rng: &mut SplitMix64| below(rng, 1 << 16) as usize;
    let name = below(rng, 24) as u8;
    let salt = rng.next_u64() as u8;
    let (a, b) = (index(rng), index(rng));
    let mode = match below(rng, 4) {
        0 => RenameMode::NoReplace,
        1 => RenameMode::Exchange,
        _ => RenameMode::Replace,
    };
    let (at, len) = (offset(rng), length(rng));
    match below(rng, 100) {
        0..10 => Op::Create { dir: a, name },
        10..14 => Op::Mkdir { dir: a, name },
        14..16 => Op::Symlink {
            dir: a,
            name,
            len: 1 + len % 700,
        },
        16 => Op::Fifo { dir: a, name },
        17..20 => Op::Link {
            node: a,
            dir: b,
            name,
        },
        20..24 => Op::Remove { node: a },
        24..28 => Op::Rename {
            node: a,
            dir: b,
            name,
            mode,
        },
        28..31 => Op::RenameOver {
            node: a,
            onto: b,
            mode,
        },
        31..45 => Op::Write {
            file: a,
            at,
            len,
            salt,
        },
        45..49 => Op::Append { file: a, len, salt },
        49..54 => Op::SetLen {
            file: a,
            len: if salt < 20 { 0 } else { at + len },
        },
        54..57 => Op::Allocate {
            file: a,
            at,
            len,
            keep_size: salt & 1 == 0,
        },
        57..61 => Op::Punch { file: a, at, len },
        61..64 => Op::Zero { file: a, at, len },
        64..66 => Op::Collapse {
            file: a,
            at: at % 12,
            len: 1 + len % 5,
        },
        66..68 => Op::Insert {
            file: a,
            at: at % 12,
            len: 1 + len % 5,
        },
        68..70 => Op::CopyRange {
            from: a,
            to: b,
            at,
            to_at: offset(rng),
            len,
        },
        70..73 => Op::Open {
            file: a,
            slot: b,
            direct: salt & 3 == 0,
        },
        73 => Op::Close { slot: a },
        74..77 => Op::WriteOpen {
            slot: a,
            at,
            len,
            salt,
        },
        77..79 => Op::Fsync {
            file: a,
            data: salt & 1 == 0,
        },
        79 => Op::Chmod {
            node: a,
            mode: (b & 0o7777) as u32,
        },
        80 => Op::Chown {
            node: a,
            uid: b as u32 * 77,
            gid: at as u32,
        },
        81 => Op::SetTimes {
            node: a,
            secs: b as i64 * 70_000 - 500_000_000,
            nanos: at as u32 * 997,
        },
        82..87 => Op::SetXattr {
            node: a,
            name,
            len: if salt < 100 { len % 60 } else { len % 900 },
            salt,
        },
        87..89 => Op::RemoveXattr { node: a, name },
        89 => Op::ManyFiles {
            dir: a,
            count: 1 + len % 120,
        },
        90 => Op::RemoveTree { node: a },
        91..94 => Op::Segments { file: a },
        94 => Op::Sync,
        95..97 => Op::DropCaches,
        97 => Op::Reopen,
        98 => Op::CheckAll,
        _ => Op::Fsync {
            file: a,
            data: false,
        },
    }
}
