//! Arguments of the commands that change a volume as a whole.

use crate::size::parse_size;
use clap::{Args, ValueHint};
use std::ffi::OsString;
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

#[derive(Args, Debug)]
pub struct ResizeArgs {
    /// As large as the image or device
    #[arg(long)]
    pub fill: bool,
    /// As small as its files allow
    #[arg(long, conflicts_with = "fill")]
    pub minimum: bool,
    /// With --minimum, leave so much free
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size, requires = "minimum")]
    pub free: u64,
    /// Make the partition larger where the volume needs it: into the free room behind it
    #[arg(long, conflicts_with = "minimum")]
    pub grow_partition: bool,
    /// Say what would be done, and write nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Image file, block device, or mount point of a volume that is to grow in use; an image file is made longer where needed, and cut behind a
    /// smaller volume
    #[arg(value_hint = ValueHint::FilePath)]
    pub image: PathBuf,
    /// The new size, or with a + how much is added
    #[arg(value_name = "[+]SIZE", allow_hyphen_values = true)]
    pub size: Option<String>,
}

#[derive(Args, Debug)]
pub struct SetArgs {
    /// With features=^has_journal, take away a journal on another device that is lost
    #[arg(long)]
    pub force: bool,
    /// With --force, also when transactions wait in that journal: they are lost, and the volume must be checked
    #[arg(long, requires = "force")]
    pub lose_transactions: bool,
    /// Image file or block device
    #[arg(value_hint = ValueHint::FilePath)]
    pub image: PathBuf,
    /// label=, uuid=, reserved=, errors=, hash-seed=, default-options=, features=, journal-size=, cold-extensions=, hot-extensions=
    #[arg(value_name = "NAME=VALUE", required = true)]
    pub settings: Vec<OsString>,
}
