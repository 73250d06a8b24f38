//! The command `mount`: opens the image, confines the process, mounts, and serves until the end. Also the mount helper's arguments
//! (mount(8) and fstab).

use crate::args::{KeeperArgs, MountArgs};
use crate::daemonize;
use crate::failure::{At, Failure, Result};
use crate::mount_options::MountSettings;
use crate::server_log::{self, Messages};
use blockwright::Volume;
use blockwright_chunks::ChunkAddress;
use blockwright_device::{DevOffset, NbdAddress, OffsetDevice, SharedDevice};
use blockwright_disk::Place;
use blockwright_disk::overlay::stable_name;
use blockwright_fuse::{FuseOptions, Keeper, Log, Prepared, Session, Signals};
use blockwright_sandbox::{Mode, Plan};
use rustix::process::{Gid, Uid};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs `mount`. In the foreground it returns when the volume is unmounted.
///
/// # Errors
/// When the volume cannot be opened or mounted, or not be closed cleanly.
pub fn mount(args: &MountArgs) -> Result<()> {
    if super::remount::is_asked(&args.options) {
        return super::remount::remount(&args.mountpoint, &args.options);
    }
    let mut settings = MountSettings::parse(&args.options)?;
    if args.read_only {
        settings.volume = settings.volume.read_only(true);
        settings.fuse.read_only = true;
    }
    settings.choose_permissions(rustix::process::geteuid().is_root());
    // The background process works at `/`.
    let absolute = |path: &Path| std::path::absolute(path).at(path.display());
    if let Some(overlay) = &settings.overlay {
        let others =
            crate::devices::more_devices().len() + usize::from(crate::devices::journal().is_some());
        if others > 0 || crate::devices::overlay().is_some_and(|seen| seen != overlay) {
            return Err(Failure::usage(
                "mount option overlay= goes with neither --device, --journal nor another overlay",
            ));
        }
        crate::devices::set_overlay(Some(overlay));
    }
    let Place { file, part } = Place::of(&args.image);
    let file = stable_name(&file).at(args.image.display())?;
    let image = Place { file, part }.path();
    let mountpoint = absolute(&args.mountpoint)?;
    if args.foreground || daemonize::is_child() {
        serve(&image, &mountpoint, settings, args)
    } else {
        daemonize::start(&again(args, &image, &mountpoint)?)
    }
}

/// The arguments for the process that will serve.
fn again(args: &MountArgs, image: &Path, mountpoint: &Path) -> Result<Vec<OsString>> {
    let mut list: Vec<OsString> = vec!["mount".into(), "-f".into()];
    // The server's working directory is another one.
    let others = (crate::devices::more_devices()
        .iter()
        .map(|d| ("--device", d.as_path())))
    .chain(crate::devices::journal().map(|j| ("--journal", j)));
    for (option, path) in others {
        let path = match NbdAddress::parse(path) {
            None => std::path::absolute(path).at(path.display())?,
            Some(_) => path.to_owned(),
        };
        list.extend([option.into(), path.into()]);
    }
    if let Some(overlay) = crate::devices::overlay() {
        let path = std::path::absolute(overlay).at(overlay.display())?;
        list.extend(["--overlay".into(), path.into()]);
    }
    let rest = args.options.iter().flat_map(|given| given.split(','));
    for option in rest.filter(|option| !option.trim().starts_with("overlay=")) {
        list.extend(["-o".into(), option.into()]);
    }
    for (given, option) in [
        (args.read_only, "-r"),
        (args.verbose, "-v"),
        (args.quiet, "-q"),
    ] {
        if given {
            list.push(option.into());
        }
    }
    if let Some(log) = &args.log {
        list.extend([
            "--log".into(),
            std::path::absolute(log).at(log.display())?.into(),
        ]);
    }
    if crate::wall::allow_backing() {
        list.push("--allow-backing".into());
    }
    list.push(format!("--sandbox={}", crate::wall::mode_name()).into());
    list.extend(["--".into(), image.into(), mountpoint.into()]);
    Ok(list)
}

/// Tells what else can be done about an image that cannot be written to.
fn advise(e: blockwright::Error) -> Failure {
    match e.kind() {
        blockwright::ErrorKind::ReadOnly => Failure::from(e).and("`-o ro` mounts it for reading"),
        _ => e.into(),
    }
}

