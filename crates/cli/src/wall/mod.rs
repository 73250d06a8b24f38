//! The wall around commands that read an untrusted image (`blockwright_sandbox` builds it).
//!
//! Before a command runs, [`before`] opens what its arguments name, without reading it, and confines the process. Later, the command asks by path,
//! and gets the file from the table of open files ([`device`], [`output`]). So commands are written as if there were no wall.
//!
//! A server of a mount confines itself (`commands::mount`), because it needs more: rings, a keeper.

mod connector;
mod disks;
mod fetcher;
mod janitor;
mod trial;

pub use connector::run as connector;
pub use disks::{allow_backing, set_allow_backing};
pub use fetcher::run as fetcher;
pub use janitor::wait as janitor;
pub use trial::run as trial;

use crate::args::{
    ChunkCommand, Command, CpArgs, DiskCommand, ExportArgs, MapArgs, MkfsArgs, PartSpec, PartType,
    StoreArgs,
};
use crate::commands::entries;
use crate::failure::{At, Failure, Result};
use crate::operand::{Inside, Operand};
use crate::source::MkfsSource;
use blockwright_chunks::{ChunkAddress, Remote, Sink, Site, Source, Stores, open_sink};
use blockwright_device::{DeviceError, Held, NbdAddress, OpenMode, SharedDevice};
use blockwright_disk::container::Format;
use blockwright_disk::{Place, Selector};
use blockwright_sandbox::{HostPaths, Mode, Plan, Standing, Wall};
use disks::Disks;
use janitor::Janitor;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

#[derive(Clone, Copy, Default)]
struct Settings {
    mode: Mode,
    verbose: bool,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();
static TABLE: Mutex<Table> = Mutex::new(Table {
    opened: Vec::new(),
    aliases: Vec::new(),
    devices: Vec::new(),
    disks: Disks::new(),
    output: None,
    source: None,
    sink: None,
});

type Device = std::result::Result<SharedDevice, DeviceError>;

/// What was opened for the command, by the path of its file.
struct Table {
    opened: Vec<(PathBuf, std::result::Result<Held, DeviceError>)>,
    /// Further names of what is in `opened`: that path, and the name.
    aliases: Vec<(PathBuf, PathBuf)>,
    devices: Vec<(Vec<PathBuf>, Device)>,
    /// The disks on these devices, and the partitions that were asked for.
    disks: Disks,
    output: Option<Output>,
    /// What fetches chunks for a command that works on an index.
    source: Option<(ChunkAddress, Remote)>,
    /// What keeps chunks for a command that makes them.
    sink: Option<Remote>,
}

/// The file that a command writes, and what removes it should the command fail.
struct Output {
    path: PathBuf,
    file: File,
    janitor: Option<Janitor>,
}

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn settings() -> Settings {
    SETTINGS.get().copied().unwrap_or_default()
}

/// What the user wants. Called once, before any command.
pub fn set(mode: Mode, verbose: bool) {
    let _ = SETTINGS.set(Settings { mode, verbose });
}

/// What the user wants.
pub fn mode() -> Mode {
    settings().mode
}

/// The name of [`mode`] on the command line.
pub fn mode_name() -> &'static str {
    match mode() {
        Mode::Auto => "auto",
        Mode::Off => "off",
        Mode::Require => "require",
    }
}

