//! Arguments of `disk`.

use super::ImageArgs;
use clap::Subcommand;

/// What to do with a disk.
#[derive(Subcommand, Debug)]
pub enum DiskCommand {
    /// List the partitions of a disk, and what is on them
    Ls(ImageArgs),
}
