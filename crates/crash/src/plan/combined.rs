//! Plans of f2fs workloads in which a seed combines all that a workload can have.

use super::{Cleaning, F2fsSwitches, Format, Plan, Room};
use blockwright_device::sim::recording::Completions;
use blockwright_f2fs::comparison::DirectAllocation;
use blockwright_f2fs::{ActiveLogs, BackgroundCleaning, FsyncMode, Mode};

impl Plan {
    /// A small workload on f2fs.
    #[must_use]
    pub fn f2fs(seed: u64) -> Self {
        Plan {
            format: Format::F2fs,
            block_bytes: 4096,
            ..Plan::small(seed)
        }
    }

    /// Everything that a workload can have, in combinations that the seed decides.
    #[must_use]
    pub fn f2fs_everything(seed: u64) -> Self {
        const LAYOUTS: [&str; 4] = [
            "",
            "extra_attr,project_quota,quota,inode_checksum",
            "extra_attr,inode_checksum,flexible_inline_xattr,inode_crtime",
            "extra_attr,project_quota,quota,inode_crtime,sb_checksum",
        ];
        let large = seed.is_multiple_of(3);
        // Runs of large writes cross the ends of segments.
        let (operations, file_bytes_max, write_bytes_max) = match large {
            true => (70, 4 << 20, 4 << 20),
            false => (140, 200_000, 100_000),
        };
        let room = match seed % 6 {
            4 => Room::None,
            _ => [Room::Ample, Room::InHoles][(seed / 6 % 2) as usize],
        };
        // Logs fill holes otherwise, and need no room.
        let mode = [Mode::Adaptive, Mode::Lfs][(seed / 4 % 2) as usize];
        let mode = if room == Room::None { Mode::Lfs } else { mode };
        let background = match seed % 5 {
            2 => BackgroundCleaning::Sync,
            _ => BackgroundCleaning::Off,
        };
        let cleaning = (seed % 3 == 1).then_some(Cleaning {
            mode,
            segments: 1 + (seed / 9 % 2) as u32,
            room,
            background,
        });
        Plan {
            features: LAYOUTS[(seed % 4) as usize],
            operations,
            file_bytes_max,
            write_bytes_max,
            completions: match seed % 5 {
                3 => Completions::Deferred { seed },
                _ => Completions::Inline,
            },
            direct: seed % 2 == 1,
            compared: seed % 11 == 6,
            scattered: seed % 4 == 2 && !large,
            rich: true,
            small_caches: seed / 2 % 3 == 1,
            threads: [1, 1, 1, 3][(seed / 5 % 4) as usize],
            sequels: 1 + (seed % 2) as usize,
            cleaning,
            f2fs: F2fsSwitches {
                fsync: [FsyncMode::Posix, FsyncMode::Strict][(seed / 7 % 2) as usize],
                alloc: [
                    DirectAllocation::Reserved,
                    DirectAllocation::Reserved,
                    DirectAllocation::Serialized,
                    DirectAllocation::None,
                ][(seed / 3 % 4) as usize],
                merge: [None, Some(true), Some(false)][(seed / 2 % 3) as usize],
                mode,
                logs: match seed % 13 {
                    4 | 8 => ActiveLogs::Two,
                    5 | 7 | 12 => ActiveLogs::Four,
                    _ => ActiveLogs::Six,
                },
                nodes_left: [None, Some(0), Some(3)][(seed % 3) as usize],
                no_discard: false,
            },
            ..Plan::f2fs(seed)
        }
    }

    /// Three threads that take turns, on small volumes and full ones; what [`Plan::f2fs_everything`] has, in combinations that the seed decides.
    #[must_use]
    pub fn f2fs_in_turns(seed: u64) -> Self {
        // Few: large files take long to compare.
        let full = seed % 24 == 8;
        let (operations, file_bytes_max, write_bytes_max) = match full {
            true => (50, 8 << 20, 4 << 20),
            false => (50, 200_000, 100_000),
        };
        Plan {
            operations,
            file_bytes_max,
            write_bytes_max,
            threads: 3,
            sequels: 2,
            direct: seed % 2 == 1 || full,
            small_caches: seed % 4 < 2,
            scattered: seed % 5 == 2 && !full,
            ..Plan::f2fs_everything(seed)
        }
    }
}