/// Confines the process, if the command reads an image and is one that can be confined.
///
/// # Errors
/// What the host lacks, with `--sandbox=require`.
pub fn before(command: &Command) -> Result<()> {
    if mode() == Mode::Off {
        return Ok(());
    }
    match command {
        Command::Ls(args) => reading(&args.paths),
        Command::Cat(args) => reading(&args.paths),
        Command::Find(args) => reading(&args.paths),
        Command::Tree(args) => reading(std::slice::from_ref(&args.path)),
        Command::Stat(args) | Command::Extents(args) => reading(&args.paths),
        Command::Getxattr(args) => reading(&args.paths),
        Command::Du(args) => reading(&args.paths),
        // Directories are of mounts, which their servers tell about.
        Command::Df(args) if args.images.iter().all(|i| Path::new(i).is_dir()) => Ok(()),
        Command::Df(args) => reading(&args.images),
        Command::Export(args) => export(args),
        Command::Map(args) => mapping(args),
        Command::Info(args) => {
            // As the command does: what is mounted can be asked about.
            let mode = OpenMode {
                lock: false,
                ..OpenMode::read_only()
            };
            hold(&args.of.image, mode);
            hold_map(args.map.as_deref())?;
            raise(Plan::default())
        }
        Command::Check(args) => {
            let mode = OpenMode {
                read_only: !(args.yes || args.preen),
                ..OpenMode::default()
            };
            hold(&args.image, mode);
            hold_more(mode);
            hold_map(args.map.as_deref())?;
            raise(Plan::default())
        }
        Command::Cp(args) => copying(args),
        Command::Mv(args) => changing(&args.paths),
        Command::Rm(args) => changing(&args.paths),
        Command::Mkdir(args) => changing(&args.paths),
        Command::Touch(args) => changing(&args.paths),
        Command::Chmod(args) => changing(&args.paths),
        Command::Chown(args) => changing(&args.paths),
        Command::Setxattr(args) => changing(&args.paths),
        // The target of a symlink is a text, not an operand.
        Command::Ln(args) if args.symbolic => changing([&args.link]),
        Command::Ln(args) => changing([&args.link, &args.target]),
        Command::Quota(args) if args.sets() => changing([&args.image]),
        Command::Quota(args) => reading(std::slice::from_ref(&args.image)),
        Command::Resize(args) if !args.image.is_dir() => {
            crate::image_file::prepare(args)?;
            let mode = OpenMode {
                read_only: args.dry_run,
                ..OpenMode::default()
            };
            hold(&args.image, mode);
            hold_journal(mode);
            raise(Plan::default())
        }
        Command::Set(args) => {
            hold(&args.image, OpenMode::default());
            hold_journal(OpenMode::default());
            raise(Plan::default())
        }
        Command::Trim(args) if !args.path.is_dir() => {
            hold(&args.path, OpenMode::default());
            hold_more(OpenMode::default());
            raise(Plan::default())
        }
        Command::Mkfs(args) => making(args),
        Command::Disk(DiskCommand::Convert(args)) => converting(&args.image, &args.output),
        Command::Disk(DiskCommand::Extract(args)) => converting(&args.image, &args.output),
        Command::Disk(DiskCommand::Create(args)) => {
            let write = reachable(&args.output);
            building(&args.parts, write)
        }
        Command::Disk(DiskCommand::Add(args)) => {
            hold(&args.image, OpenMode::default());
            // Data of streams and compressed archives is kept there until it is on the disk.
            building(std::slice::from_ref(&args.part), vec![std::env::temp_dir()])
        }
        Command::Chunk(ChunkCommand::Make(args)) => {
            hold(&args.image, OpenMode::read_only());
            let mut write = reachable(&args.output);
            let store = args.site().map_err(store_failure)?;
            match &store {
                Site::Path(folder) => {
                    // Made, so that it can be named to the wall.
                    drop(open_sink(&store, None).map_err(store_failure)?);
                    write.push(folder.clone());
                }
                _ => {
                    let remote = fetcher::start_sink(&store, args.ca.as_deref());
                    table().sink = Some(remote.map_err(store_failure)?);
                }
            }
            raise(Plan {
                host: Some(HostPaths {
                    read: Vec::new(),
                    write,
                }),
                ..Plan::default()
            })
        }
        Command::Chunk(ChunkCommand::Extract(args)) => fetching(&args.from, Some(&args.output)),
        Command::Chunk(ChunkCommand::Verify(args)) => fetching(&args.from, None),
        Command::Disk(DiskCommand::Ls(args)) => {
            let mode = OpenMode {
                lock: false,
                ..OpenMode::read_only()
            };
            hold(&args.image, mode);
            raise(Plan::default())
        }
        _ => Ok(()),
    }
}

fn reading(paths: &[OsString]) -> Result<()> {
    for path in paths {
        hold(&Inside::remember(path).image, OpenMode::read_only());
    }
    hold_more(OpenMode::read_only());
    raise(Plan::default())
}

