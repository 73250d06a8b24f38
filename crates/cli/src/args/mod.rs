//! The program's arguments. These names are the interface: they do not change between releases.

mod chunk;
mod confinement;
mod disk;
mod life;
mod map;
mod mkfs;
mod shell;
mod trace;

pub use chunk::{
    ChunkCommand, ChunkExtractArgs, ChunkMakeArgs, ChunkVerifyArgs, FetcherArgs, StoreArgs,
};
pub use confinement::{JanitorArgs, KeeperArgs, Sandbox, TrialArgs, TrialPlan, Verbose};
pub use disk::{
    AddArgs, CreateArgs, DiskCommand, DiskFormat, ExtractArgs, PartSize, PartSpec, PartType,
};
pub use life::{ResizeArgs, SetArgs, TrimArgs};
pub use map::{InfoArgs, MapArgs};
pub use mkfs::{EntryArgs, Format, MkfsArgs};
pub use shell::{FindArgs, FindType, LocalSide, ShellArgs};

pub use trace::{TraceCommand, TracePlotArgs, TraceRecordArgs, TraceShowArgs, TraceTargetArgs};

pub use crate::size::{parse_id, parse_number, parse_seconds, parse_size};
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

/// Where help shows what every command takes that opens an image.
const IMAGES: &str = "Options for commands that open an image";

/// ext4 and f2fs file systems, live in user space.
#[derive(Parser, Debug)]
#[command(
    name = "blockwright",
    version,
    propagate_version = true,
    about = "Build, mount, edit and check ext4 and f2fs volumes in user space, without root",
    long_about = "Build, mount, edit and check ext4 and f2fs volumes in user space, without root.\n\n\
        Files inside an image are written IMAGE:/path, and IMAGE:p2:/path where the image is a disk with partitions. A local file whose name has a colon is written ./name:with:colon."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// A further device of an f2fs volume that is on several, in the order of its superblock; may be repeated. Such
    /// volumes are only read
    #[arg(long = "device", value_name = "PATH", global = true, value_hint = ValueHint::FilePath, help_heading = IMAGES)]
    pub devices: Vec<PathBuf>,
    /// The device or image that an ext4 volume's journal is on, when it is not on the volume
    #[arg(long = "journal", value_name = "DEVICE", global = true, value_hint = ValueHint::FilePath, help_heading = IMAGES)]
    pub journal: Option<PathBuf>,
    /// Keep changes of the image in this file, and only read the image; made by the first command that changes something
    #[arg(long = "overlay", value_name = "FILE", global = true, value_hint = ValueHint::FilePath, help_heading = IMAGES, conflicts_with_all = ["devices", "journal"])]
    pub overlay: Option<PathBuf>,
    /// Open backing files and external data files of a qcow2 image that are outside of its folder, and write to its external data file
    #[arg(long, global = true)]
    pub allow_backing: bool,
    /// Confine the process before it reads the image: as far as the kernel allows, not at all, or completely (otherwise fail)
    #[arg(long, value_name = "WHEN", global = true, default_value = "auto", help_heading = IMAGES)]
    pub sandbox: Sandbox,
    /// Report more: what the command's own -v says, and missing parts of the sandbox
    #[arg(long, global = true, help_heading = IMAGES)]
    pub verbose: bool,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a file system, empty or from directories and tar streams
    Mkfs(Box<MkfsArgs>),
    /// Mount a volume through FUSE
    Mount(MountArgs),
    /// Unmount a mounted volume and wait until it is clean
    #[command(alias = "unmount")]
    Umount(UmountArgs),
    /// Make everything durable that was written to mounted volumes
    Sync(SyncArgs),
    /// List directories of an image
    #[command(disable_help_flag = true)]
    Ls(LsArgs),
    /// List a directory and all below it
    Tree(TreeArgs),
    /// Print the paths of files of an image, by name and type
    Find(FindArgs),
    /// Work in one image with a prompt, or with the commands of a script
    Shell(ShellArgs),
    /// Print files of an image
    Cat(CatArgs),
    /// Copy files into, out of, between and inside images
    Cp(CpArgs),
    /// Rename or move files inside an image
    Mv(MvArgs),
    /// Remove files from an image
    Rm(RmArgs),
    /// Make directories in an image
    Mkdir(MkdirArgs),
    /// Make hard or symbolic links in an image
    Ln(LnArgs),
    /// Make empty files in an image, or set the times of files
    Touch(TouchArgs),
    /// Show or set what users, groups and projects may have
    Quota(QuotaArgs),
    /// Show what an inode holds
    Stat(PathsArgs),
    /// Change permission bits
    Chmod(ChmodArgs),
    /// Change owner and group
    Chown(ChownArgs),
    /// Print extended attributes
    Getxattr(GetxattrArgs),
    /// Set or remove an extended attribute
    Setxattr(SetxattrArgs),
    /// Show the space that files take
    #[command(disable_help_flag = true)]
    Du(DuArgs),
    /// Show how full a volume is
    #[command(disable_help_flag = true)]
    Df(DfArgs),
    /// Write a volume, or a part of it, as a tar stream
    Export(ExportArgs),
    /// Check a volume, and repair it on request (fsck's exit codes)
    Check(CheckArgs),
    /// Show what a volume is: features, sizes, state
    Info(InfoArgs),
    /// Disks with partitions
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Images in content-addressed chunks, as casync and desync have them
    #[command(subcommand)]
    Chunk(ChunkCommand),
    /// Show or draw what each block of a volume holds
    Map(MapArgs),
    /// Show where a file's blocks are
    Extents(PathsArgs),
    /// Show what a mounted volume has done and holds
    Stats(StatsArgs),
    /// List or change the tunables of a mounted volume
    Tune(TuneArgs),
    /// Make a volume larger or smaller, with its image file
    Resize(ResizeArgs),
    /// Change a volume's label, UUID, features and other settings
    Set(SetArgs),
    /// Give the space of free blocks back: holes in an image file, discards on a device
    Trim(TrimArgs),
    /// Record, summarise and draw device requests
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Print a shell's completion script
    Completions(CompletionsArgs),
    /// Write the man pages into a directory
    #[command(hide = true)]
    Man(ManArgs),
    /// Confine this process as a command's, and try to get out
    #[command(hide = true, name = "debug-sandbox")]
    Trial(TrialArgs),
    /// Remove a file when the command that writes it fails
    #[command(hide = true, name = "debug-janitor")]
    Janitor(JanitorArgs),
    /// Fetch chunks for a process that is confined
    #[command(hide = true, name = "debug-fetcher")]
    Fetcher(FetcherArgs),
    /// Connect to an NBD server for a process that is confined
    #[command(hide = true, name = "debug-connector")]
    Connector(FetcherArgs),
    /// Mount and unmount for a server that is confined
    #[command(hide = true, name = "debug-keeper")]
    Keeper(KeeperArgs),
}

