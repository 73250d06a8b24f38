//! `-o` of mount: ours, the kernel's, and what mount(8) and fstab put there for others.

use crate::args::parse_size;
use crate::failure::{Failure, Result};
use blockwright::{Format, VolumeOptions};
use blockwright_f2fs::options::{ActiveLogs, Checkpointing, Unusable};
use blockwright_f2fs::{BackgroundCleaning, FsyncMode, Mode as F2fsMode};
use blockwright_fuse::{CpuLatency, FuseOptions, PermissionChecks, TransportChoice, Visibility};
use blockwright_ondisk::ext4::superblock::ErrorBehaviour;
use blockwright_vfs::AtimeMode;
use std::path::PathBuf;
use std::time::Duration;

/// How a volume is to be mounted.
pub struct MountSettings {
    /// How it is opened.
    pub volume: VolumeOptions,
    /// How the kernel sees it.
    pub fuse: FuseOptions,
    /// Where it begins in the image, in bytes.
    pub offset: u64,
    /// The file of changes over the image.
    pub overlay: Option<PathBuf>,
    /// Where device requests are recorded to, and how large that file may become.
    pub trace: Option<PathBuf>,
    pub trace_max: u64,
    /// The options say whether the kernel or the server checks permissions.
    permissions_given: bool,
    /// What was said that only one format knows.
    particular: Vec<(String, Format)>,
}

/// How long times that changed in memory only may stay there with `lazytime`: as long as in the kernel. A sync writes them
/// earlier, and so does whatever else is written of the inode or ends its stay in memory.
const LAZY_TIME: Duration = Duration::from_secs(86_400);

/// The format that alone knows an option.
fn format_of(name: &str) -> Option<Format> {
    match name {
        "nodelalloc" | "sb" | "noblock_validity" => Some(Format::Ext4),
        "mode"
        | "active_logs"
        | "background_gc"
        | "checkpoint"
        | "checkpoint_merge"
        | "nocheckpoint_merge"
        | "ckpt_thread_ioprio"
        | "serialized_dio_pages"
        | "fsync_mode" => Some(Format::F2fs),
        _ => None,
    }
}

/// Options that concern others (fstab's readers, mount(8)), ask for what is always so, or only advise.
pub const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "_netdev",
    "nofail",
    "loop",
    "async",
    "diratime",
    "nodiratime",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "acl",
    "user_xattr",
    "mand",
    "nomand",
    "big_writes",
    "nonempty",
    "auto_unmount",
];

fn number(name: &str, value: Option<&str>) -> Result<u64> {
    need(name, value)?
        .parse()
        .map_err(|_| Failure::usage(format_args!("mount option {name}= needs a number")))
}

fn need<'v>(name: &str, value: Option<&'v str>) -> Result<&'v str> {
    value
        .filter(|v| !v.is_empty())
        .ok_or_else(|| Failure::usage(format_args!("mount option {name}= needs a value")))
}

fn size(name: &str, value: Option<&str>) -> Result<u64> {
    parse_size(need(name, value)?)
        .map_err(|e| Failure::usage(format_args!("mount option {name}=: {e}")))
}

fn id(name: &str, value: Option<&str>) -> Result<u32> {
    u32::try_from(number(name, value)?)
        .ok()
        .filter(|id| *id != u32::MAX)
        .ok_or_else(|| Failure::usage(format_args!("mount option {name}= is out of range")))
}

/// The value of an option that takes one of these words.
fn one_of<T: Copy>(name: &str, value: Option<&str>, words: &[(&str, T)]) -> Result<T> {
    let value = need(name, value)?;
    let found = words.iter().find(|(word, _)| *word == value);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let known = known.join(", ");
        Failure::usage(format_args!("mount option {name}={value}: one of {known}"))
    })
}