/// Commands that change what is inside an image need its descriptor alone.
fn changing<'a>(paths: impl IntoIterator<Item = &'a OsString>) -> Result<()> {
    for path in paths {
        hold(&Inside::remember(path).image, OpenMode::default());
    }
    hold_more(OpenMode::default());
    raise(Plan::default())
}

/// A command that works on an index reads chunks through another process.
fn fetching(args: &StoreArgs, output: Option<&Path>) -> Result<()> {
    let address = args.address().map_err(Failure::usage)?;
    let remote = fetcher::start(&address).map_err(Failure::new)?;
    table().source = Some((address, remote));
    let host = output.map(|output| HostPaths {
        read: Vec::new(),
        write: reachable(output),
    });
    raise(Plan {
        host,
        ..Plan::default()
    })
}

/// A conversion makes its output by path.
fn converting(image: &Path, output: &Path) -> Result<()> {
    hold(image, OpenMode::read_only());
    raise(Plan {
        host: Some(HostPaths {
            read: Vec::new(),
            write: reachable(output),
        }),
        ..Plan::default()
    })
}

fn export(args: &ExportArgs) -> Result<()> {
    let image = Inside::remember(&args.path).image;
    hold(&image, OpenMode::read_only());
    hold_more(OpenMode::read_only());
    if let Some(path) = args
        .output
        .as_deref()
        .filter(|path| *path != Path::new("-"))
    {
        spare_inputs(path, "export")?;
        hold_output(path)?;
    }
    raise(Plan::default())
}

/// `map` reads an image and writes one file.
fn mapping(args: &MapArgs) -> Result<()> {
    hold(&args.image, OpenMode::read_only());
    hold_more(OpenMode::read_only());
    hold_map(args.output.as_deref())?;
    raise(Plan::default())
}

/// Makes the file of a map.
fn hold_map(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    spare_inputs(path, "map")?;
    hold_output(path)
}

/// Refuses a file that the command opens as an image, or as a part of one, as the place of what it makes. `made`: its own export, map, copy.
///
/// Called after the images were held or opened. Outputs are compared with them by inode, so a further name of one is found, too.
///
/// # Errors
/// With the path named.
pub fn spare_inputs(path: &Path, made: &str) -> Result<()> {
    match crate::devices::HostFile::of(path) {
        Some(file) => spare_input(file, made).at(path.display()),
        None => Ok(()),
    }
}

/// As [`spare_inputs`], of a file that was found.
///
/// # Errors
/// When it is one.
pub fn spare_input(file: crate::devices::HostFile, made: &str) -> Result<()> {
    match crate::devices::is_input(file) {
        true => Err(Failure::usage(format_args!(
            "the image is not overwritten by its own {made}"
        ))),
        false => Ok(()),
    }
}

/// `cp`: the image that is written to first, because one that is read as well must not be locked for reading only.
fn copying(args: &CpArgs) -> Result<()> {
    let operands = Operand::of_copy(args);
    let Some((to, sources)) = operands.split_last() else {
        return Ok(());
    };
    let mut host = HostPaths::default();
    match to {
        Operand::Inside(inside) => hold(&inside.image, OpenMode::default()),
        Operand::Local(path) => host.write.extend(reachable(path)),
        Operand::Stdio => {}
    }
    for source in sources {
        match source {
            Operand::Inside(inside) => hold(&inside.image, OpenMode::read_only()),
            Operand::Local(path) => host.read.push(path.clone()),
            Operand::Stdio => {}
        }
    }
    hold_more(match to {
        Operand::Inside(_) => OpenMode::default(),
        _ => OpenMode::read_only(),
    });
    let local = |operand: &Operand| matches!(operand, Operand::Local(_));
    // Operands are looked up again by the command itself: by path, which is harmless where paths are open, and remembered otherwise.
    let host = operands.iter().any(local).then_some(host);
    if host.is_none() {
        for path in &args.paths {
            Operand::remember(path);
        }
    }
    raise(Plan {
        host,
        ..Plan::default()
    })
}

/// What must be open for `path` to be made, or for what it names to be replaced.
fn reachable(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        return vec![path.to_owned()];
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    // A link that is there is written through, because the user names it.
    let target = std::fs::canonicalize(path);
    [parent].into_iter().chain(target).collect()
}

