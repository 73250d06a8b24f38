//! The arguments of `mkfs`.

use super::{Verbose, parse_number, parse_size};
use clap::{Args, ValueEnum, ValueHint};
use std::path::{Path, PathBuf};

/// Which format to make.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Extents, journal, checksums
    Ext4,
    /// ext4's code with ext3's features
    Ext3,
    /// ext4's code with ext2's features
    Ext2,
    /// Flash-friendly: log-structured
    F2fs,
}

/// What applies to the files of all sources.
#[derive(Args, Debug)]
pub struct EntryArgs {
    /// Leave out the files that match, and directories with all in them: a name (*.o), or with a slash a path from the
    /// volume's root (/var/cache/**). Repeat for several
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Protect the regular files that match by fs-verity: patterns as for --exclude. Repeat for several
    #[arg(long, value_name = "GLOB")]
    pub fsverity: Vec<String>,
    /// Give users and groups other numbers: 0:1000, or ranges as 0-65535:100000; u: or g: in front for users or groups
    /// only. The first rule with the number counts
    #[arg(long, value_name = "FROM:TO", value_delimiter = ',')]
    pub owner_map: Vec<String>,
    /// Give all files this time of their last change, in seconds since 1970
    #[arg(long, value_name = "SECONDS|@SECONDS", allow_hyphen_values = true)]
    pub mtime: Option<String>,
    /// Give the time of --mtime to younger files only
    #[arg(long, requires = "mtime")]
    pub clamp_mtime: bool,
    /// SELinux labels by path: a file_contexts of a policy (FILE.homedirs, .local, .subs and .subs_dist count too)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file_contexts: Option<PathBuf>,
    /// Owners, modes and capabilities by path: an fs_config of Android
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub fs_config: Option<PathBuf>,
    /// Where the volume will be mounted, for the paths in --file-contexts and --fs-config
    #[arg(long, value_name = "PATH")]
    pub mount_point: Option<String>,
    /// Source: a listing of files as composefs has it (composefs-info dump). Lies over -d and below --from
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub dumpfile: Vec<PathBuf>,
    /// Directory of the files that --dumpfile names as payloads; without it the listing's own
    #[arg(long, value_name = "DIR", requires = "dumpfile", value_hint = ValueHint::DirPath)]
    pub objects: Option<PathBuf>,
}

impl MkfsArgs {
    /// Whether a journal is to be made, and no volume.
    pub fn makes_journal(&self) -> bool {
        self.features.iter().any(|name| name == "journal_dev")
    }

    /// The device that `-J device=` names.
    pub fn journal_path(&self) -> Option<&Path> {
        let text = self.journal_size.as_deref()?;
        text.strip_prefix("device=").map(Path::new)
    }
}