impl Command {
    /// Whether the command opens an image that can lie below an overlay.
    pub fn takes_overlay(&self) -> bool {
        match self {
            Command::Mount(_)
            | Command::Ls(_)
            | Command::Tree(_)
            | Command::Find(_)
            | Command::Shell(_)
            | Command::Cat(_)
            | Command::Cp(_)
            | Command::Mv(_)
            | Command::Rm(_)
            | Command::Mkdir(_)
            | Command::Ln(_)
            | Command::Touch(_)
            | Command::Quota(_)
            | Command::Stat(_)
            | Command::Chmod(_)
            | Command::Chown(_)
            | Command::Getxattr(_)
            | Command::Setxattr(_)
            | Command::Du(_)
            | Command::Df(_)
            | Command::Export(_)
            | Command::Check(_)
            | Command::Info(_)
            | Command::Map(_)
            | Command::Extents(_)
            | Command::Set(_) => true,
            Command::Trim(args) => !args.path.is_dir(),
            Command::Disk(command) => matches!(
                command,
                DiskCommand::Ls(_) | DiskCommand::Convert(_) | DiskCommand::Extract(_)
            ),
            Command::Chunk(command) => matches!(command, ChunkCommand::Make(_)),
            _ => false,
        }
    }
}

#[derive(Args, Debug)]
pub struct MountArgs {
    /// Mount options, separated by commas. --help lists all of them
    ///
    /// Access: ro, rw, remount, allow_other, default_permissions, volume_permissions, uid=ID, gid=ID, [no]suid, [no]dev,
    /// [no]exec, [no]xattr, fsname=NAME.
    ///
    /// Times: relatime, atime, noatime, strictatime, [no]lazytime.
    ///
    /// Image: overlay=FILE, offset=BYTES, sb=BLOCK, norecovery (or noload), errors=continue|remount-ro|panic, [no]block_validity.
    ///
    /// Memory and writeback: commit=SECONDS, cache=SIZE, metadata_cache=SIZE, dirty=SIZE, dirty_background=SIZE,
    /// readahead=SIZE, read_past=SIZE, write_past=SIZE, direct_io, writethrough, [no]delalloc, barrier, nobarrier,
    /// data=ordered.
    ///
    /// f2fs: mode=adaptive|lfs, background_gc=on|off|sync, active_logs=2|4|6, [no]discard,
    /// fsync_mode=posix|strict|nobarrier, checkpoint=enable|merge|disable[:BLOCKS|:PERCENT%], [no]checkpoint_merge,
    /// ckpt_thread_ioprio=LEVEL, serialized_dio_pages=COUNT.
    ///
    /// Server: transport=auto|io_uring|dev_fuse, threads=COUNT, max_read=SIZE, max_write=SIZE, cpu_latency=auto|off,
    /// trace=FILE, trace_max=SIZE.
    ///
    /// Options that fstab has for other programs (auto, nofail, _netdev, user, comment=, subtype=, x-…) are ignored.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Read-only, the same as -o ro
    #[arg(short = 'r', long)]
    pub read_only: bool,
    /// Stay in the foreground
    #[arg(short = 'f', long)]
    pub foreground: bool,
    /// Report what would make the mount faster, and missing parts of the sandbox
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// No hints at all
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Append the server's messages to this file; without it they go to standard error, or from the background to the system's log
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub log: Option<PathBuf>,
    /// Image file or block device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub image: PathBuf,
    /// Directory to mount on
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
}