/// `mkfs` from archives and directories: it can read these and nothing else. Landlock follows no symlink out of a directory.
fn making(args: &MkfsArgs) -> Result<()> {
    let sources = || args.sources();
    let readable = |path: &Path| path.is_file() || path.is_dir();
    let more = entries::read(&args.entries);
    let all_readable = sources().all(|source| source.path().is_none_or(readable))
        && more.iter().all(|path| readable(path));
    let is_remote =
        NbdAddress::parse(&args.image).is_some() || ChunkAddress::parse(&args.image).is_some();
    if sources().next().is_none() || !all_readable || is_remote {
        return Ok(());
    }
    let image = Place::of(&args.image).file;
    let exists = image.exists();
    // An image that is in use is refused by name, which takes other paths. Nothing of the sources is read then.
    if exists && blockwright_device::hold(&image, OpenMode::default()).is_err() {
        return Ok(());
    }
    let mut host = HostPaths {
        // Names in access control lists are those of this host.
        read: vec!["/etc/passwd".into(), "/etc/group".into()],
        write: reachable(&image),
    };
    if let Some(tree) = &args.verity_tree {
        host.write.extend(reachable(tree));
    }
    host.read
        .extend(sources().filter_map(|source| source.path().map(Path::to_owned)));
    host.read.extend(more);
    // A container is opened by path, and so are the files that it names.
    for (path, read_only) in table().disks.chain(&image, false) {
        match read_only {
            true => host.read.push(path),
            false => host.write.push(path),
        }
    }
    if exists && (!image.is_file() || image != args.image) {
        // Nothing can be spooled beside a device.
        host.write.push(std::env::temp_dir());
    }
    if let Some(base) = &args.base {
        hold(base, OpenMode::read_only());
    }
    hold_journal(OpenMode::default());
    raise(Plan {
        host: Some(host),
        ..Plan::default()
    })
}

/// Disks from archives, directories and images: as [`making`].
fn building(parts: &[PartSpec], write: Vec<PathBuf>) -> Result<()> {
    let mut read: Vec<PathBuf> = vec!["/etc/passwd".into(), "/etc/group".into()];
    for part in parts
        .iter()
        .filter(|part| !part.source.as_os_str().is_empty())
    {
        if part.kind == PartType::Raw {
            hold(&part.source, OpenMode::read_only());
            continue;
        }
        let source = MkfsSource::of(&part.source);
        let Some(path) = source.path() else { continue };
        if !path.is_file() && !path.is_dir() {
            return Ok(());
        }
        read.push(path.to_owned());
    }
    raise(Plan {
        host: Some(HostPaths { read, write }),
        ..Plan::default()
    })
}

/// Opens the further devices of the volume, and the one of its journal as the image is opened.
fn hold_more(mode: OpenMode) {
    for path in crate::devices::more_devices() {
        hold(path, OpenMode::read_only());
    }
    hold_journal(mode);
}

/// Opens the device of the volume's journal.
fn hold_journal(mode: OpenMode) {
    if let Some(path) = crate::devices::journal() {
        hold(path, mode);
    }
}

/// Opens an image for later. An error is reported when the command asks for the file.
fn hold(path: &Path, mode: OpenMode) {
    let mut table = table();
    let path = &table.disks.remember(path).file;
    if table.opened.iter().any(|(seen, _)| seen == path) {
        return;
    }
    if let Some(overlay) = crate::devices::overlay() {
        let held = hold_below(&mut table, path, mode, overlay);
        table.opened.push((path.to_owned(), held));
        return;
    }
    let twin = table
        .opened
        .iter()
        .find(|(seen, _)| crate::devices::same_inode(seen, path));
    match twin {
        // One device serves all the names of one file: a second one would be refused the lock.
        Some((first, _)) => {
            let alias = (first.clone(), path.to_owned());
            table.aliases.push(alias);
        }
        None => {
            let held = fetcher::hold(path, mode);
            table.opened.push((path.to_owned(), held));
            hold_others(&mut table, path, mode);
        }
    }
}