/// Opens the volume, where it begins later than the image, too.
fn open(image: &Path, settings: &MountSettings) -> Result<Volume> {
    let options = crate::image::with_other_devices(settings.volume.clone());
    if settings.offset == 0 {
        return options
            .open_by(image, &mut crate::wall::device)
            .map_err(advise);
    }
    let mode = options.open_mode();
    let device = crate::wall::device(image, mode)
        .map_err(blockwright::Error::from)
        .map_err(|e| advise(e.at(image)))?;
    let start = DevOffset(settings.offset);
    let part: SharedDevice = Arc::new(OffsetDevice::new(device, start, None).map_err(|_| {
        Failure::usage(format_args!(
            "mount option offset={}: not on the image, or not a multiple of its sectors",
            settings.offset
        ))
        .at(image.display())
    })?);
    options
        .open_device_by(part, &mut crate::wall::device)
        .at(image.display())
}

fn serve(
    image: &Path,
    mountpoint: &Path,
    mut settings: MountSettings,
    args: &MountArgs,
) -> Result<()> {
    // Before there are threads.
    blockwright_device::limit_arenas();
    // Before anything is written to the image: a mount point that is none.
    let point = std::fs::metadata(mountpoint);
    match &point {
        Ok(meta) if !meta.is_dir() => {
            return Err(Failure::new("the mount point is not a directory").at(mountpoint.display()));
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Failure::new("the mount point does not exist").at(mountpoint.display()));
        }
        // A dead mount, say: mounting finds better words for it.
        _ => {}
    }
    let messages = Arc::new(Messages::new(args.log.as_deref())?);
    let wants_write = !settings.volume.is_read_only();
    settings.volume.parts.ext4.mount_point = Some(mountpoint.display().to_string());
    let (last_words, place) = (messages.clone(), image.display().to_string());
    settings.volume.parts.ext4.on_panic = Some(Arc::new(move |e| {
        last_words.say(&format!("{place}: {e}; errors=panic: this process ends"));
        std::process::abort();
    }));
    if settings.fuse.fsname == FuseOptions::default().fsname {
        // The server writes the overlay, and `umount` waits for that.
        let overlay = crate::devices::overlay().map(std::path::absolute);
        let written = overlay.transpose()?;
        settings.fuse.fsname = name(written.as_deref().unwrap_or(image));
    }
    let me = (rustix::process::geteuid(), rustix::process::getegid());
    let trace = match &settings.trace {
        Some(file) => {
            let path = std::path::absolute(file).at(file.display())?;
            let file = std::fs::File::create(&path).at(path.display())?;
            Some((path, file))
        }
        None => None,
    };
    let null = match daemonize::is_child() {
        true => Some(daemonize::prepare()?),
        false => None,
    };
    // From here on: one that came between mounting and serving would leave a dead mount and an unclean volume.
    let signals = Signals::catch().map_err(Failure::new)?;
    // Before the first thread starts. Where the host refuses, the mount is slower on busy CPUs.
    let _ = blockwright_fuse::request_short_slices();
    let prepared = confine(image, mountpoint, &mut settings, args, &messages)?;
    let volume = open(image, &settings)?;
    settings.fuse.image_offset = crate::wall::start_of(image).saturating_add(settings.offset);
    crate::wall::release();
    if let Err(e) = settings.suit(volume.format()) {
        volume.close().at(image.display())?;
        return Err(e.at(image.display()));
    }
    if wants_write && volume.is_read_only() {
        let why = volume.read_only_reason().unwrap_or_else(|| {
            "the volume has features that this program can only read, or was found damaged".into()
        });
        messages.say(&format!("{}: mounted read-only: {why}", image.display()));
        settings.fuse.read_only = true;
    }
    let log = messages.clone();
    settings.fuse.log = Log::new(move |line| log.say(line));
    if let Some((path, file)) = trace {
        // Before the mount can be seen, and with it.
        let started = volume.vfs().start_trace_to(file, &path, settings.trace_max);
        if let Err(e) = started {
            volume.close().at(image.display())?;
            return Err(Failure::new(e).at(path.display()));
        }
    }
    let vfs = volume.vfs().clone();
    let session = match Session::mount_prepared(vfs, mountpoint, &settings.fuse, prepared) {
        Ok(session) => session,
        Err(e) => {
            volume.close().at(image.display())?;
            return Err(Failure::new(e));
        }
    };
    // A hint about rights is always printed; one about speed only on request.
    let hints = foreign_root(&volume, &settings, me).filter(|_| !args.quiet);
    let faster = session.hints().iter().filter(|_| args.verbose).cloned();
    for hint in hints.into_iter().chain(faster) {
        messages.say(&format!("hint: {hint}"));
    }
    if let Some(null) = null {
        daemonize::detach(&null)?;
        messages.detach();
    }
    let result = session.run_until(signals);
    if let Err(e) = &result {
        messages.say(&format!("{}: {e}", image.display()));
        return Err(Failure::said(crate::exit::FAILURE));
    }
    Ok(())
}

