//! Arguments of `disk`.

use super::{ImageArgs, parse_size};
use blockwright::disk::{Architecture, container::Format};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use std::path::{Path, PathBuf};

/// What to do with a disk.
#[derive(Subcommand, Debug)]
pub enum DiskCommand {
    /// List the partitions of a disk, and what is on them
    Ls(ImageArgs),
    /// Write a disk, or a partition of one, to a new file in another format
    Convert(ConvertArgs),
    /// Write a partition to a new raw file
    Extract(ExtractArgs),
    /// Make a new disk with partitions from directories, archives and images
    Create(CreateArgs),
    /// Add a partition in the free room of a disk
    Add(AddArgs),
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
    /// Fixed VHD: the disk's bytes and a footer
    VhdFixed,
}

impl DiskFormat {
    /// The format that a file's name asks for.
    pub fn of_name(path: &Path) -> Self {
        match path.extension().and_then(std::ffi::OsStr::to_str) {
            Some("qcow2") => DiskFormat::Qcow2,
            Some("simg") => DiskFormat::Simg,
            Some("vhd") => DiskFormat::Vhd,
            _ => DiskFormat::Raw,
        }
    }

    /// As the library has it.
    pub fn container(self) -> Format {
        match self {
            DiskFormat::Raw => Format::Raw,
            DiskFormat::Qcow2 => Format::Qcow2,
            DiskFormat::Simg => Format::Simg,
            DiskFormat::Vhd => Format::Vhd,
            DiskFormat::VhdFixed => Format::VhdFixed,
        }
    }
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
pub struct CreateArgs {
    /// New file
    #[arg(short = 'o', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Format to make; without it, as the new file's name ends: .qcow2, .simg, .vhd; otherwise raw
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<DiskFormat>,
    /// Make a GUID partition table, with its backup. This is the default
    #[arg(long, conflicts_with = "mbr")]
    pub gpt: bool,
    /// Make a master boot record, with at most 59 partitions. When there are more than four, those from the fourth on are logical
    #[arg(long)]
    pub mbr: bool,
    /// Size of the disk; without it, as large as the partitions need
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Processor that a partition with the name `root` is for: x86_64, x86, aarch64, arm, riscv64. Without it this machine's
    #[arg(long, value_name = "ARCH", value_parser = parse_architecture)]
    pub arch: Option<Architecture>,
    /// No progress bar and no summary
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Partitions in their order: NAME=SOURCE:TYPE[:SIZE]. SOURCE is a directory, a tar file, oci:DIR[:TAG], docker-archive:FILE[:NAME], - for
    /// standard input, or empty. TYPE is fat32, ext2, ext3, ext4, f2fs, swap or raw (SOURCE is an image then). SIZE is a size, `auto` for the
    /// smallest that fits, `auto+SIZE` for so much more, or `fill` for the rest of the disk
    #[arg(value_name = "NAME=SOURCE:TYPE[:SIZE]", required = true, value_parser = PartSpec::parse)]
    pub parts: Vec<PartSpec>,
}

#[derive(Args, Debug)]
pub struct AddArgs {
    /// No progress bar and no summary
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Image file or block device with a table of partitions
    #[arg(value_hint = ValueHint::AnyPath)]
    pub image: PathBuf,
    /// The partition, as `disk create` takes it; `fill` takes the largest free room
    #[arg(value_name = "NAME=SOURCE:TYPE[:SIZE]", value_parser = PartSpec::parse)]
    pub part: PartSpec,
}

/// What a partition holds.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartType {
    Fat32,
    Ext2,
    Ext3,
    Ext4,
    F2fs,
    Swap,
    Raw,
}

/// How large a partition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartSize {
    Bytes(u64),
    /// The smallest that fits, with this many bytes free.
    Auto(u64),
    /// The rest of the disk.
    Fill,
}

/// A partition to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartSpec {
    pub name: String,
    /// Empty for none.
    pub source: PathBuf,
    pub kind: PartType,
    pub size: Option<PartSize>,
}