#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Detach now, finish when no process uses the mount
    #[arg(short = 'l', long)]
    pub lazy: bool,
    /// Directories volumes are mounted on
    #[arg(required = true, value_name = "MOUNTPOINT", value_hint = ValueHint::DirPath)]
    pub mountpoints: Vec<PathBuf>,
}

/// `-h` of `ls`, `du` and `df`, as coreutils have it; in every other command it is help.
#[derive(Args, Debug)]
pub struct HumanReadable {
    /// Sizes with units: 1.5 MiB
    #[arg(short = 'h', long = "human-readable")]
    pub human: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Args, Debug)]
pub struct SyncArgs {
    /// Directories volumes are mounted on
    #[arg(required = true, value_name = "MOUNTPOINT", value_hint = ValueHint::DirPath)]
    pub mountpoints: Vec<PathBuf>,
}

#[derive(Args, Debug)]
pub struct LsArgs {
    #[command(flatten)]
    pub verbose: Verbose,
    #[command(flatten)]
    pub sizes: HumanReadable,
    /// Long format: kind and mode, links, owner, group, size, time, name
    #[arg(short = 'l', long)]
    pub long: bool,
    /// Names that begin with a dot too
    #[arg(short = 'a', long)]
    pub all: bool,
    /// Directories themselves, not what is in them
    #[arg(short = 'd', long)]
    pub directory: bool,
    /// Inode numbers
    #[arg(short = 'i', long)]
    pub inode: bool,
    /// Subdirectories too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// By time of the last change of the contents, newest first
    #[arg(short = 't', conflicts_with = "size")]
    pub time: bool,
    /// By size, largest first
    #[arg(short = 'S')]
    pub size: bool,
    /// In reverse order
    #[arg(short = 'r', long)]
    pub reverse: bool,
    /// One name a line (the default; accepted for compatibility)
    #[arg(short = '1')]
    pub one: bool,
    /// As -l: owners are always numbers
    #[arg(short = 'n', long = "numeric-uid-gid")]
    pub numeric: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// IMAGE or IMAGE:/path
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct TreeArgs {
    /// Levels to descend
    #[arg(short = 'L', long, value_name = "LEVELS", value_parser = parse_number::<usize>)]
    pub depth: Option<usize>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// IMAGE or IMAGE:/path
    pub path: OsString,
}

#[derive(Args, Debug)]
pub struct CatArgs {
    #[command(flatten)]
    pub verbose: Verbose,
    /// IMAGE:/path
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct CpArgs {
    /// Directories with all below them
    #[arg(short = 'r', short_alias = 'R', long)]
    pub recursive: bool,
    /// Keep owner, mode, times, links and attributes; implies -r
    #[arg(short = 'a', long)]
    pub archive: bool,
    /// Keep owner, mode and times
    #[arg(short = 'p', long)]
    pub preserve: bool,
    /// Never overwrite
    #[arg(short = 'n', long, overrides_with = "force")]
    pub no_clobber: bool,
    /// Remove a file of the host that cannot be opened for writing, and make it anew
    #[arg(short = 'f', long, overrides_with = "no_clobber")]
    pub force: bool,
    /// Print each file that is copied
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Owner of what is copied into an image
    #[arg(long, value_name = "UID:GID")]
    pub owner: Option<String>,
    /// Take these operands for paths of the host, whatever they look like
    #[arg(long, value_name = "SIDE", hide = true)]
    pub local: Option<LocalSide>,
    /// Sources, then the destination: local paths, IMAGE:/path, or - for standard input or output
    #[arg(required = true, num_args = 2..)]
    pub paths: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct MvArgs {
    /// Never overwrite
    #[arg(short = 'n', long, overrides_with = "force")]
    pub no_clobber: bool,
    /// Overwrite without asking (always so; undoes an earlier -n)
    #[arg(short = 'f', long, overrides_with = "no_clobber")]
    pub force: bool,
    /// Print each file that is moved
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Sources, then the destination, all IMAGE:/path of one image
    #[arg(required = true, num_args = 2..)]
    pub paths: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct RmArgs {
    /// Directories with all below them
    #[arg(short = 'r', short_alias = 'R', long)]
    pub recursive: bool,
    /// No error for names that are not there
    #[arg(short = 'f', long)]
    pub force: bool,
    /// Empty directories too
    #[arg(short = 'd', long)]
    pub dir: bool,
    /// IMAGE:/path
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct MkdirArgs {
    /// Parents as needed, no error when it exists
    #[arg(short = 'p', long)]
    pub parents: bool,
    /// Permission bits, octal
    #[arg(short = 'm', long, value_name = "MODE", default_value = "755")]
    pub mode: String,
    /// IMAGE:/path
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct LnArgs {
    /// Symbolic
    #[arg(short = 's', long)]
    pub symbolic: bool,
    /// Replace what is there
    #[arg(short = 'f', long)]
    pub force: bool,
    /// What the link names: IMAGE:/path, or any text with -s
    pub target: OsString,
    /// IMAGE:/path of the link
    pub link: OsString,
}

#[derive(Args, Debug)]
pub struct TouchArgs {
    /// Make no files
    #[arg(short = 'c', long)]
    pub no_create: bool,
    /// The access time only
    #[arg(short = 'a')]
    pub access: bool,
    /// The time of the last change of the contents only
    #[arg(short = 'm')]
    pub modification: bool,
    /// Set this time and not the current one: @SECONDS since 1970, or 2026-11-23T12:30:00Z (UTC)
    #[arg(short = 'd', long, value_name = "TIME", allow_hyphen_values = true)]
    pub date: Option<String>,
    /// Symlinks themselves, not their targets
    #[arg(long, visible_alias = "no-dereference")]
    pub symlinks: bool,
    /// IMAGE:/path
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}

/// What quota counts by.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaOf {
    /// Users
    User,
    /// Groups
    Group,
    /// Projects
    Project,
}

#[derive(Args, Debug)]
pub struct QuotaArgs {
    /// Bytes that may be exceeded for a while; 0 is no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "id")]
    pub soft: Option<u64>,
    /// Bytes that are never exceeded; 0 is no limit
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "id")]
    pub hard: Option<u64>,
    /// Inodes that may be exceeded for a while; 0 is no limit
    #[arg(long, value_name = "COUNT", requires = "id", value_parser = parse_number::<u64>)]
    pub inodes_soft: Option<u64>,
    /// Inodes that are never exceeded; 0 is no limit
    #[arg(long, value_name = "COUNT", requires = "id", value_parser = parse_number::<u64>)]
    pub inodes_hard: Option<u64>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Image file or block device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub image: OsString,
    /// Only this kind; all that the volume counts by without it
    pub of: Option<QuotaOf>,
    /// Only this user, group or project (a number)
    #[arg(value_parser = parse_id)]
    pub id: Option<u32>,
}

#[derive(Args, Debug)]
pub struct PathsArgs {
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// IMAGE:/path
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct ChmodArgs {
    /// Directories with all below them
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Octal mode, or symbolic as chmod(1) takes it: u+x,go-w
    #[arg(allow_hyphen_values = true)]
    pub mode: String,
    /// IMAGE:/path
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct ChownArgs {
    /// Directories with all below them
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Symlinks themselves, not their targets
    #[arg(long, visible_alias = "no-dereference")]
    pub symlinks: bool,
    /// UID, UID:GID or :GID (numbers: names of this host mean nothing in an image)
    pub owner: String,
    /// IMAGE:/path
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct GetxattrArgs {
    /// Only this attribute (full name, like user.comment)
    #[arg(short = 'n', long, value_name = "NAME")]
    pub name: Option<OsString>,
    /// Symlinks themselves, not their targets
    #[arg(long, visible_alias = "no-dereference")]
    pub symlinks: bool,
    /// Report as JSON (values in base64 when they are not text)
    #[arg(long)]
    pub json: bool,
    /// IMAGE:/path
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct SetxattrArgs {
    /// Attribute to set (full name, like user.comment)
    #[arg(
        short = 'n',
        long,
        value_name = "NAME",
        required_unless_present = "remove"
    )]
    pub name: Option<OsString>,
    /// Its value: text, 0x… (hex) or 0s… (base64)
    #[arg(short = 'v', long, value_name = "VALUE", default_value = "")]
    pub value: OsString,
    /// Attribute to remove
    #[arg(short = 'x', long, value_name = "NAME", conflicts_with_all = ["name", "value"])]
    pub remove: Option<OsString>,
    /// Symlinks themselves, not their targets
    #[arg(long, visible_alias = "no-dereference")]
    pub symlinks: bool,
    /// IMAGE:/path
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct DuArgs {
    #[command(flatten)]
    pub sizes: HumanReadable,
    /// Only a total for each argument
    #[arg(short = 's', long)]
    pub summarize: bool,
    /// Sizes as files show them, not the space they take
    #[arg(long)]
    pub apparent_size: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// IMAGE or IMAGE:/path
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}

/// `df` always prints sizes with units.
#[derive(Args, Debug)]
pub struct DfArgs {
    #[command(flatten)]
    pub sizes: HumanReadable,
    /// Report as JSON: an object for one image, a list for several
    #[arg(long)]
    pub json: bool,
    /// Image files and block devices, or directories of mounted volumes
    #[arg(required = true, value_name = "IMAGE", value_hint = ValueHint::AnyPath)]
    pub images: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct ImageArgs {
    #[command(flatten)]
    pub verbose: Verbose,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Image file or block device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub image: PathBuf,
}

#[derive(Args, Debug)]
pub struct ExportArgs {
    #[command(flatten)]
    pub verbose: Verbose,
    /// IMAGE or IMAGE:/path
    pub path: OsString,
    /// Write here and not to standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Change nothing; report only (the default)
    #[arg(short = 'n', conflicts_with_all = ["preen", "yes"])]
    pub no: bool,
    /// Repair what can be repaired without a decision; -a is the same
    #[arg(short = 'p', short_alias = 'a', conflicts_with = "yes")]
    pub preen: bool,
    /// Repair everything
    #[arg(short = 'y')]
    pub yes: bool,
    /// Check although the volume is marked clean (always done; accepted for fsck's sake)
    #[arg(short = 'f')]
    pub force: bool,
    /// Print a summary of the volume's contents, and missing parts of the sandbox
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Draw what each block holds into this file (.html), and link the issues to their places in it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub map: Option<PathBuf>,
    /// Use the superblock copy at this block (ext4)
    #[arg(short = 'b', value_name = "BLOCK", value_parser = parse_number::<u64>)]
    pub superblock: Option<u64>,
    /// With -y: give up what fsync wrote since the last checkpoint, where a mount refuses to recover it (f2fs)
    #[arg(long, requires = "yes")]
    pub discard_fsynced: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Image file or block device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub image: PathBuf,
}

/// How statistics are printed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsFormat {
    /// For people
    Table,
    /// For programs
    Json,
    /// Prometheus's text format
    Prometheus,
}

#[derive(Args, Debug)]
pub struct StatsArgs {
    /// How to print
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<StatsFormat>,
    /// Report as JSON, the same as --format json; with --watch one line each time
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Print again and again, this many seconds apart; the table then has rates
    #[arg(short = 'w', long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub watch: Option<f64>,
    /// With --watch, end after this many times
    #[arg(short = 'n', long, value_name = "TIMES", requires = "watch", value_parser = parse_number::<u64>)]
    pub count: Option<u64>,
    /// Lines without any event, too
    #[arg(short = 'a', long)]
    pub all: bool,
    /// Directory the volume is mounted on
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
}

#[derive(Args, Debug)]
pub struct TuneArgs {
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Directory the volume is mounted on
    #[arg(value_hint = ValueHint::DirPath)]
    pub mountpoint: PathBuf,
    /// Tunables to change, or only to show; without any, all are listed
    #[arg(value_name = "NAME[=VALUE]")]
    pub settings: Vec<String>,
}

#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Which shell
    pub shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
pub struct ManArgs {
    /// Directory to write to
    pub directory: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