/// Opens all that the server will need, and confines the process before the image is read. After this no path can be opened, and
/// what needs one is the keeper's.
fn confine(
    image: &Path,
    mountpoint: &Path,
    settings: &mut MountSettings,
    args: &MountArgs,
    messages: &Messages,
) -> Result<Prepared> {
    if crate::wall::mode() == Mode::Off {
        return Ok(Prepared::new(&settings.fuse));
    }
    let mode = settings.volume.open_mode();
    crate::wall::hold_image(image, mode).map_err(|e| {
        let e = blockwright::Error::from(e).at(image);
        advise(e)
    })?;
    settings.volume.parts.ext4.host_name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .map(|name| name.trim().to_owned());
    let mut prepared = Prepared::open(&settings.fuse);
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg0("blockwright").arg("debug-keeper");
    for option in &args.options {
        command.args(["-o", option]);
    }
    if args.read_only {
        command.arg("-r");
    }
    command
        .args(["--source", &settings.fuse.fsname, "--"])
        .arg(mountpoint);
    let keeper = Arc::new(Keeper::start(command).map_err(Failure::new)?);
    messages.by(Arc::clone(&keeper));
    settings.fuse.keeper = Some(keeper);
    let plan = Plan {
        serves: true,
        // The kernel's switch, the CPUs, and how busy they are.
        starting: [
            "/sys/module/fuse/parameters",
            "/sys/devices/system/cpu",
            "/proc/loadavg",
            "/proc/self",
        ]
        .map(PathBuf::from)
        .to_vec(),
        host: None,
    };
    let standing = crate::wall::raise_with(plan, || prepared.start(&settings.fuse))?;
    crate::wall::tell(&standing, |line| messages.say(line));
    Ok(prepared)
}

/// The keeper of a confined server's mount.
///
/// # Errors
/// When it was not started by a server.
pub fn keep(args: &KeeperArgs) -> Result<()> {
    let server = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let mut settings = MountSettings::parse(&args.options)?;
    settings.fuse.read_only |= args.read_only;
    settings.choose_permissions(rustix::process::geteuid().is_root());
    settings.fuse.fsname = args.source.clone();
    blockwright_fuse::keep(&args.mountpoint, &settings.fuse, move |line| {
        server_log::syslog(server.unsigned_abs(), line);
    })
    .map_err(Failure::new)
}

/// A hint for a user other than root: the volume's root directory is not writable for them.
fn foreign_root(volume: &Volume, settings: &MountSettings, me: (Uid, Gid)) -> Option<String> {
    let (me, group) = (me.0.as_raw(), me.1.as_raw());
    let mapped = settings.fuse.uid.is_some() || settings.fuse.gid.is_some();
    if me == 0 || mapped || settings.fuse.read_only {
        return None;
    }
    let attr = volume.vfs().root().ok()?.attr();
    let writable = match (attr.uid == me, attr.gid == group) {
        (true, _) => attr.perm & 0o200,
        (false, true) => attr.perm & 0o020,
        (false, false) => attr.perm & 0o002,
    };
    (writable == 0).then(|| {
        format!(
            "the volume's root directory belongs to {}:{}: you cannot write there. `-o uid={me},gid={group}` shows \
             all files as yours; `blockwright chown {me}:{group} IMAGE:/` makes the directory yours",
            attr.uid, attr.gid
        )
    })
}