#[derive(Args, Debug)]
pub struct MkfsArgs {
    #[command(flatten)]
    pub verbose: Verbose,
    /// Format to make
    #[arg(
        short = 't',
        long = "type",
        value_name = "FORMAT",
        default_value = "ext4"
    )]
    pub format: Format,
    /// Block size in bytes: 1024, 2048, 4096 or 65536; f2fs: 4096
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = parse_size)]
    pub block_size: Option<u64>,
    /// Inode size in bytes: 128 to 1024
    #[arg(short = 'I', long, value_name = "BYTES", value_parser = parse_size)]
    pub inode_size: Option<u64>,
    /// One inode for this many bytes of volume
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = parse_size)]
    pub bytes_per_inode: Option<u64>,
    /// Lay the volume over an earlier build of it (ext2, ext3, ext4): what both have keeps its inode numbers and blocks, so that their images share chunks
    /// (`blockwright chunk`). An image, a partition of one, or chunks:INDEX?store=STORE. Numbers above four times what the sources need are not kept, and
    /// --size auto takes over its number of inodes only up to four times what is needed
    #[arg(long, value_name = "IMAGE", value_hint = ValueHint::AnyPath)]
    pub base: Option<PathBuf>,
    /// Number of inodes
    #[arg(short = 'N', long, value_name = "COUNT", value_parser = parse_number::<u64>)]
    pub inodes: Option<u64>,
    /// Percentage of blocks reserved for root
    #[arg(short = 'm', long, value_name = "PERCENT", value_parser = parse_number::<f64>)]
    pub reserved_percent: Option<f64>,
    /// Volume label, at most 16 bytes; f2fs: 511 UTF-16 units
    #[arg(short = 'L', long, value_name = "LABEL")]
    pub label: Option<String>,
    /// Volume UUID; without it random, or with SOURCE_DATE_EPOCH derived from the input
    #[arg(short = 'U', long, value_name = "UUID")]
    pub uuid: Option<String>,
    /// Features over the defaults, as mke2fs or mkfs.f2fs names them: `quota,^has_journal`; `none` clears all. `journal_dev` makes a journal for other volumes,
    /// and no volume
    #[arg(
        short = 'O',
        long = "features",
        value_name = "FEATURES",
        value_delimiter = ','
    )]
    pub features: Vec<String>,
    /// Journal size in bytes with K, M or G, or as mke2fs takes it (size=MIB); chosen by the volume's size when not given. device=DEVICE, as --journal DEVICE,
    /// puts the journal on a device that -O journal_dev has made
    #[arg(short = 'J', long, value_name = "SIZE|device=DEVICE")]
    pub journal_size: Option<String>,
    /// Size of the volume: bytes, or a number with K, M, G or T (1.5G), or `auto` for the smallest that fits
    #[arg(long, value_name = "SIZE|auto")]
    pub size: Option<String>,
    /// Free space to add with `--size auto`
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub free: u64,
    /// Directory whose contents go into the volume, as mke2fs takes it: the same as --from
    #[arg(short = 'd', value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: Vec<PathBuf>,
    /// Extended options, as mke2fs takes them: root_owner[=UID:GID], hash_seed=UUID; what only speeds mke2fs up
    /// (lazy_itable_init, lazy_journal_init, discard, nodiscard, assume_storage_prezeroed) is accepted and changes nothing
    #[arg(short = 'E', value_name = "OPTIONS", value_delimiter = ',')]
    pub extended: Vec<String>,
    /// Source: a directory, a tar file (also .gz, .zst, .xz), or - for a tar stream on standard input; or a container
    /// image: oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME] (FILE may be -). Repeat to layer
    #[arg(long, value_name = "DIR|TAR|IMAGE|-", value_hint = ValueHint::AnyPath)]
    pub from: Vec<PathBuf>,
    /// Platform of the container image, where there are several: os/architecture[/variant], as linux/arm64. Without it
    /// this machine's
    #[arg(long, value_name = "PLATFORM")]
    pub platform: Option<String>,
    /// Put the container image's configuration into the volume, as /.blockwright/config.json
    #[arg(long)]
    pub keep_config: bool,
    /// Make a dm-verity hash tree behind the volume, and print its root hash. SALT in hexadecimal; without it one that
    /// follows from the UUID
    #[arg(long, value_name = "SALT", num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    pub verity: Option<String>,
    /// Put the hash tree into this file, not behind the volume
    #[arg(long, value_name = "FILE", requires = "verity", value_hint = ValueHint::FilePath)]
    pub verity_tree: Option<PathBuf>,
    /// Owner of everything that comes from directories, and of the root directory if no source sets its owner
    #[arg(long, value_name = "UID:GID")]
    pub owner: Option<String>,
    #[command(flatten)]
    pub entries: EntryArgs,
    /// Overwrite an image that holds a file system
    #[arg(short = 'F', long)]
    pub force: bool,
    /// No progress bar and no summary
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Image file (made if missing) or block device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub image: PathBuf,
    /// Size, as mke2fs takes it: the same as --size
    #[arg(value_name = "SIZE", conflicts_with = "size")]
    pub fs_size: Option<String>,
}
