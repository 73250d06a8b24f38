//! Recorded device requests: the file, its writer and its reader.
//!
//! # The file
//! Little-endian. A head of 128 bytes: `BWTRACE1`, bytes of a record (u32, 40), flags (u32, 0), the device's
//! size (u64), when it began (u64, nanoseconds since 1970), length of the device's name (u32), the name (at most
//! 92 bytes, cut at a character). Then records of 40 bytes: start (u64, nanoseconds since the beginning),
//! latency (u64, nanoseconds), offset (u64), bytes (u64), kind (u8: [`Kind`]'s number, or 255: the end), flags (u8: 1
//! = FUA), six bytes of zeroes. Records are in the order of completion. The end has, for an offset, how many
//! requests were lost because the file could not be written as fast as they came, and, for bytes, why it ended: 0
//! asked to, 1 the limit. A file without an end was cut off.
//!
//! # Bounds
//! Memory: five buffers of 1 MiB. Disk: the limit given. Records that do not fit are counted and
//! dropped: the device's threads never wait for the file.

use crate::request::Kind;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

const MAGIC: &[u8; 8] = b"BWTRACE1";
const HEAD_BYTES: usize = 128;
const NAME_BYTES_MAX: usize = HEAD_BYTES - 36;
const RECORD_BYTES: usize = 40;
const END: u8 = 255;
/// Records that are handed to the writer at once.
const BUFFER_BYTES: usize = (1 << 20) / RECORD_BYTES * RECORD_BYTES;
/// Buffers on their way to the writer.
const BUFFERS_MAX: usize = 4;

/// How a trace is recorded.
#[derive(Debug)]
pub struct TraceOptions {
    /// The file. The caller that starts the trace has made or emptied it.
    pub file: File,
    /// Its name, for messages.
    pub path: PathBuf,
    /// Bytes the file may have; the recording ends there.
    pub bytes_max: u64,
    /// What is recorded.
    pub device_name: String,
    /// The device's size in bytes.
    pub device_bytes: u64,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it was submitted: nanoseconds since the trace began.
    pub start_ns: u64,
    /// Nanoseconds until it was completed.
    pub latency_ns: u64,
    /// Where on the device, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// What.
    pub kind: Kind,
    /// Durable on completion.
    pub fua: bool,
}

impl Event {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        record(
            self.start_ns,
            self.latency_ns,
            self.offset,
            self.bytes,
            self.kind as u8,
            u8::from(self.fua),
        )
    }
}

fn record(start: u64, latency: u64, offset: u64, bytes: u64, kind: u8, flags: u8) -> [u8; 40] {
    let mut out = [0; RECORD_BYTES];
    for (at, value) in [(0, start), (8, latency), (16, offset), (24, bytes)] {
        out[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    (out[32], out[33]) = (kind, flags);
    out
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

/// Why a trace ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A caller asked for it, or the device was closed.
    Asked,
    /// The file had its limit's size.
    Limit,
    /// There is no end: the recorder was killed, or the file was cut.
    Missing,
}

/// How a recording goes, or went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceStatus {
    /// The file.
    pub path: PathBuf,
    /// Requests recorded.
    pub recorded: u64,
    /// Requests that could not be recorded because the file was written too slowly.
    pub lost: u64,
    /// The limit was reached, or the file cannot be written: nothing more is recorded.
    pub full: bool,
}

/// What keeps a trace from being recorded or read.
#[derive(Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// One is being recorded.
    Running,
    /// The device cannot tell of its requests.
    Unsupported,
    /// The file cannot be written or read.
    Io(io::Error),
    /// The file is no trace, or not of a version that is known here.
    NotATrace,
    /// The file is damaged.
    Damaged {
        /// Which record, from 0.
        record: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceError::Running => f.write_str("a trace is being recorded already"),
            TraceError::Unsupported => f.write_str("the device records no traces"),
            TraceError::Io(e) => e.fmt(f),
            TraceError::NotATrace => f.write_str("not a trace of device requests"),
            TraceError::Damaged { record, what } => {
                write!(f, "damaged trace: record {record}: {what}")
            }
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TraceError::Io(e) => Some(e),
            _ => None,
        }
    }
}