/// The image's path as the mount table shows it; `umount` finds the image by it.
fn name(image: &Path) -> String {
    match image.to_str() {
        Some(text) => text.to_owned(),
        None => String::from_utf8_lossy(image.as_os_str().as_bytes()).into_owned(),
    }
}

/// Whether a command line without a command means mount: `blockwright IMAGE MOUNTPOINT [-o …]`, which is
/// what mount(8) ends up running for `-t fuse.blockwright`.
pub fn is_bare_mount(arguments: &[OsString]) -> bool {
    let (Some(image), Some(point)) = (arguments.get(1), arguments.get(2)) else {
        return false;
    };
    let image = Path::new(image);
    let file = Place::of(image).file;
    let is_address = NbdAddress::parse(&file).is_some() || ChunkAddress::parse(&file).is_some();
    let is_image = is_address || (file.exists() && !file.is_dir());
    !image.as_os_str().as_bytes().starts_with(b"-") && is_image && PathBuf::from(point).is_dir()
}

/// The arguments of a mount helper (`mount.fuse.blockwright SPEC DIR [-sfnv] [-N NS] [-o OPTIONS] [-t TYPE]`) as
/// those of `mount`. `None` when nothing is to be done (`-f`: a fake mount).
///
/// # Errors
/// What no helper is called with.
pub fn helper_arguments(arguments: &[OsString]) -> Result<Option<Vec<OsString>>> {
    let mut out: Vec<OsString> = vec!["blockwright".into(), "mount".into()];
    let mut operands = Vec::new();
    let mut fake = false;
    let mut rest = arguments.iter().skip(1);
    while let Some(argument) = rest.next() {
        match argument.as_bytes() {
            b"-o" | b"-N" | b"-t" => {
                let value = rest.next().ok_or_else(|| {
                    Failure::usage(format_args!("{} needs a value", argument.to_string_lossy()))
                })?;
                if argument == "-o" {
                    out.extend(["-o".into(), value.clone()]);
                }
            }
            [b'-', b'o', value @ ..] => {
                out.extend(["-o".into(), std::ffi::OsStr::from_bytes(value).to_owned()]);
            }
            [b'-', letters @ ..] if !letters.is_empty() => {
                for letter in letters {
                    match letter {
                        b'f' => fake = true,
                        b's' | b'n' | b'v' => {}
                        b'r' => out.extend(["-o".into(), "ro".into()]),
                        b'w' => out.extend(["-o".into(), "rw".into()]),
                        _ => {
                            return Err(Failure::usage(format_args!(
                                "unknown option {}",
                                argument.to_string_lossy()
                            )));
                        }
                    }
                }
            }
            _ => operands.push(argument.clone()),
        }
    }
    if operands.len() != 2 {
        return Err(Failure::usage("an image and a mount point are needed"));
    }
    out.push("--".into());
    out.extend(operands);
    Ok((!fake).then_some(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn helper(text: &str) -> Option<Vec<String>> {
        let arguments: Vec<OsString> = text.split(' ').map(Into::into).collect();
        helper_arguments(&arguments)
            .unwrap_or_else(|e| panic!("{e}"))
            .map(|list| {
                list.into_iter()
                    .map(|a| a.to_string_lossy().into_owned())
                    .collect()
            })
    }

    #[test]
    fn helpers_are_called_in_their_own_way() {
        assert_eq!(
            helper("mount.fuse.blockwright disk.img /mnt -n -o ro,noatime -t fuse.blockwright"),
            Some(
                [
                    "blockwright",
                    "mount",
                    "-o",
                    "ro,noatime",
                    "--",
                    "disk.img",
                    "/mnt"
                ]
                .map(str::to_owned)
                .to_vec()
            )
        );
        assert_eq!(helper("mount.fuse.blockwright disk.img /mnt -f"), None);
        let bad: Vec<OsString> = ["mount.fuse.blockwright", "disk.img"]
            .map(Into::into)
            .to_vec();
        assert!(helper_arguments(&bad).is_err());
    }
}
