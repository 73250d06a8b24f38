//! Arguments of `map`, and of `info`, which can draw one.

use super::ImageArgs;
use clap::{Args, ValueHint};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct MapArgs {
    /// File to draw to: .svg or .png for a picture, .html for a page to zoom in. Without it the map is text
    #[arg(short = 'o', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Image file or block device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub image: PathBuf,
}

#[derive(Args, Debug)]
pub struct InfoArgs {
    /// Draw what each block holds into this file (.html), and print links to places in it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub map: Option<PathBuf>,
    #[command(flatten)]
    pub of: ImageArgs,
}
