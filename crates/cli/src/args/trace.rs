//! Arguments of `trace`.

use super::{parse_seconds, parse_size};
use clap::{Args, Subcommand, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

/// What to do with traces.
#[derive(Subcommand, Debug)]
pub enum TraceCommand {
    /// Record a mount's device requests while a command runs, for some seconds, or until interrupted
    Record(TraceRecordArgs),
    /// End a recording that was begun by a mount option
    Stop(TraceTargetArgs),
    /// Show whether a recording is going on
    Status(TraceTargetArgs),
    /// Summarise a recording
    Show(TraceShowArgs),
    /// Draw a recording: offsets, throughput and seeks over time
    Plot(TracePlotArgs),
}

#[derive(Args, Debug)]
pub struct TraceRecordArgs {
    /// File to record to, outside of the volume
    #[arg(short = 'o', long, value_name = "FILE", default_value = "blockwright.trace", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// The recording ends when the file has this size (40 bytes a request)
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    pub max: u64,
    /// End after this many seconds
    #[arg(short = 's', long, value_parser = parse_seconds, conflicts_with = "command")]
    pub seconds: Option<f64>,
    /// Directory the volume is mounted on
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Command to run; trace ends with its exit code
    #[arg(last = true)]
    pub command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct TraceTargetArgs {
    /// Directory the volume is mounted on
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
}

#[derive(Args, Debug)]
pub struct TraceShowArgs {
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// The recording
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
}

#[derive(Args, Debug)]
pub struct TracePlotArgs {
    /// File to draw to: .svg or .png
    #[arg(short = 'o', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Width in pixels
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(300..=10_000))]
    pub width: u32,
    /// What stands above the plot
    #[arg(long)]
    pub title: Option<String>,
    /// The recording
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
}