impl From<io::Error> for TraceError {
    fn from(e: io::Error) -> Self {
        TraceError::Io(e)
    }
}

fn head(options: &TraceOptions) -> [u8; HEAD_BYTES] {
    let mut out = [0; HEAD_BYTES];
    let began = SystemTime::now().duration_since(UNIX_EPOCH);
    let began = began.map_or(0, |since| since.as_nanos() as u64);
    let mut name = options.device_name.as_str();
    while name.len() > NAME_BYTES_MAX {
        let cut = name.char_indices().next_back().map_or(0, |(at, _)| at);
        name = &name[..cut];
    }
    out[..8].copy_from_slice(MAGIC);
    out[8..12].copy_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
    out[16..24].copy_from_slice(&options.device_bytes.to_le_bytes());
    out[24..32].copy_from_slice(&began.to_le_bytes());
    out[32..36].copy_from_slice(&(name.len() as u32).to_le_bytes());
    out[36..36 + name.len()].copy_from_slice(name.as_bytes());
    out
}

/// Takes events and has a thread write them.
pub(crate) struct Recorder {
    began_ns: u64,
    path: PathBuf,
    buffer: Vec<u8>,
    to_writer: SyncSender<Vec<u8>>,
    writer: JoinHandle<io::Result<()>>,
    recorded: u64,
    lost: u64,
    /// Bytes the file may still get.
    left: u64,
    full: bool,
}

impl Recorder {
    /// Writes the head and starts the writer. `now_ns`: the clock that events will be stamped with.
    pub(crate) fn start(options: TraceOptions, now_ns: u64) -> Result<Self, TraceError> {
        let mut file = options.file.try_clone()?;
        file.write_all(&head(&options))?;
        let (to_writer, buffers) = sync_channel::<Vec<u8>>(BUFFERS_MAX);
        let writer = std::thread::Builder::new()
            .name("device-trace".into())
            .spawn(move || {
                for buffer in buffers {
                    file.write_all(&buffer)?;
                }
                file.flush()
            })?;
        let around = (HEAD_BYTES + RECORD_BYTES) as u64;
        Ok(Recorder {
            began_ns: now_ns,
            path: options.path,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            to_writer,
            writer,
            recorded: 0,
            lost: 0,
            left: options.bytes_max.saturating_sub(around),
            full: false,
        })
    }

    pub(crate) fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// Records an event. Whether more can be recorded.
    pub(crate) fn push(&mut self, event: &Event) -> bool {
        if self.left < RECORD_BYTES as u64 {
            self.full = true;
            return false;
        }
        self.left -= RECORD_BYTES as u64;
        self.buffer.extend_from_slice(&event.encode());
        self.recorded += 1;
        if self.buffer.len() < BUFFER_BYTES {
            return true;
        }
        let buffer = std::mem::replace(&mut self.buffer, Vec::with_capacity(BUFFER_BYTES));
        match self.to_writer.try_send(buffer) {
            Ok(()) => true,
            Err(TrySendError::Full(mut buffer)) => {
                let records = (buffer.len() / RECORD_BYTES) as u64;
                self.recorded -= records;
                self.lost += records;
                self.left += buffer.len() as u64;
                buffer.clear();
                self.buffer = buffer;
                true
            }
            // The writer met an error, which `finish` reports.
            Err(TrySendError::Disconnected(_)) => {
                self.full = true;
                false
            }
        }
    }

    pub(crate) fn status(&self) -> TraceStatus {
        TraceStatus {
            path: self.path.clone(),
            recorded: self.recorded,
            lost: self.lost,
            full: self.full,
        }
    }

    /// Writes what is left, and the end.
    pub(crate) fn finish(mut self) -> Result<TraceStatus, TraceError> {
        let why = u64::from(self.full);
        let end = record(0, 0, self.lost, why, END, 0);
        self.buffer.extend_from_slice(&end);
        // An error of the writer's comes by its result.
        let _gone = self.to_writer.send(std::mem::take(&mut self.buffer));
        let status = self.status();
        drop(self.to_writer);
        match self.writer.join() {
            Ok(result) => result?,
            Err(_) => return Err(io::Error::other("the trace's writer failed").into()),
        }
        Ok(status)
    }
}

