//! `blockwright-bench metadata`: what one request about metadata costs the server, without a kernel in between.
//!
//! The dispatcher is fed by hand with the requests that the kernel sends when files are made (`tar x`), listed
//! (`find`) and removed (`rm -rf`), from one or several threads. Each request is timed; per kind the median is
//! printed, which other programs on the machine hardly change, and the mean. Nothing waits for a kernel here: what
//! is left is decoding, the vfs, the engine, and the device.

use crate::volumes::Format;
use blockwright::{Volume, VolumeBuilder};
use blockwright_device::{HostDevice, MemoryDevice, OpenMode, SharedDevice};
use blockwright_fuse::ReplySink;
use blockwright_fuse::protocol::flags::{InitFlags, SetAttrValid, WriteFlags};
use blockwright_fuse::protocol::reply::{EntryOut, OpenOut, OutHeader};
use blockwright_fuse::protocol::request::{
    CreateIn, ForgetIn, GetAttrIn, GetXattrIn, InHeader, InitIn, MkDirIn, ReadIn, ReleaseIn,
    SetAttrIn, WriteIn,
};
use blockwright_fuse::protocol::{Opcode, ROOT_ID, Request};
use blockwright_fuse::{Dispatcher, FuseOptions, PermissionChecks};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// How much, and where.
#[derive(clap::Args, Debug)]
pub struct MetadataArgs {
    /// Files in all
    #[arg(short, long, default_value_t = 20_000)]
    files: u64,
    /// Files of a directory
    #[arg(long, default_value_t = 30)]
    per_dir: u64,
    /// Bytes written to each file
    #[arg(long, default_value_t = 4096)]
    bytes: usize,
    /// Threads, each with directories of its own
    #[arg(short, long, default_value_t = 1)]
    threads: u64,
    /// The volume's format
    #[arg(long, value_enum, default_value = "ext4")]
    format: Format,
    /// Image to make the volume in; without it, memory
    #[arg(long)]
    image: Option<PathBuf>,
    /// Size of the volume in MiB
    #[arg(long, default_value_t = 4096)]
    size: u64,
    /// Rounds, each with a tree of its own
    #[arg(long, default_value_t = 3)]
    rounds: u64,
}

/// Takes the reply's bytes.
struct Taken<'a>(&'a mut Vec<u8>);

impl ReplySink for Taken<'_> {
    fn send(self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.clear();
        for part in parts {
            self.0.extend_from_slice(part);
        }
        Ok(())
    }
}

type Times = BTreeMap<&'static str, Vec<u32>>;

/// A client that sends requests one after another.
struct Caller<'a> {
    dispatcher: &'a Dispatcher,
    request: Vec<u8>,
    reply: Vec<u8>,
    times: Times,
}

/// The bytes of a protocol struct.
macro_rules! bytes_of {
    ($value:expr) => {
        zerocopy::IntoBytes::as_bytes(&$value)
    };
}

impl<'a> Caller<'a> {
    fn new(dispatcher: &'a Dispatcher) -> Self {
        Caller {
            dispatcher,
            request: Vec::new(),
            reply: Vec::new(),
            times: Times::new(),
        }
    }

