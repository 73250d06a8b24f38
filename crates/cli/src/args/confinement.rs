//! Arguments about confinement: the options that users know, and the hidden commands of the processes beside a confined one.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `-v` of the commands that are confined; `setxattr` has another one.
#[derive(Args, Debug)]
pub struct Verbose {
    /// Report missing parts of the sandbox
    #[arg(short = 'v', long)]
    pub verbose: bool,
}

/// How much of a wall stands around a command that reads an image.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sandbox {
    /// As much as the kernel has
    Auto,
    /// None
    Off,
    /// All of it; without one part of it the command does not run
    Require,
}

impl From<Sandbox> for blockwright_sandbox::Mode {
    fn from(sandbox: Sandbox) -> Self {
        match sandbox {
            Sandbox::Auto => Self::Auto,
            Sandbox::Off => Self::Off,
            Sandbox::Require => Self::Require,
        }
    }
}

/// What a confined process needs.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialPlan {
    /// The image alone
    Image,
    /// What serves a mount
    Server,
    /// Files of the host, as `cp` does
    Host,
}

#[derive(Args, Debug)]
pub struct TrialArgs {
    /// As what to be confined
    #[arg(long, default_value = "image")]
    pub plan: TrialPlan,
    /// Image file or block device
    pub image: PathBuf,
}

#[derive(Args, Debug)]
pub struct KeeperArgs {
    /// The mount's options
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Read-only
    #[arg(short = 'r')]
    pub read_only: bool,
    /// What the mount table shows as the source
    #[arg(long)]
    pub source: String,
    /// Directory to mount on
    pub mountpoint: PathBuf,
}

#[derive(Args, Debug)]
pub struct JanitorArgs {
    /// The file
    pub path: PathBuf,
}
