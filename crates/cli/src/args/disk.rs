//! Arguments of `disk`.

use super::ImageArgs;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;

/// What to do with a disk.
#[derive(Subcommand, Debug)]
pub enum DiskCommand {
    /// List the partitions of a disk, and what is on them
    Ls(ImageArgs),
    /// Write a disk, or a partition of one, to a new file in another format
    Convert(ConvertArgs),
    /// Write a partition to a new raw file
    Extract(ExtractArgs),
}

/// Formats that are made.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFormat {
    /// The disk's bytes; zeroes are holes
    Raw,
    /// QEMU's format, version 3
    Qcow2,
    /// Android sparse image
    Simg,
    /// Dynamic VHD
    Vhd,
}

#[derive(Args, Debug)]
pub struct ConvertArgs {
    /// Format to make; without it, as the new file's name ends: .qcow2, .simg, .vhd; otherwise raw
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<DiskFormat>,
    /// No progress bar
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Image file, block device or partition (disk.img:p2)
    #[arg(value_hint = ValueHint::AnyPath)]
    pub image: PathBuf,
    /// New file
    #[arg(value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
}

#[derive(Args, Debug)]
pub struct ExtractArgs {
    /// New file
    #[arg(short = 'o', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// No progress bar
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Partition (disk.img:p2)
    #[arg(value_hint = ValueHint::AnyPath)]
    pub image: PathBuf,
}
