//! Answers to the control ioctl: statistics, tunables, traces. See `protocol::control`.

use super::{Dispatcher, OPCODES};
use crate::protocol::Opcode;
use crate::protocol::control::{
    Lines, OPEN_IT, PAGE_BYTES, Packet, Request as Asked, Status, TraceReport, lines, write_stats,
    write_tunables,
};
use crate::protocol::request::Request;
use blockwright_device::trace::{TraceError, TraceStatus};
use blockwright_vfs::Stats;
use blockwright_vfs::engine::NewSize;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::FromBytes;

/// Answers that are kept while they are fetched.
const KEPT_MAX: usize = 16;

/// Long answers on their way.
#[derive(Default)]
pub(super) struct Answers {
    next: AtomicU64,
    kept: Mutex<VecDeque<(u64, Arc<str>)>>,
}

impl Answers {
    /// The first page of an answer; the rest is kept if there is one.
    fn first(&self, text: String) -> Packet {
        if text.len() <= PAGE_BYTES {
            return Packet::new(Status::Done as u32, 0, text.as_bytes(), 0);
        }
        let token = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let text: Arc<str> = text.into();
        let mut kept = self.kept.lock();
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back((token, Arc::clone(&text)));
        Packet::new(Status::Done as u32, token, text.as_bytes(), 0)
    }

    /// A later page. The answer is dropped with its last page.
    fn page(&self, token: u64, offset: usize) -> Packet {
        let mut kept = self.kept.lock();
        let Some(at) = kept.iter().position(|(t, _)| *t == token) else {
            return Packet::new(Status::Stale as u32, 0, b"", 0);
        };
        let text = Arc::clone(&kept[at].1);
        if offset.saturating_add(PAGE_BYTES) >= text.len() {
            kept.remove(at);
        }
        Packet::new(Status::Done as u32, token, text.as_bytes(), offset)
    }
}

type Answered = Result<String, String>;

