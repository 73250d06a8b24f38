//! Areas that small files share, one per CPU: files written together lie together, and writers on
//! different CPUs do not meet.

use super::pa::{OfLocality, Pa};
use crate::alloc::Run;
use blockwright_device::current_cpu;
use blockwright_ondisk::ext4::BlockNo;
use parking_lot::RwLock;
use std::sync::OnceLock;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Localities {
    /// The lock is shared for taking blocks, exclusive for a new area. Above the groups' locks.
    areas: Box<[Area]>,
}

/// Alone in its cache lines: neighbours belong to other CPUs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Area(RwLock<Option<Pa<OfLocality>>>);

/// How many CPUs there are, asked once: the answer is in several files of the host.
fn cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(4, usize::from))
}

impl Localities {
    pub(crate) fn new() -> Self {
        Localities {
            areas: (0..cpus().next_power_of_two())
                .map(|_| Area::default())
                .collect(),
        }
    }

    /// The area of the CPU that this thread runs on. The thread may be moved at any moment, which costs
    /// an area shared, nothing else.
    fn here(&self) -> &RwLock<Option<Pa<OfLocality>>> {
        let cpu = current_cpu();
        // The length is a power of two: never empty, and the mask stays inside.
        &self.areas[cpu & (self.areas.len() - 1)].0
    }

    /// Takes up to `len` blocks that end below `limit` from this CPU's area; `refill` finds a new one
    /// when it has none left.
    pub(crate) fn take<E>(
        &self,
        len: u32,
        limit: Option<BlockNo>,
        refill: impl FnOnce() -> Result<Option<Run>, E>,
    ) -> Result<Option<Run>, E> {
        let take = |area: &Option<Pa<OfLocality>>| {
            let area = area.as_ref()?;
            if area.is_deleted() {
                return None;
            }
            let within = limit.is_none_or(|limit| area.physical_end() <= limit);
            Some(if within { area.take_front(len) } else { None })
        };
        let area = self.here();
        match take(&area.read()) {
            Some(Some(run)) => return Ok(Some(run)),
            // It lies too high for this file.
            Some(None) if limit.is_some() => return Ok(None),
            _ => {}
        }
        let mut area = area.write();
        if area.as_ref().is_none_or(Pa::is_deleted) {
            *area = refill()?.map(|run| Pa::new(OfLocality, run));
        }
        Ok(take(&area).flatten())
    }

    /// Empties all areas; the caller puts the runs back.
    pub(crate) fn discard(&self) -> Vec<Run> {
        let left = |area: &Area| area.0.read().as_ref().and_then(Pa::delete);
        self.areas.iter().filter_map(left).collect()
    }
}
