//! Arguments of the commands that change a volume as a whole.

use clap::{Args, ValueHint};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct TrimArgs {
    /// Make free blocks read as zeroes, also where a discard would not
    #[arg(long)]
    pub zero: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Image, block device, or the directory a volume is mounted on (by any file system that can)
    #[arg(value_hint = ValueHint::AnyPath)]
    pub path: PathBuf,
}