/// Opens an image for reading, and the overlay over it.
fn hold_below(
    table: &mut Table,
    path: &Path,
    mode: OpenMode,
    overlay: &Path,
) -> std::result::Result<Held, DeviceError> {
    table.disks.claim_overlay(path)?;
    let below_mode = blockwright_disk::overlay::base_mode(mode);
    let below = fetcher::hold(path, below_mode)?;
    hold_others(table, path, below_mode);
    table.disks.hold_overlay(overlay, mode)?;
    Ok(below)
}

/// Opens the backing files of an image for reading, and its data file as the image, where that is allowed. Their errors are reported when the image is opened.
fn hold_others(table: &mut Table, image: &Path, mode: OpenMode) {
    for (path, read_only) in table.disks.chain(image, mode.read_only) {
        if !table.opened.iter().any(|(seen, _)| *seen == path) {
            let mode = OpenMode { read_only, ..mode };
            let held = blockwright_device::hold(&path, mode);
            table.opened.push((path, held));
        }
    }
}

/// Opens an image and the further devices, for a server that will confine itself.
///
/// # Errors
/// As opening the image.
pub fn hold_image(path: &Path, mode: OpenMode) -> std::result::Result<(), DeviceError> {
    let mut table = table();
    let place = table.disks.remember(path);
    let held = match crate::devices::overlay() {
        Some(overlay) => hold_below(&mut table, &place.file, mode, overlay)?,
        None => {
            let held = fetcher::hold(&place.file, mode)?;
            hold_others(&mut table, &place.file, mode);
            held
        }
    };
    table.opened.push((place.file, Ok(held)));
    drop(table);
    hold_more(mode);
    Ok(())
}

/// Opens the file that the command will write. It is emptied when the command begins to write ([`output`]).
fn hold_output(path: &Path) -> Result<()> {
    let new = !path.exists();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .at(path.display())?;
    let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
    let janitor = match is_file {
        true => Some(Janitor::start(path, new).at(path.display())?),
        false => None,
    };
    table().output = Some(Output {
        path: path.to_owned(),
        file,
        janitor,
    });
    Ok(())
}

/// Confines the process, then starts the threads of what is open.
fn raise(plan: Plan) -> Result<()> {
    let standing = raise_with(plan, || ())?;
    tell(&standing, |line| crate::failure::warn(line));
    Ok(())
}

/// Confines the process; starts the threads of what is open, and what `start` starts; and closes the wall.
///
/// # Errors
/// What the host lacks, with `--sandbox=require`.
pub fn raise_with(plan: Plan, start: impl FnOnce()) -> Result<Standing> {
    let wall = Wall::begin(mode(), plan).map_err(Failure::new)?;
    {
        let mut table = table();
        let aliases = std::mem::take(&mut table.aliases);
        for (path, held) in std::mem::take(&mut table.opened) {
            let mut names = vec![path.clone()];
            let twins = aliases.iter().filter(|(first, _)| *first == path);
            names.extend(twins.map(|(_, name)| name.clone()));
            let device = held.and_then(Held::start);
            table.devices.push((names, device));
        }
        table.disks.start_overlay();
    }
    start();
    match wall {
        Some(wall) => wall.seal().map_err(Failure::new),
        None => Ok(Standing::default()),
    }
}

/// Says what the wall lacks, when that is wanted.
pub fn tell(standing: &Standing, say: impl Fn(&str)) {
    if !settings().verbose {
        return;
    }
    for note in &standing.notes {
        say(&format!("sandbox: {note}"));
    }
    for part in &standing.missing {
        say(&format!("sandbox: without {part}"));
    }
    if standing.missing.is_empty() {
        say("sandbox: complete");
    }
}

/// The device of an image: the one that was opened for the command, or a new one.
///
/// # Errors
/// As [`blockwright_device::open`].
pub fn device(path: &Path, mode: OpenMode) -> Device {
    let mut table = table();
    let place = table.disks.place(path);
    let Table { devices, disks, .. } = &mut *table;
    let known = devices
        .iter()
        .find(|(names, _)| names.contains(&place.file))
        // One name stands for all that a file has: partitions of one disk share it.
        .map(|(names, device)| (names[0].clone(), device.clone()));
    match known {
        Some((file, device)) => disks.select(&file, place.part.as_ref(), device?, devices),
        None => disks.open(&place, mode),
    }
}