impl Dispatcher {
    /// The counters of the volume, the connection and its transport.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut out = self.vfs.stats();
        out.section("fuse");
        if let Some(transport) = self.transport.get().and_then(std::sync::Weak::upgrade) {
            transport.stats(&mut out);
        }
        let (nodes, files) = self.held();
        let (held_nodes, table_bytes) = self.nodes.held();
        blockwright_vfs::stat_lines! { &mut out;
            gauge "fuse_pool_threads", Count, "threads for requests that wait" => self.threads.alive() as u64;
            gauge "fuse_nodes", Count, "inodes that the kernel remembers" => nodes as u64;
            gauge "fuse_nodes_held", Count, "of these, inodes that stay in memory: open for writing, without a name, or in use lately"
                => held_nodes as u64;
            gauge "fuse_nodes_bytes", Bytes, "what the table of them takes" => table_bytes;
            gauge "fuse_open_files", Count, "files that the kernel has open" => files as u64;
            gauge "fuse_image_offset", Bytes, "where the volume begins in its image (offset=)" => self.options.image_offset;
        }
        if let Some(cpu_latency) = self.cpu_latency.get() {
            cpu_latency.stats(&mut out);
        }
        self.releases.stats(&mut out);
        self.read_ahead.stats(&mut out);
        for op in (0..OPCODES as u32).filter_map(Opcode::from_wire) {
            let count = self.requests[op as usize].load(Ordering::Relaxed);
            if count > 0 {
                blockwright_vfs::stat_lines! { &mut out;
                    counter "fuse_requests", Count, "requests received" => count;
                }
                out.labelled("opcode", format!("{op:?}"));
            }
        }
        out
    }

    /// Answers one packet.
    pub(super) fn control(
        &self,
        request: &Request<'_>,
        input: &[u8],
    ) -> std::result::Result<Packet, super::Failure> {
        let (packet, _) = Packet::read_from_prefix(input).map_err(|_| Errno::INVAL)?;
        let text = packet.text().ok_or(Errno::INVAL)?;
        let text = std::str::from_utf8(text).map_err(|_| Errno::INVAL)?;
        if packet.token != 0 {
            return Ok(self.answers.page(packet.token, packet.offset as usize));
        }
        let answered = match Asked::from_code(packet.code) {
            None => Err("this server is older than the program that asks it".to_owned()),
            Some(asked) if asked.changes() && !self.may_change(request.header.uid) => {
                Err("only root and the mounting user may do that".to_owned())
            }
            Some(asked) => self.answer(asked, text, request.header.pid),
        };
        Ok(match answered {
            Ok(text) => self.answers.first(text),
            Err(why) => Packet::new(Status::Refused as u32, 0, why.as_bytes(), 0),
        })
    }

    fn may_change(&self, uid: u32) -> bool {
        // A confined server no longer runs as the mounting user.
        let me = || rustix::process::geteuid().as_raw();
        let owner = self.options.keeper.as_ref().map_or_else(me, |k| k.owner());
        uid == 0 || uid == owner
    }

    fn answer(&self, asked: Asked, text: &str, client: u32) -> Answered {
        let fields = lines(text).next().unwrap_or_default();
        match asked {
            Asked::Stats => Ok(write_stats(&self.stats())),
            Asked::Tunables => Ok(write_tunables(&self.vfs.tunables())),
            Asked::Tune => {
                let [name, value] = &fields[..] else {
                    return Err("a name and a value are needed".to_owned());
                };
                let number = value
                    .parse()
                    .map_err(|_| format!("{name}={value}: not a number"))?;
                self.vfs.tune(name, number).map_err(|e| e.to_string())?;
                let mut all = self.vfs.tunables();
                all.retain(|t| t.name == *name);
                Ok(write_tunables(&all))
            }
            Asked::TraceStart => {
                let (path, bytes_max, number) = match &fields[..] {
                    [path, bytes_max] => (path, bytes_max, None),
                    [path, bytes_max, number] => (path, bytes_max, Some(number)),
                    _ => return Err("a path and a limit are needed".to_owned()),
                };
                let bytes_max = bytes_max.parse().map_err(|_| "the limit is not a number")?;
                let path = Path::new(path);
                let place = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
                if !path.is_absolute() {
                    return Err(place(&"not an absolute path"));
                }
                let started = match (&self.options.keeper, number) {
                    (None, _) => self.vfs.start_trace(path, bytes_max),
                    // A confined server opens no path: the client is to open the file, and to tell its number.
                    (Some(_), None) => match self.vfs.trace_status() {
                        Ok(Some(_)) => Err(TraceError::Running),
                        _ => return Ok(OPEN_IT.to_owned()),
                    },
                    (Some(keeper), Some(number)) => {
                        let number = number.parse().map_err(|_| "not a descriptor")?;
                        let file = keeper.trace_file(client, number).map_err(|e| place(&e))?;
                        self.vfs.start_trace_to(file.into(), path, bytes_max)
                    }
                };
                started.map(|()| String::new()).map_err(|e| place(&e))
            }
            Asked::Sync => match self.vfs.sync() {
                Ok(()) => Ok(String::new()),
                Err(e) => Err(e.to_string()),
            },
            Asked::Grow => {
                let [size] = &fields[..] else {
                    return Err("a size is needed".to_owned());
                };
                let bytes = |text: &str| {
                    let number = text.parse::<u64>();
                    number.map_err(|_| format!("{size}: not a size"))
                };
                let size = match (&**size, size.strip_prefix('+')) {
                    ("fill", _) => NewSize::Fill,
                    (_, Some(more)) => NewSize::More(bytes(more)?),
                    (all, None) => NewSize::Bytes(bytes(all)?),
                };
                let grown = self.vfs.engine().grow(size).map_err(|e| e.to_string())?;
                let mut lines = Lines::default();
                lines.line([&*grown.before.to_string(), &*grown.now.to_string()]);
                Ok(lines.into_text())
            }
            Asked::TraceStatus => match self.vfs.trace_status() {
                Ok(status) => Ok(status.map_or_else(String::new, report)),
                Err(e) => Err(e.to_string()),
            },
            Asked::TraceStop => match self.vfs.stop_trace() {
                Ok(Some(status)) => Ok(report(status)),
                Ok(None) => Err("no trace is being recorded".to_owned()),
                Err(e) => Err(e.to_string()),
            },
        }
    }
}

fn report(status: TraceStatus) -> String {
    TraceReport {
        path: status.path.display().to_string(),
        recorded: status.recorded,
        lost: status.lost,
        full: status.full,
    }
    .write()
}