impl PartSpec {
    fn parse(text: &str) -> Result<Self, String> {
        let (name, rest) = text
            .split_once('=')
            .ok_or("a name and `=` are missing: NAME=SOURCE:TYPE[:SIZE]")?;
        let kind = |text: &str| PartType::from_str(text, false).ok();
        // A source may have colons: what counts is behind the last ones.
        let (before, last) = rest
            .rsplit_once(':')
            .ok_or("a type is missing: NAME=SOURCE:TYPE[:SIZE]")?;
        let (source, kind, size) = match (kind(last), before.rsplit_once(':')) {
            (Some(kind), _) => (before, kind, None),
            (None, Some((source, middle))) if kind(middle).is_some() => {
                let size = match last.split_once('+') {
                    _ if last == "auto" => PartSize::Auto(0),
                    _ if last == "fill" => PartSize::Fill,
                    Some(("auto", free)) => PartSize::Auto(parse_size(free)?),
                    _ => PartSize::Bytes(parse_size(last)?),
                };
                (source, kind(middle).unwrap_or(PartType::Raw), Some(size))
            }
            (None, middle) => {
                // Behind a type is a size, so that what stands before a size was meant as one.
                let wrong = match middle {
                    Some((_, middle)) if parse_size(last).is_ok() => middle,
                    _ => last,
                };
                return Err(format!(
                    "`{wrong}` is no type: fat32, ext2, ext3, ext4, f2fs, swap and raw are"
                ));
            }
        };
        let spec = PartSpec {
            name: name.to_owned(),
            source: source.into(),
            kind,
            size,
        };
        match (spec.kind, source.is_empty(), size) {
            (PartType::Raw, true, _) => Err("a raw partition needs an image".to_owned()),
            (PartType::Raw, _, Some(PartSize::Auto(1..) | PartSize::Fill)) => {
                Err("a raw partition is as large as its image, or has a size".to_owned())
            }
            (PartType::Swap, false, _) => Err("swap space has no source".to_owned()),
            (_, true, Some(PartSize::Auto(_))) if spec.kind == PartType::Swap => {
                Err("swap space needs a size, or `fill`".to_owned())
            }
            _ => Ok(spec),
        }
    }
}

fn parse_architecture(text: &str) -> Result<Architecture, String> {
    Architecture::parse(text)
        .ok_or_else(|| "x86_64, x86, aarch64, arm and riscv64 are known".to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let parsed = |text| {
            let spec = PartSpec::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            (
                spec.name,
                spec.source.display().to_string(),
                spec.kind,
                spec.size,
            )
        };
        let is =
            |name: &str, source: &str, kind, size| (name.to_owned(), source.to_owned(), kind, size);
        assert_eq!(
            parsed("esp=boot/:fat32"),
            is("esp", "boot/", PartType::Fat32, None)
        );
        assert_eq!(
            parsed("root=a:b.tar:ext4:auto+1M"),
            is(
                "root",
                "a:b.tar",
                PartType::Ext4,
                Some(PartSize::Auto(1 << 20))
            )
        );
        assert_eq!(
            parsed("root=oci:image:latest:ext4:fill"),
            is(
                "root",
                "oci:image:latest",
                PartType::Ext4,
                Some(PartSize::Fill)
            )
        );
        assert_eq!(
            parsed("home=:f2fs:2G"),
            is("home", "", PartType::F2fs, Some(PartSize::Bytes(2 << 30)))
        );
        assert_eq!(parsed("x=y=z:raw"), is("x", "y=z", PartType::Raw, None));
        for bad in [
            "root",
            "root=dir",
            "root=dir:xfs",
            "a=:raw",
            "a=d:swap:1M",
            "a=d:ext4:much",
            "a=:swap:auto",
            "a=i:raw:fill",
        ] {
            assert!(PartSpec::parse(bad).is_err(), "{bad}");
        }
    }
}