    /// Sends one request, and keeps its time under `name`. A failure is the caller's to look at: `Ok` is
    /// whether the server said yes.
    fn send(&mut self, name: &'static str, op: Opcode, node: u64, parts: &[&[u8]]) -> bool {
        let body: usize = parts.iter().map(|p| p.len()).sum();
        let header = InHeader {
            len: (size_of::<InHeader>() + body) as u32,
            opcode: op as u32,
            unique: 42,
            nodeid: node,
            ..InHeader::default()
        };
        self.request.clear();
        self.request.extend_from_slice(bytes_of!(header));
        for part in parts {
            self.request.extend_from_slice(part);
        }
        self.reply.clear();
        let begun = Instant::now();
        if let Ok(request) = Request::parse(&self.request) {
            self.dispatcher.handle(request, Taken(&mut self.reply));
        }
        let nanos = u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX);
        self.times.entry(name).or_default().push(nanos);
        self.reply
            .get(4..8)
            .is_none_or(|error| error == [0; 4].as_slice())
    }

    fn must(
        &mut self,
        name: &'static str,
        op: Opcode,
        node: u64,
        parts: &[&[u8]],
    ) -> Result<(), String> {
        if self.send(name, op, node, parts) {
            Ok(())
        } else {
            Err(format!("{name} failed"))
        }
    }

    fn answered<T: zerocopy::FromBytes>(&self, at: usize) -> Result<T, String> {
        let bytes = self
            .reply
            .get(size_of::<OutHeader>() + at..)
            .unwrap_or_default();
        match T::read_from_prefix(bytes) {
            Ok((value, _)) => Ok(value),
            Err(_) => Err("a reply is too short".to_owned()),
        }
    }

    fn make_dir(&mut self, parent: u64, name: &str) -> Result<u64, String> {
        let name = [name.as_bytes(), &[0]].concat();
        self.must(
            "MKDIR",
            Opcode::MkDir,
            parent,
            &[
                bytes_of!(MkDirIn {
                    mode: 0o755,
                    umask: 0
                }),
                &name,
            ],
        )?;
        Ok(self.answered::<EntryOut>(0)?.nodeid)
    }

    /// What `tar x` does for a file.
    fn extract(&mut self, dir: u64, name: &str, data: &[u8]) -> Result<u64, String> {
        let name = [name.as_bytes(), &[0]].concat();
        self.must("LOOKUP of nothing", Opcode::Lookup, dir, &[&name])?;
        let create = CreateIn {
            flags: 0o301,
            mode: 0o100_600,
            ..CreateIn::default()
        };
        self.must("CREATE", Opcode::Create, dir, &[bytes_of!(create), &name])?;
        let node = self.answered::<EntryOut>(0)?.nodeid;
        let fh = self.answered::<OpenOut>(size_of::<EntryOut>())?.fh;
        // Whether it has capabilities that a write takes away: no.
        let asked = [bytes_of!(GetXattrIn::default()), b"security.capability\0"].concat();
        self.send("GETXATTR of nothing", Opcode::GetXattr, node, &[&asked]);
        let write = WriteIn {
            fh,
            size: data.len() as u32,
            write_flags: WriteFlags::CACHE.bits(),
            ..WriteIn::default()
        };
        self.must("WRITE", Opcode::Write, node, &[bytes_of!(write), data])?;
        let times = SetAttrIn {
            valid: (SetAttrValid::MTIME | SetAttrValid::CTIME).bits(),
            mtime: 1_700_000_000,
            ctime: 1_700_000_000,
            ..SetAttrIn::default()
        };
        self.must("SETATTR times", Opcode::SetAttr, node, &[bytes_of!(times)])?;
        let valid = SetAttrValid::MTIME | SetAttrValid::ATIME | SetAttrValid::CTIME;
        let utimens = SetAttrIn {
            valid: valid.bits(),
            mtime: 1_600_000_000,
            atime: 1_600_000_000,
            ..times
        };
        self.must(
            "SETATTR utimens",
            Opcode::SetAttr,
            node,
            &[bytes_of!(utimens)],
        )?;
        let owner = SetAttrIn {
            valid: (SetAttrValid::UID | SetAttrValid::GID | SetAttrValid::CTIME).bits(),
            uid: 1000,
            gid: 1000,
            ..times
        };
        self.must("SETATTR owner", Opcode::SetAttr, node, &[bytes_of!(owner)])?;
        let mode = SetAttrIn {
            valid: (SetAttrValid::MODE | SetAttrValid::CTIME).bits(),
            mode: 0o100_644,
            ..times
        };
        self.must("SETATTR mode", Opcode::SetAttr, node, &[bytes_of!(mode)])?;
        let release = ReleaseIn {
            fh,
            ..ReleaseIn::default()
        };
        self.must("RELEASE", Opcode::Release, node, &[bytes_of!(release)])?;
        Ok(node)
    }

    fn find(&mut self, dir: u64, names: &[(String, u64)]) -> Result<(), String> {
        let mut entries = 0;
        let mut offset = 0;
        loop {
            let read = ReadIn {
                offset,
                size: 4096,
                ..ReadIn::default()
            };
            self.must("READDIRPLUS", Opcode::ReadDirPlus, dir, &[bytes_of!(read)])?;
            let mut at = size_of::<OutHeader>();
            let before = entries;
            while let Some(record) = self.reply.get(at..at + 152) {
                let word = |from: usize| {
                    let mut le = [0; 8];
                    le.copy_from_slice(&record[from..from + 8]);
                    u64::from_le_bytes(le)
                };
                offset = word(136);
                let name_bytes = (word(144) & 0xFFFF_FFFF) as usize;
                at += (152 + name_bytes).next_multiple_of(8);
                entries += 1;
            }
            if before == entries {
                break;
            }
        }
        if entries < names.len() {
            return Err(format!("{entries} of {} names were listed", names.len()));
        }
        // The lookups that READDIRPLUS counted go back.
        for (_, node) in names {
            self.send(
                "FORGET",
                Opcode::Forget,
                *node,
                &[bytes_of!(ForgetIn { nlookup: 1 })],
            );
        }
        for (name, node) in names {
            let name = [name.as_bytes(), &[0]].concat();
            self.must("LOOKUP", Opcode::Lookup, dir, &[&name])?;
            self.must(
                "GETATTR",
                Opcode::GetAttr,
                *node,
                &[bytes_of!(GetAttrIn::default())],
            )?;
            self.send(
                "FORGET",
                Opcode::Forget,
                *node,
                &[bytes_of!(ForgetIn { nlookup: 1 })],
            );
        }
        Ok(())
    }

    /// What `rm` does for a file.
    fn remove(&mut self, dir: u64, name: &str, node: u64) -> Result<(), String> {
        let name = [name.as_bytes(), &[0]].concat();
        self.must("UNLINK", Opcode::Unlink, dir, &[&name])?;
        let times = SetAttrIn {
            valid: (SetAttrValid::MTIME | SetAttrValid::CTIME).bits(),
            mtime: 1_700_000_000,
            ctime: 1_700_000_000,
            ..SetAttrIn::default()
        };
        self.must(
            "SETATTR after unlink",
            Opcode::SetAttr,
            node,
            &[bytes_of!(times)],
        )?;
        self.send(
            "FORGET, the last",
            Opcode::Forget,
            node,
            &[bytes_of!(ForgetIn { nlookup: 1 })],
        );
        Ok(())
    }
}