/// `disable`, `disable:BLOCKS` or `disable:PERCENT%`.
fn disabled(text: &str) -> Result<Checkpointing> {
    let bad = || {
        Failure::usage(format_args!(
            "mount option checkpoint={text}: enable, merge, disable, disable:BLOCKS or disable:PERCENT%"
        ))
    };
    let amount = match text.strip_prefix("disable").ok_or_else(bad)? {
        "" => "0",
        rest => rest.strip_prefix(':').ok_or_else(bad)?,
    };
    let unusable_max = match amount.strip_suffix('%') {
        Some(percent) => {
            Unusable::Percent(percent.parse().ok().filter(|p| *p <= 100).ok_or_else(bad)?)
        }
        None => Unusable::Blocks(amount.parse().map_err(|_| bad())?),
    };
    Ok(Checkpointing::Disabled { unusable_max })
}

impl MountSettings {
    /// From the options, already split at commas; the last of contradicting ones counts.
    ///
    /// # Errors
    /// Unknown options, and values that are invalid.
    pub fn parse(options: &[String]) -> Result<Self> {
        let mut settings = MountSettings {
            volume: VolumeOptions::default(),
            fuse: FuseOptions::default(),
            offset: 0,
            overlay: None,
            trace: None,
            trace_max: 256 << 20,
            permissions_given: false,
            particular: Vec::new(),
        };
        for option in options.iter().flat_map(|o| o.split(',')) {
            let option = option.trim();
            if option.is_empty() || option.starts_with("x-") || option.starts_with("X-") {
                continue;
            }
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            settings.apply(name, value)?;
            if let Some(format) = format_of(name) {
                settings.particular.push((name.to_owned(), format));
            }
        }
        let (read_only, no_replay) = (
            settings.volume.is_read_only(),
            settings.volume.parts.ext4.no_journal_replay,
        );
        if no_replay && !read_only {
            return Err(Failure::usage("mount option norecovery needs ro"));
        }
        let f2fs = &settings.volume.parts.f2fs;
        if f2fs.checkpoint != Checkpointing::Enabled && f2fs.checkpoint_merge == Some(true) {
            return Err(Failure::usage(
                "mount options checkpoint=disable and checkpoint_merge cannot be used together",
            ));
        }
        settings.fuse.read_only = read_only;
        Ok(settings)
    }

    /// Refuses what a volume of this format does not know: it would be taken for done.
    ///
    /// # Errors
    /// With the first such option named.
    pub fn suit(&self, format: Format) -> Result<()> {
        let name = |format| match format {
            Format::Ext4 => "ext4",
            Format::F2fs => "f2fs",
            _ => "another format",
        };
        match self.particular.iter().find(|(_, of)| *of != format) {
            None => Ok(()),
            Some((option, of)) => Err(Failure::usage(format_args!(
                "mount option {option} is for {}; this is {}",
                name(*of),
                name(format)
            ))),
        }
    }

    /// Decides whether the kernel or the server checks permissions, unless the options do. `by_root`: root mounts.
    ///
    /// The kernel, as a rule. But to check it wants the directory's attributes, which it throws away with
    /// every change of the directory: a GETATTR per file made or removed. Where only root has access
    /// (no `allow_other`) the volume's own checks let through what the kernel's would.
    pub fn choose_permissions(&mut self, by_root: bool) {
        let private = self.fuse.visibility == Visibility::Owner;
        let mapped = self.fuse.uid.is_some() || self.fuse.gid.is_some();
        if by_root && private && !mapped && !self.permissions_given {
            self.fuse.permissions = PermissionChecks::Volume;
        }
    }

