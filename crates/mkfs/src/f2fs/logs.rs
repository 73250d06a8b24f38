//! Where blocks go: each log counts its own, and gets its place once all are counted.

use super::shape::Shape;
use crate::{MkfsError, Result};
use blockwright_ondisk::f2fs::types::{BLOCKS_PER_SEG, LOG_BLOCKS_PER_SEG};
use blockwright_ondisk::f2fs::{BlockAddr, Log, Nid, SegNo, Summary};

/// Blocks in a row of one owner.
#[derive(Clone, Copy, Debug)]
struct OwnerRun {
    nid: Nid,
    offset: u16,
    len: u16,
}

/// A place in a log: the log and a block's number in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub log: Log,
    pub index: u64,
}

/// What each log holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Logs {
    used: [u64; 6],
    owners: [Vec<OwnerRun>; 6],
}

impl Logs {
    /// Takes this many blocks in a row, whose owners the caller must name in the same order.
    pub fn take(&mut self, log: Log, blocks: u64) -> Place {
        let used = &mut self.used[usize::from(log.code())];
        let index = *used;
        *used += blocks;
        Place { log, index }
    }

    /// Says whose the next blocks of a log are: for data the mapping node and the first address in
    /// it, for a node itself.
    pub fn own(&mut self, log: Log, nid: Nid, offset: usize, len: usize) {
        self.owners[usize::from(log.code())].push(OwnerRun {
            nid,
            offset: offset as u16,
            len: len as u16,
        });
    }

    /// Blocks in a log.
    pub fn used(&self, log: Log) -> u64 {
        self.used[usize::from(log.code())]
    }

    /// Blocks of all logs.
    pub fn used_all(&self) -> u64 {
        self.used.iter().sum()
    }

    /// Summaries of a log's blocks, in order.
    pub fn summaries(&self, log: Log) -> impl Iterator<Item = Summary> + '_ {
        self.owners[usize::from(log.code())].iter().flat_map(|run| {
            (0..run.len).map(|n| Summary {
                nid: run.nid,
                version: 0,
                offset: run.offset + n,
            })
        })
    }

    /// Gives each log its segments: where an empty volume has it, if all fits so, and otherwise one
    /// log behind the other.
    pub fn place(&self, shape: &Shape) -> Result<LogPlaces> {
        let unit = shape.geo.segs_per_sec * shape.geo.secs_per_zone;
        let end = u64::from(shape.geo.main_segments);
        let blocks = shape.geo.blocks_count;
        let starts = shape.log_starts();
        let arrange = |spread: bool| {
            let mut at = 0u64;
            let mut places = LogPlaces {
                main: shape.geo.main,
                starts: [SegNo(0); 6],
            };
            for (log, wanted) in starts {
                if spread {
                    at = at.max(u64::from(wanted.0));
                }
                places.starts[usize::from(log.code())] = SegNo(at as u32);
                // The head is a free block: a full last segment needs one more.
                let segments = (self.used(log) >> LOG_BLOCKS_PER_SEG) + 1;
                at += segments.next_multiple_of(u64::from(unit));
            }
            (places, at)
        };
        let lacking = |missing: u64| MkfsError::NoSpace {
            blocks,
            missing,
            block_bytes: blockwright_ondisk::f2fs::BLOCK_SIZE as u32,
        };
        let user = shape.user_blocks();
        if self.used_all() > user {
            return Err(lacking(self.used_all() - user));
        }
        let (places, at) = arrange(true);
        if at <= end {
            return Ok(places);
        }
        let (places, at) = arrange(false);
        if at <= end {
            return Ok(places);
        }
        Err(lacking((at - end) << LOG_BLOCKS_PER_SEG))
    }
}

/// First segment of each log.
#[derive(Clone, Debug)]
pub(crate) struct LogPlaces {
    main: BlockAddr,
    starts: [SegNo; 6],
}

impl LogPlaces {
    /// First segment of a log.
    pub fn start(&self, log: Log) -> SegNo {
        self.starts[usize::from(log.code())]
    }

    /// Where a place of a log is on the device.
    pub fn address(&self, place: Place) -> BlockAddr {
        let start = self.start(place.log).0 << LOG_BLOCKS_PER_SEG;
        // Logs were placed within the main area, whose addresses fit.
        BlockAddr(self.main.0 + start + place.index as u32)
    }

    /// Segments of a log that hold blocks, and how many each has, in order; the head's segment is
    /// the last, and may have none.
    pub fn segments(&self, log: Log, used: u64) -> impl Iterator<Item = (SegNo, u16)> + use<> {
        let start = self.start(log).0;
        let full = used >> LOG_BLOCKS_PER_SEG;
        (0..=full).map(move |n| {
            let left = used - (n << LOG_BLOCKS_PER_SEG);
            let blocks = left.min(u64::from(BLOCKS_PER_SEG));
            (SegNo(start + n as u32), blocks as u16)
        })
    }
}