/// A directory's node, and its files.
type Made = (u64, Vec<(String, u64)>);

struct Phase {
    name: &'static str,
    seconds: f64,
    cpu_seconds: f64,
}

fn cpu_seconds() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

/// Runs `work` in each thread with a caller of its own; all their times.
fn phase<T: Send>(
    name: &'static str,
    dispatcher: &Dispatcher,
    all: &mut (Times, Vec<Phase>),
    inputs: Vec<T>,
    work: impl Fn(&mut Caller<'_>, T) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let done: Vec<Result<(T, Times), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = inputs
            .into_iter()
            .map(|input| {
                let work = &work;
                scope.spawn(move || {
                    let mut caller = Caller::new(dispatcher);
                    let output = work(&mut caller, input)?;
                    Ok((output, caller.times))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| {
                t.join()
                    .unwrap_or_else(|_| Err("a thread panicked".to_owned()))
            })
            .collect()
    });
    all.1.push(Phase {
        name,
        seconds: begun.elapsed().as_secs_f64(),
        cpu_seconds: cpu_seconds() - cpu,
    });
    let mut outputs = Vec::new();
    for one in done {
        let (output, times) = one?;
        outputs.push(output);
        for (name, mut list) in times {
            all.0.entry(name).or_default().append(&mut list);
        }
    }
    Ok(outputs)
}

fn round(
    args: &MetadataArgs,
    dispatcher: &Dispatcher,
    number: u64,
    all: &mut (Times, Vec<Phase>),
) -> Result<(), String> {
    let threads = args.threads.max(1);
    let dirs = (args.files / threads / args.per_dir.max(1)).max(1);
    let per_dir = (args.files / threads / dirs).max(1);
    let data: Vec<u8> = (0..args.bytes).map(|i| (i * 7 + i / 256) as u8).collect();
    let empty: Vec<(u64, Vec<Made>)> = (0..threads).map(|t| (t, Vec::new())).collect();
    let trees = phase("make", dispatcher, all, empty, |caller, (thread, _)| {
        let mut made = Vec::new();
        let top = caller.make_dir(ROOT_ID, &format!("round-{number}-{thread}"))?;
        for d in 0..dirs {
            let dir = caller.make_dir(top, &format!("directory-{d}"))?;
            let mut files = Vec::new();
            for f in 0..per_dir {
                let name = format!("some_file_name_{f:05}.rs");
                let node = caller.extract(dir, &name, &data)?;
                files.push((name, node));
            }
            made.push((dir, files));
        }
        Ok((thread, made))
    })?;
    let trees = phase("find", dispatcher, all, trees, |caller, tree| {
        for (dir, files) in &tree.1 {
            caller.find(*dir, files)?;
        }
        Ok(tree)
    })?;
    phase("sync", dispatcher, all, vec![()], |caller, ()| {
        caller.must("SYNCFS", Opcode::SyncFs, ROOT_ID, &[&[0; 8]])
    })?;
    phase("remove", dispatcher, all, trees, |caller, tree| {
        for (dir, files) in &tree.1 {
            for (name, node) in files {
                caller.remove(*dir, name, *node)?;
            }
        }
        Ok(tree)
    })?;
    phase("sync again", dispatcher, all, vec![()], |caller, ()| {
        caller.must("SYNCFS", Opcode::SyncFs, ROOT_ID, &[&[0; 8]])
    })?;
    Ok(())
}

/// Runs it and prints a table.
///
/// # Errors
/// A sentence.
pub fn run(args: &MetadataArgs) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let builder = VolumeBuilder::new()
        .format(args.format.of_library())
        .size(args.size << 20);
    let device: SharedDevice = match &args.image {
        Some(path) => {
            builder.create(path).map_err(|e| text(&e))?;
            HostDevice::open(path, OpenMode::default()).map_err(|e| text(&e))?
        }
        None => {
            let device: SharedDevice = Arc::new(MemoryDevice::new(args.size << 20));
            builder.create_on(&device).map_err(|e| text(&e))?;
            device
        }
    };
    let volume = Volume::open_device(device).map_err(|e| text(&e))?;
    let options = FuseOptions {
        permissions: PermissionChecks::Volume,
        ..FuseOptions::default()
    };
    let dispatcher = Dispatcher::new(Arc::clone(volume.vfs()), &options).map_err(|e| text(&e))?;
    let init = InitIn {
        major: 7,
        minor: 41,
        flags: InitFlags::all().words().0,
        flags2: InitFlags::all().words().1,
        ..InitIn::default()
    };
    Caller::new(&dispatcher).must("INIT", Opcode::Init, 0, &[bytes_of!(init)])?;
    let mut all = (Times::new(), Vec::new());
    for number in 0..args.rounds.max(1) {
        round(args, &dispatcher, number, &mut all)?;
    }
    println!("| request | count | median µs | mean µs | all ms |\n|---|---|---|---|---|");
    for (name, list) in &mut all.0 {
        list.sort_unstable();
        let total: u64 = list.iter().map(|n| u64::from(*n)).sum();
        let median = f64::from(list[list.len() / 2]) / 1e3;
        let mean = total as f64 / 1e3 / list.len() as f64;
        println!(
            "| {name} | {} | {median:.2} | {mean:.2} | {:.1} |",
            list.len(),
            total as f64 / 1e6
        );
    }
    println!("\n| phase | seconds | processor seconds of all threads |\n|---|---|---|");
    for phase in &all.1 {
        println!(
            "| {} | {:.3} | {:.3} |",
            phase.name, phase.seconds, phase.cpu_seconds
        );
    }
    dispatcher.close();
    volume.close().map_err(|e| text(&e))
}