    fn apply(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        let MountSettings {
            volume,
            fuse,
            offset,
            overlay,
            trace,
            trace_max,
            permissions_given,
            particular: _,
        } = self;
        if matches!(name, "default_permissions" | "volume_permissions") {
            *permissions_given = true;
        }
        match (name, value) {
            ("ro" | "rw", None) => *volume = std::mem::take(volume).read_only(name == "ro"),
            ("suid", None) => fuse.allow_suid = true,
            ("nosuid", None) => fuse.allow_suid = false,
            ("dev", None) => fuse.allow_dev = true,
            ("nodev", None) => fuse.allow_dev = false,
            ("exec", None) => fuse.allow_exec = true,
            ("noexec", None) => fuse.allow_exec = false,
            ("atime" | "relatime", None) => {
                volume.parts.vfs.atime = AtimeMode::Relative;
                fuse.no_atime = false;
            }
            ("strictatime", None) => {
                volume.parts.vfs.atime = AtimeMode::Strict;
                fuse.no_atime = false;
            }
            ("noatime", None) => {
                volume.parts.vfs.atime = AtimeMode::None;
                fuse.no_atime = true;
            }
            // Times are kept in memory by default, too, but not for as long.
            ("lazytime", None) => volume.parts.vfs.lazy_time_interval = LAZY_TIME,
            ("nolazytime", None) => {
                let usual = VolumeOptions::default().parts.vfs.lazy_time_interval;
                volume.parts.vfs.lazy_time_interval = usual;
            }
            ("direct_io", None) => fuse.direct_io = true,
            ("writethrough", None) => fuse.writeback_cache = false,
            ("noxattr", None) => fuse.xattrs = false,
            ("xattr", None) => fuse.xattrs = true,
            ("allow_other", None) => fuse.visibility = Visibility::Everyone,
            ("default_permissions", None) => fuse.permissions = PermissionChecks::Kernel,
            ("volume_permissions", None) => fuse.permissions = PermissionChecks::Volume,
            ("uid", value) => fuse.uid = Some(id(name, value)?),
            ("gid", value) => fuse.gid = Some(id(name, value)?),
            ("fsname", value) => fuse.fsname = need(name, value)?.to_owned(),
            ("subtype", Some(_)) => {}
            ("max_read", value) => {
                let bytes = u32::try_from(size(name, value)?).unwrap_or(u32::MAX);
                fuse.max_read = Some(bytes);
            }
            ("max_write", value) => {
                fuse.max_write = u32::try_from(size(name, value)?).unwrap_or(u32::MAX);
            }
            ("commit", value) => {
                // 0 is the default, as for the kernel's ext4.
                let seconds = match number(name, value)? {
                    0 => 5,
                    seconds => seconds,
                };
                let interval = Duration::from_secs(seconds.min(86_400));
                volume.parts.vfs.commit_interval = interval;
                volume.parts.vfs.writeback_interval = interval;
                volume.parts.ext4.commit_interval = interval;
                volume.parts.f2fs.commit_interval = interval;
            }
            ("cache", value) => volume.parts.vfs.cache_bytes = size(name, value)?,
            ("metadata_cache", value) => {
                volume.parts.ext4.metadata_cache_bytes = size(name, value)?;
                volume.parts.f2fs.metadata_cache_bytes = size(name, value)?;
            }
            ("dirty", value) => volume.parts.vfs.dirty_bytes_max = size(name, value)?,
            ("dirty_background", value) => {
                volume.parts.vfs.dirty_bytes_background = size(name, value)?;
            }
            ("readahead", value) => {
                let bytes = size(name, value)?;
                volume.parts.vfs.readahead_bytes = bytes;
                fuse.read_ahead_kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
            }
            ("read_past", value) => volume.parts.vfs.read_past_bytes = size(name, value)?,
            ("write_past", value) => volume.parts.vfs.write_past_bytes = size(name, value)?,
            ("errors", value) => {
                let words = [
                    ("continue", ErrorBehaviour::Continue),
                    ("remount-ro", ErrorBehaviour::RemountReadOnly),
                    ("panic", ErrorBehaviour::Panic),
                ];
                volume.parts.ext4.errors = Some(one_of(name, value, &words)?);
            }
            ("data", Some("ordered")) => {}
            ("nodelalloc", None) => volume.parts.vfs.delayed_allocation = false,
            ("delalloc", None) => volume.parts.vfs.delayed_allocation = true,
            // Freed segments of f2fs; ext4's free blocks are discarded by fstrim.
            ("discard", None) => volume.parts.f2fs.discard = true,
            ("nodiscard", None) => volume.parts.f2fs.discard = false,
            ("mode", value) => {
                let words = [("adaptive", F2fsMode::Adaptive), ("lfs", F2fsMode::Lfs)];
                volume.parts.f2fs.mode = one_of(name, value, &words)?;
            }
            ("background_gc", value) => {
                let words = [
                    ("on", BackgroundCleaning::On),
                    ("off", BackgroundCleaning::Off),
                    ("sync", BackgroundCleaning::Sync),
                ];
                volume.parts.f2fs.background_cleaning = one_of(name, value, &words)?;
            }
            // f2fs's checkpoints and allocation
            ("checkpoint_merge", None) | ("checkpoint", Some("merge")) => {
                volume.parts.f2fs.checkpoint_merge = Some(true);
            }
            ("nocheckpoint_merge", None) => volume.parts.f2fs.checkpoint_merge = Some(false),
            ("checkpoint", Some("enable")) => volume.parts.f2fs.checkpoint = Checkpointing::Enabled,
            ("checkpoint", Some(text)) => volume.parts.f2fs.checkpoint = disabled(text)?,
            ("ckpt_thread_ioprio", value) => {
                let level = number(name, value)?;
                if level > 7 {
                    return Err(Failure::usage(format_args!(
                        "mount option ckpt_thread_ioprio={level}: 0 (first) to 7"
                    )));
                }
                volume.parts.f2fs.ckpt_thread_ioprio = level as u8;
            }
            ("active_logs", value) => {
                let count = number(name, value)?;
                volume.parts.f2fs.active_logs = ActiveLogs::from_count(count).ok_or_else(|| {
                    Failure::usage(format_args!("mount option active_logs={count}: 2, 4 or 6"))
                })?;
            }
            ("serialized_dio_pages", value) => {
                volume.parts.f2fs.serialized_dio_pages = number(name, value)?.clamp(1, 1 << 20);
            }
            ("nobarrier", None) | ("barrier", Some("0")) => {
                volume.parts.ext4.barrier = false;
                volume.parts.f2fs.fsync_mode = FsyncMode::NoBarrier;
            }
            ("fsync_mode", value) => {
                let words = [
                    ("posix", FsyncMode::Posix),
                    ("strict", FsyncMode::Strict),
                    ("nobarrier", FsyncMode::NoBarrier),
                ];
                volume.parts.f2fs.fsync_mode = one_of(name, value, &words)?;
            }
            ("barrier", None | Some("1")) => {
                volume.parts.ext4.barrier = true;
                if volume.parts.f2fs.fsync_mode == FsyncMode::NoBarrier {
                    volume.parts.f2fs.fsync_mode = FsyncMode::default();
                }
            }
            ("norecovery" | "noload", None) => {
                volume.parts.ext4.no_journal_replay = true;
                volume.parts.f2fs.no_recovery = true;
            }
            ("noblock_validity", None) => volume.parts.ext4.block_validity = false,
            ("block_validity", None) => volume.parts.ext4.block_validity = true,
            ("overlay", value) => *overlay = Some(need(name, value)?.into()),
            ("trace", value) => *trace = Some(need(name, value)?.into()),
            ("trace_max", value) => *trace_max = size(name, value)?,
            ("offset", value) => *offset = size(name, value)?,
            ("sb", value) => volume.parts.ext4.superblock_1k = Some(number(name, value)?),
            ("threads", value) => {
                let threads = usize::try_from(number(name, value)?.clamp(1, 1024)).unwrap_or(1);
                fuse.threads_max = threads;
                fuse.threads_min = fuse.threads_min.min(threads);
            }
            ("transport", value) => {
                let words = [
                    ("auto", TransportChoice::Auto),
                    ("io_uring", TransportChoice::IoUring),
                    ("dev_fuse", TransportChoice::DevFuse),
                ];
                fuse.transport = one_of(name, value, &words)?;
            }
            ("cpu_latency", value) => {
                let words = [("auto", CpuLatency::Auto), ("off", CpuLatency::Off)];
                fuse.cpu_latency = one_of(name, value, &words)?;
            }
            ("comment", Some(_)) => {}
            (name, None) if IGNORED.contains(&name) => {}
            (name, value) => {
                let value = value.map(|v| format!("={v}")).unwrap_or_default();
                return Err(Failure::usage(format_args!(
                    "unknown mount option {name}{value}"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountSettings> {
        MountSettings::parse(&text.split(',').map(str::to_owned).collect::<Vec<_>>())
    }

    fn good(text: &str) -> MountSettings {
        parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn what_mount_and_fstab_say() {
        let s = good(
            "rw,suid,dev,exec,auto,nouser,async,_netdev,nofail,x-systemd.automount,X-mount.mkdir",
        );
        assert!(s.fuse.allow_suid && s.fuse.allow_dev && s.fuse.allow_exec && !s.fuse.read_only);
        let s = good("rw,ro,nosuid,noexec,noatime");
        assert!(
            s.volume.is_read_only() && s.fuse.read_only && !s.fuse.allow_suid && !s.fuse.allow_exec
        );
        assert!(s.fuse.no_atime && s.volume.parts.vfs.atime == AtimeMode::None);
        assert!(!good("ro,rw").volume.is_read_only());
        assert!(good("").fuse.uid.is_none());
    }

    #[test]
    fn values() {
        let s = good(
            "commit=7,cache=64M,dirty=8M,dirty_background=1M,readahead=256K,read_past=1M,write_past=8M,max_write=1M,threads=2,uid=5,gid=6",
        );
        assert_eq!(s.volume.parts.ext4.commit_interval, Duration::from_secs(7));
        assert_eq!(s.volume.parts.vfs.cache_bytes, 64 << 20);
        assert_eq!(s.fuse.read_ahead_kib, 256);
        assert_eq!(s.volume.parts.vfs.read_past_bytes, 1 << 20);
        assert_eq!(s.volume.parts.vfs.write_past_bytes, 8 << 20);
        assert_eq!(s.fuse.max_write, 1 << 20);
        assert_eq!((s.fuse.threads_min, s.fuse.threads_max), (2, 2));
        assert_eq!((s.fuse.uid, s.fuse.gid), (Some(5), Some(6)));
        let s = good("mode=lfs,background_gc=sync,nodiscard");
        assert_eq!(s.volume.parts.f2fs.mode, F2fsMode::Lfs);
        let cleaning = s.volume.parts.f2fs.background_cleaning;
        assert_eq!(cleaning, BackgroundCleaning::Sync);
        assert!(
            !s.volume.parts.f2fs.discard && good("nodiscard,discard").volume.parts.f2fs.discard
        );
        assert_eq!(good("").volume.parts.f2fs.fsync_mode, FsyncMode::Posix);
        let s = good("fsync_mode=nobarrier,fsync_mode=strict,norecovery,ro");
        assert_eq!(s.volume.parts.f2fs.fsync_mode, FsyncMode::Strict);
        assert!(s.volume.parts.f2fs.no_recovery);
        let s = good("errors=panic,offset=1M,sb=32768,nobarrier,nodelalloc,allow_other");
        assert_eq!(s.volume.parts.ext4.errors, Some(ErrorBehaviour::Panic));
        assert_eq!(
            (s.offset, s.volume.parts.ext4.superblock_1k),
            (1 << 20, Some(32768))
        );
        assert!(!s.volume.parts.ext4.barrier && !s.volume.parts.vfs.delayed_allocation);
        assert_eq!(s.fuse.visibility, Visibility::Everyone);
        assert_eq!(s.fuse.transport, TransportChoice::Auto);
        assert!(s.fuse.writeback_cache && !good("writethrough").fuse.writeback_cache);
        assert!(s.fuse.xattrs && !good("noxattr").fuse.xattrs);
        assert!(good("noxattr,xattr").fuse.xattrs);
        assert_eq!(s.fuse.cpu_latency, CpuLatency::Auto);
        assert_eq!(good("cpu_latency=off").fuse.cpu_latency, CpuLatency::Off);
        let s = good("transport=auto,transport=io_uring");
        assert_eq!(s.fuse.transport, TransportChoice::IoUring);
        assert_eq!(
            good("transport=dev_fuse").fuse.transport,
            TransportChoice::DevFuse
        );
    }

    /// The position that is the default counts, too, when it is said last.
    #[test]
    fn the_last_of_two_positions_counts() {
        let barriers = |text: &str| {
            let s = good(text);
            (s.volume.parts.ext4.barrier, s.volume.parts.f2fs.fsync_mode)
        };
        assert_eq!(barriers("nobarrier"), (false, FsyncMode::NoBarrier));
        for back in ["barrier", "barrier=1"] {
            let text = format!("nobarrier,{back}");
            assert_eq!(barriers(&text), (true, FsyncMode::Posix), "{text}");
            let text = format!("fsync_mode=strict,{back}");
            assert_eq!(barriers(&text), (true, FsyncMode::Strict), "{text}");
        }
        assert!(
            good("nodelalloc,delalloc")
                .volume
                .parts
                .vfs
                .delayed_allocation
        );
        let s = good("noblock_validity,block_validity");
        assert!(s.volume.parts.ext4.block_validity);
        assert!(!good("noblock_validity").volume.parts.ext4.block_validity);
    }

    #[test]
    fn lazy_times_stay_in_memory_for_a_day() {
        let usual = VolumeOptions::default().parts.vfs.lazy_time_interval;
        let interval = |text: &str| good(text).volume.parts.vfs.lazy_time_interval;
        assert_eq!(interval("lazytime"), LAZY_TIME);
        assert_eq!(interval("relatime"), usual);
        assert_eq!(interval("lazytime,nolazytime"), usual);
        assert!(usual < LAZY_TIME);
    }

    #[test]
    fn what_only_the_other_format_knows_is_refused() {
        let said = |text: &str, format| good(text).suit(format).map_err(|e| e.to_string());
        for (text, format) in [("mode=lfs", Format::F2fs), ("nodelalloc", Format::Ext4)] {
            assert_eq!(said(text, format), Ok(()));
        }
        assert_eq!(
            said("commit=3,nobarrier,errors=panic", Format::F2fs),
            Ok(())
        );
        let refused = said("ro,checkpoint=disable", Format::Ext4);
        let why = "mount option checkpoint is for f2fs; this is ext4";
        assert_eq!(refused, Err(why.to_owned()));
        assert!(said("nodelalloc", Format::F2fs).is_err());
    }

    #[test]
    fn merged_checkpoints() {
        assert_eq!(good("").volume.parts.f2fs.checkpoint_merge, None);
        let merge = |text: &str| good(text).volume.parts.f2fs.checkpoint_merge;
        assert_eq!(merge("nocheckpoint_merge"), Some(false));
        assert_eq!(merge("nocheckpoint_merge,checkpoint_merge"), Some(true));
        assert_eq!(merge("checkpoint=merge"), Some(true));
        let checkpoint = |text: &str| good(text).volume.parts.f2fs.checkpoint;
        let disabled = |unusable_max| Checkpointing::Disabled { unusable_max };
        assert_eq!(
            checkpoint("checkpoint=disable"),
            disabled(Unusable::Blocks(0))
        );
        assert_eq!(
            checkpoint("checkpoint=disable:70"),
            disabled(Unusable::Blocks(70))
        );
        assert_eq!(
            checkpoint("nocheckpoint_merge,checkpoint=disable:5%"),
            disabled(Unusable::Percent(5))
        );
        assert_eq!(
            checkpoint("checkpoint=disable,checkpoint=enable"),
            Checkpointing::Enabled
        );
        for text in [
            "checkpoint=disable,checkpoint_merge",
            "checkpoint=merge,checkpoint=disable:1%",
        ] {
            let e = parse(text).err().expect("refused");
            assert!(e.to_string().contains("cannot be used together"), "{e}");
        }
        let logs = |text: &str| good(text).volume.parts.f2fs.active_logs;
        assert_eq!([logs(""), logs("active_logs=6")], [ActiveLogs::Six; 2]);
        assert_eq!(logs("active_logs=4"), ActiveLogs::Four);
        assert_eq!(logs("active_logs=2"), ActiveLogs::Two);
        let s = good("serialized_dio_pages=16");
        assert_eq!(s.volume.parts.f2fs.serialized_dio_pages, 16);
        assert_eq!(
            good("ckpt_thread_ioprio=6")
                .volume
                .parts
                .f2fs
                .ckpt_thread_ioprio,
            6
        );
    }

    #[test]
    fn only_mounts_of_roots_own_check_permissions_themselves() {
        let settled = |text: &str, by_root: bool| {
            let mut s = good(text);
            s.choose_permissions(by_root);
            s.fuse.permissions
        };
        assert_eq!(settled("", true), PermissionChecks::Volume);
        for text in ["allow_other", "uid=5", "gid=5", "default_permissions"] {
            assert_eq!(settled(text, true), PermissionChecks::Kernel, "{text}");
        }
        assert_eq!(settled("", false), PermissionChecks::Kernel);
        assert_eq!(
            settled("volume_permissions", false),
            PermissionChecks::Volume
        );
    }

    #[test]
    fn what_is_wrong_is_refused_by_name() {
        for bad in [
            "frobnicate",
            "commit",
            "commit=x",
            "uid=-1",
            "uid=4294967295",
            "errors=ignore",
            "cache=lots",
            "ro=1",
            "data=journal",
            "writeback=random",
            "fsync_mode=never",
            "dio_completion=later",
            "transport=carrier-pigeon",
            "cpu_latency=0",
            "direct_ring=off",
            "norecovery",
            "allow_root",
            "sync",
            "dio_alloc=none",
            "active_logs",
            "active_logs=3",
            "active_logs=all",
            "checkpoint=never",
            "checkpoint=disable:",
            "checkpoint=disable:101%",
            "checkpoint=disable:many",
            "checkpoint_merge=1",
            "ckpt_thread_ioprio=8",
        ] {
            let error = parse(bad)
                .err()
                .unwrap_or_else(|| panic!("{bad} was taken"));
            let name = bad.split('=').next().unwrap_or(bad);
            assert!(error.to_string().contains(name), "{bad}: {error}");
        }
    }

    /// Every option that `apply` takes stands in `mount --help`.
    #[test]
    fn help_lists_every_option() {
        use clap::CommandFactory as _;
        let mut command = crate::args::Cli::command();
        let help = command
            .find_subcommand_mut("mount")
            .expect("the command is there")
            .render_long_help()
            .to_string();
        // `[no]x` stands for two options, and `nobarrier,` must not pass for `barrier`.
        let words: std::collections::BTreeSet<String> = help
            .split(|c: char| !(c.is_ascii_alphanumeric() || "_[]".contains(c)))
            .flat_map(|word| match word.strip_prefix("[no]") {
                Some(name) => vec![name.to_owned(), format!("no{name}")],
                None => vec![word.to_owned()],
            })
            .collect();
        let source = include_str!("mount_options.rs");
        let apply = &source[source.find("fn apply(").expect("it is here")..];
        let apply = &apply[..apply.find("(name, None) if").expect("it ends so")];
        let mut seen = 0;
        let arms = apply.lines().filter(|line| line.contains("=>"));
        for arm in arms.map(str::trim_start) {
            // `("a" | "b", None) =>`: the names are the quoted words before the first comma.
            let Some(names) = arm.strip_prefix("(\"") else {
                continue;
            };
            let names = names.split(',').next().unwrap_or_default();
            for name in names.split('|').map(|n| n.trim().trim_matches('"')) {
                seen += 1;
                assert!(words.contains(name), "{name} is not in mount --help");
            }
        }
        assert!(seen > 50, "{seen} options found in the source");
    }
}