/// Reads a trace record by record.
pub struct TraceReader {
    from: BufReader<File>,
    /// What was recorded.
    pub device_name: String,
    /// The device's size in bytes.
    pub device_bytes: u64,
    /// When it began: nanoseconds since 1970.
    pub began_unix_ns: u64,
    /// How it ended; known when all events were read.
    pub ending: Ending,
    /// Requests that were lost; known when all events were read.
    pub lost: u64,
    read: u64,
}

impl TraceReader {
    /// Opens a trace.
    ///
    /// # Errors
    /// `Io`; `NotATrace`; `Damaged` when the head is invalid.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let mut from = BufReader::with_capacity(1 << 20, File::open(path)?);
        let mut head = [0; HEAD_BYTES];
        match from.read_exact(&mut head) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(TraceError::NotATrace);
            }
            Err(e) => return Err(e.into()),
        }
        if &head[..8] != MAGIC
            || u32_at(&head, 8) as usize != RECORD_BYTES
            || u32_at(&head, 12) != 0
        {
            return Err(TraceError::NotATrace);
        }
        let name = head.get(36..36usize.saturating_add(u32_at(&head, 32) as usize));
        let name = name.and_then(|bytes| std::str::from_utf8(bytes).ok());
        let Some(name) = name else {
            return Err(TraceError::Damaged {
                record: 0,
                what: "the device's name in the head",
            });
        };
        Ok(TraceReader {
            from,
            device_name: name.to_owned(),
            device_bytes: u64_at(&head, 16),
            began_unix_ns: u64_at(&head, 24),
            ending: Ending::Missing,
            lost: 0,
            read: 0,
        })
    }

    /// The next event; `None` at the end. A trace that was cut off ends with its last whole record.
    ///
    /// # Errors
    /// `Io`, `Damaged`.
    pub fn next_event(&mut self) -> Result<Option<Event>, TraceError> {
        if self.ending != Ending::Missing {
            return Ok(None);
        }
        let mut bytes = [0; RECORD_BYTES];
        match self.from.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        let damaged = |what| {
            Err(TraceError::Damaged {
                record: self.read,
                what,
            })
        };
        if bytes[34..] != [0; 6] {
            return damaged("bytes that must be zero are not");
        }
        let (offset, length) = (u64_at(&bytes, 16), u64_at(&bytes, 24));
        if bytes[32] == END {
            let ending = match length {
                0 => Ending::Asked,
                1 => Ending::Limit,
                _ => return damaged("an end of an unknown kind"),
            };
            let mut more = [0];
            if self.from.read(&mut more)? != 0 {
                return damaged("something follows the end");
            }
            (self.ending, self.lost) = (ending, offset);
            return Ok(None);
        }
        let Some(kind) = Kind::ALL.get(usize::from(bytes[32])) else {
            return damaged("a request of an unknown kind");
        };
        if offset.checked_add(length).is_none() {
            return damaged("a request beyond any device");
        }
        if bytes[33] > 1 {
            return damaged("unknown flags");
        }
        self.read += 1;
        Ok(Some(Event {
            start_ns: u64_at(&bytes, 0),
            latency_ns: u64_at(&bytes, 8),
            offset,
            bytes: length,
            kind: *kind,
            fua: bytes[33] == 1,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DevOffset;
    use crate::monitor::{Monitor, Seen};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let file = format!("bw-trace-{}-{name}", std::process::id());
            Scratch(std::env::temp_dir().join(file))
        }

        fn options(&self, bytes_max: u64) -> TraceOptions {
            TraceOptions {
                file: File::create(&self.0).unwrap(),
                path: self.0.clone(),
                bytes_max,
                device_name: "ä".repeat(60),
                device_bytes: 1 << 40,
            }
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn write(k: u64) -> Seen {
        Seen {
            kind: Kind::ALL[(k % 6) as usize],
            offset: DevOffset(k * 4096),
            bytes: 4096,
            fua: k % 2 == 1,
        }
    }

    fn record(monitor: &Monitor, count: u64) {
        for k in 0..count {
            let stamp = monitor.submitted(&write(k));
            monitor.completed(&write(k), stamp, true);
        }
    }

    fn read(path: &Path) -> Result<(TraceReader, Vec<Event>), TraceError> {
        let mut reader = TraceReader::open(path)?;
        let mut events = Vec::new();
        while let Some(event) = reader.next_event()? {
            events.push(event);
        }
        Ok((reader, events))
    }

    #[test]
    fn what_is_recorded_is_read() {
        let scratch = Scratch::new("round");
        let monitor = Monitor::default();
        record(&monitor, 3);
        monitor.start_trace(scratch.options(1 << 20)).unwrap();
        assert!(matches!(
            monitor.start_trace(Scratch::new("other").options(0)),
            Err(TraceError::Running)
        ));
        record(&monitor, 100);
        let status = monitor.stop_trace().unwrap().unwrap();
        assert_eq!((status.recorded, status.lost, status.full), (100, 0, false));
        record(&monitor, 3);
        assert_eq!(monitor.stop_trace().unwrap(), None);

        let (reader, events) = read(&scratch.0).unwrap();
        assert_eq!(reader.ending, Ending::Asked);
        assert_eq!(reader.device_bytes, 1 << 40);
        assert_eq!(reader.device_name, "ä".repeat(46));
        assert_eq!(events.len(), 100);
        for (k, event) in (0..).zip(&events) {
            let asked = write(k);
            assert_eq!(
                (event.offset, event.bytes, event.kind, event.fua),
                (asked.offset.0, asked.bytes, asked.kind, asked.fua)
            );
        }
        assert!(events.is_sorted_by_key(|event| event.start_ns));
    }

    #[test]
    fn the_file_is_bounded() {
        let scratch = Scratch::new("bounded");
        let monitor = Monitor::default();
        monitor.start_trace(scratch.options(1000)).unwrap();
        record(&monitor, 100);
        assert!(monitor.trace_status().unwrap().full);
        let status = monitor.stop_trace().unwrap().unwrap();
        // The head, the end, and as many records as fit.
        assert_eq!(status.recorded, (1000 - 128 - 40) / 40);
        assert!(std::fs::metadata(&scratch.0).unwrap().len() <= 1000);
        let (reader, events) = read(&scratch.0).unwrap();
        assert_eq!((reader.ending, events.len()), (Ending::Limit, 20));
    }

    #[test]
    fn bad_files_are_refused_and_cut_ones_read() {
        let scratch = Scratch::new("bad");
        let monitor = Monitor::default();
        monitor.start_trace(scratch.options(1 << 20)).unwrap();
        record(&monitor, 5);
        monitor.stop_trace().unwrap();
        let good = std::fs::read(&scratch.0).unwrap();
        assert_eq!(good.len(), 128 + 6 * 40);

        std::fs::write(&scratch.0, &good[..128 + 3 * 40 + 7]).unwrap();
        let (reader, events) = read(&scratch.0).unwrap();
        assert_eq!((reader.ending, events.len()), (Ending::Missing, 3));

        for (at, value, says) in [
            (0, b'X', "not a trace"),
            (8, 41, "not a trace"),
            (32, 200, "name in the head"),
            (128 + 40 + 32, 6, "record 1: a request of an unknown kind"),
            (128 + 39, 1, "record 0: bytes that must be zero"),
            (128 + 33, 2, "record 0: unknown flags"),
            (128 + 23, 255, ""),
            (128 + 5 * 40 + 24, 9, "record 5: an end of an unknown kind"),
        ] {
            let mut bad = good.clone();
            bad[at] = value;
            if says.is_empty() {
                bad[128 + 16..128 + 24].fill(255);
            }
            std::fs::write(&scratch.0, &bad).unwrap();
            let error = read(&scratch.0).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(says), "{at}: {error}");
        }
        let mut more = good.clone();
        more.push(0);
        std::fs::write(&scratch.0, &more).unwrap();
        assert!(read(&scratch.0).is_err());
        std::fs::write(&scratch.0, b"BWTRACE1").unwrap();
        assert!(matches!(read(&scratch.0), Err(TraceError::NotATrace)));
        assert!(matches!(
            TraceReader::open("/nonexistent"),
            Err(TraceError::Io(_))
        ));
    }
}