/// The source of the chunks at an address: the process that was started for the command, or this
/// one.
///
/// # Errors
/// As [`Stores::open`].
pub fn source(
    address: &ChunkAddress,
) -> std::result::Result<Box<dyn Source>, blockwright_chunks::Error> {
    match table().source.take().filter(|(held, _)| held == address) {
        Some((_, remote)) => Ok(Box::new(remote)),
        None => Ok(Box::new(Stores::open(address)?)),
    }
}

/// What keeps the chunks that are made: another process, if one was started.
///
/// # Errors
/// As [`open_sink`].
pub fn sink(
    store: &Site,
    ca: Option<&Path>,
) -> std::result::Result<Box<dyn Sink>, blockwright_chunks::Error> {
    match table().sink.take() {
        Some(remote) => Ok(Box::new(remote)),
        None => open_sink(store, ca),
    }
}

/// A store that cannot be written is a usage error when its place is none.
pub fn store_failure(e: blockwright_chunks::Error) -> Failure {
    match e {
        blockwright_chunks::Error::Address(why) => Failure::usage(why),
        e => Failure::new(e),
    }
}

/// The partition that an image is, if it is one.
pub fn part_of(image: &Path) -> Option<Selector> {
    table().disks.place(image).part
}

/// Whether an image is a partition of another one.
pub fn is_part(image: &Path) -> bool {
    table().disks.place(image).part.is_some()
}

/// The file that an image is in, or a partition of it.
pub fn file_of(image: &Path) -> PathBuf {
    table().disks.place(image).file
}

/// The container that an image that was opened is in.
pub fn format_of(image: &Path) -> Format {
    let table = table();
    table.disks.format_of(&table.disks.place(image).file)
}

/// Where the volume that was opened begins in its file, as far as that is one place: a partition's first byte.
pub fn start_of(image: &Path) -> u64 {
    let table = table();
    table.disks.start_of(&table.disks.place(image))
}

/// Lets go of what was opened: a device ends, and completes its recording, when its volume is closed.
pub fn release() {
    let mut table = table();
    table.devices.clear();
    table.disks.release();
}

/// Whether two paths name one image that was opened for the command. `None`: that is not known.
fn same(a: &Path, b: &Path) -> Option<bool> {
    let table = table();
    let find = |path: &Path| {
        let Place { file, part } = table.disks.place(path);
        let device = table
            .devices
            .iter()
            .position(|(names, _)| names.contains(&file))?;
        Some((device, part))
    };
    Some(find(a)? == find(b)?)
}

/// Whether two paths of the host are one file.
pub fn same_file(a: &Path, b: &Path) -> bool {
    if a == b {
        return true;
    }
    if let Some(same) = same(a, b) {
        return same;
    }
    let (a, b) = (Place::of(a), Place::of(b));
    a.part == b.part && crate::devices::same_inode(&a.file, &b.file)
}

/// The file at `path`, made or emptied.
///
/// # Errors
/// The host's.
pub fn output(path: &Path) -> io::Result<File> {
    let mut table = table();
    match table.output.as_mut().filter(|output| output.path == path) {
        Some(output) => {
            if let Some(janitor) = &mut output.janitor {
                janitor.expect(true)?;
                output.file.set_len(0)?;
            }
            output.file.try_clone()
        }
        None => File::create(path),
    }
}

/// The command has written its output: it stays. Without this it is removed when the process ends, however it does.
pub fn keep_output() {
    if let Some(janitor) = table().output.as_mut().and_then(|o| o.janitor.as_mut()) {
        let _ = janitor.expect(false);
    }
}

/// The command has ended. Returns when its output has been removed, if it must be: the end of a process would not wait for
/// that.
pub fn end() {
    // Containers write the last of their metadata when they are dropped, which nothing in a static is.
    release();
    drop(table().output.take());
}

/// Removes the output of a command that has failed.
pub fn remove_output(path: &Path) {
    let output = table().output.take().filter(|output| output.path == path);
    match output {
        Some(output) => drop(output.janitor),
        None => {
            let _ = std::fs::remove_file(path);
        }
    }
}
