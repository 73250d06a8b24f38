//! The systems of the write path, each with the switch that turns it off, through the library.

mod direct;
mod driver;
mod f2fs;
mod kernel;
mod many;
mod place;
pub mod sparse;
mod stream;

pub use direct::scatter;
pub use driver::{Style, write as driver_write};
pub use place::{Bench, Place};
pub use sparse::{Library, Mounted, Target, Work, Writer, options_for, works};
pub use stream::{beside, open};

use crate::runner::Plan;
use crate::table::Row;
use std::path::Path;

/// Runs what the plan asks for on the device that is called `device`: `file`, `memory`, `block:PATH`,
/// `model:sdcard`, `model:emmc`, `model:ufs`, `model:nvme` or `model:raid0`, or `paced:` with one of these.
pub fn run(plan: &Plan, dir: &Path, device: &str) -> Result<Vec<Row>, String> {
    let place = Place::new(device, dir, plan.quick)?;
    let mut rows = Vec::new();
    if place.is_paced() {
        // It takes its time: for what is about waiting for each other.
        f2fs::run(plan, &place, &mut rows)?;
        return Ok(rows);
    }
    direct::run(plan, &place, &mut rows)?;
    stream::run(plan, &place, &mut rows)?;
    many::run(plan, &place, &mut rows)?;
    sparse::run(plan, &place, &mut rows)?;
    f2fs::run(plan, &place, &mut rows)?;
    Ok(rows)
}
