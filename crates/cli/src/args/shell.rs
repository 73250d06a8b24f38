//! Arguments of `shell` and `find`.

use super::parse_number;
use clap::{Args, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

/// The operands of `cp` that are paths of the host.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalSide {
    /// The sources
    From,
    /// The destination
    To,
}

#[derive(Args, Debug)]
pub struct ShellArgs {
    /// Allow commands that change the image
    #[arg(short = 'w', long)]
    pub write: bool,
    /// Run this command and not those of standard input; may be repeated
    #[arg(short = 'c', long = "command", value_name = "COMMAND")]
    pub commands: Vec<String>,
    /// Go on after a command of a script that failed
    #[arg(short = 'k', long)]
    pub keep_going: bool,
    /// Keep the lines of the prompt in this file, for later sessions
    #[arg(long, value_name = "FILE", conflicts_with = "commands", value_hint = ValueHint::FilePath)]
    pub history: Option<PathBuf>,
    /// Image file or block device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub image: OsString,
}

/// What `find --type` looks for.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindType {
    /// Regular files
    #[value(name = "f")]
    File,
    /// Directories
    #[value(name = "d")]
    Directory,
    /// Symbolic links
    #[value(name = "l")]
    Symlink,
    /// Character devices
    #[value(name = "c")]
    CharDevice,
    /// Block devices
    #[value(name = "b")]
    BlockDevice,
    /// Fifos
    #[value(name = "p")]
    Fifo,
    /// Sockets
    #[value(name = "s")]
    Socket,
}

#[derive(Args, Debug)]
pub struct FindArgs {
    /// Only names that match this pattern (*, ?, [a-z]); may be repeated
    #[arg(long, value_name = "PATTERN")]
    pub name: Vec<String>,
    /// Only files of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<FindType>,
    /// Levels to descend
    #[arg(long, value_name = "LEVELS", value_parser = parse_number::<usize>)]
    pub max_depth: Option<usize>,
    /// End each path with a NUL byte and not with a new line
    #[arg(short = '0', long)]
    pub print0: bool,
    /// IMAGE or IMAGE:/path
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}
