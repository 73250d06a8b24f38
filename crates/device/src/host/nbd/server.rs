//! A small NBD server over any device, for tests: it can behave as an old, limited, slow or wrong
//! server.

use super::wire::{
    self, COMMAND_FUA, Command, Handshake, REQUEST_BYTES, Transmission, answer, chunk, info,
    option, take,
};
use crate::{AlignedBuf, DevOffset, DeviceErrorKind, Flags, SharedDevice};
use parking_lot::Mutex;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

/// What happens to a connection after some requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server closes it.
    Close,
    /// It stays open, and nothing is answered any more.
    Silence,
    /// A reply that is none.
    Garbage,
    /// A reply to a request that was not made.
    Stranger,
    /// Half of the data of a read, then the end.
    HalfRead,
}

crate::with_defaults! {
/// How the server behaves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The export's name.
    pub export: String = String::new(),
    /// Knows `GO`.
    pub go: bool = true,
    /// Can flush.
    pub flush: bool = true,
    /// Knows FUA.
    pub fua: bool = true,
    /// Can trim.
    pub trim: bool = true,
    /// Can zero.
    pub write_zeroes: bool = true,
    /// Smallest, preferred and largest request; told only when there.
    pub block_sizes: Option<(u32, u32, u32)> = None,
    /// So many replies are gathered, and sent last first.
    pub reversed: usize = 1,
    /// Answers reads in chunks: blocks of zeroes as holes; and tells what reads as zeroes.
    pub structured: bool = true,
    /// Allows several connections.
    pub multi: bool = true,
    /// What goes wrong after this many requests of a connection.
    pub fault: Option<(u64, Fault)> = None,
}
}

/// What was asked of the server.
#[derive(Default, Debug)]
pub struct ServerCounts {
    /// Connections that got to an export.
    pub connections: AtomicU64,
    /// Requests.
    pub requests: AtomicU64,
    /// Flushes.
    pub flushes: AtomicU64,
    /// Writes and zeroings with FUA.
    pub fua: AtomicU64,
    /// Chunks of replies that are holes.
    pub holes: AtomicU64,
    /// Trims.
    pub trims: AtomicU64,
    /// Zeroings without data.
    pub zeroings: AtomicU64,
    /// The largest request that carried data.
    pub bytes_max: AtomicU64,
    /// Requests that are no whole smallest requests.
    pub misaligned: AtomicU64,
    /// Connections that ended as the protocol has it.
    pub goodbyes: AtomicU64,
}

struct Shared {
    device: SharedDevice,
    options: ServerOptions,
    counts: Arc<ServerCounts>,
    ending: AtomicBool,
    connections: Mutex<Vec<Peer>>,
}

/// See the module's head. Ends when dropped, with its connections.
pub struct NbdServer {
    shared: Arc<Shared>,
    address: String,
    wake: Wake,
    thread: Option<JoinHandle<()>>,
    socket: Option<PathBuf>,
}

/// Where to connect to wake the listener up.
enum Wake {
    Tcp(std::net::SocketAddr),
    Unix(PathBuf),
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Peer {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Peer {
    fn try_clone(&self) -> io::Result<Peer> {
        Ok(match self {
            Peer::Tcp(stream) => Peer::Tcp(stream.try_clone()?),
            Peer::Unix(stream) => Peer::Unix(stream.try_clone()?),
        })
    }

    fn close(&self) {
        let _closed_already = match self {
            Peer::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Peer::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for Peer {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Peer::Tcp(stream) => stream.read(buf),
            Peer::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for Peer {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Peer::Tcp(stream) => stream.write(buf),
            Peer::Unix(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl NbdServer {
    /// Serves a device on a free port of this host.
    ///
    /// # Panics
    /// When the host has none.
    #[must_use]
    pub fn tcp(device: SharedDevice, options: ServerOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("the port");
        let address = format!("nbd://{at}/{}", options.export);
        Self::start(
            device,
            options,
            Listener::Tcp(listener),
            address,
            Wake::Tcp(at),
        )
    }

    /// Serves a device on a socket, which is made and removed.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn unix(device: SharedDevice, options: ServerOptions, socket: &Path) -> Self {
        let listener = UnixListener::bind(socket).expect("a socket");
        let address = format!("nbd+unix:///{}?socket={}", options.export, socket.display());
        let mut server = Self::start(
            device,
            options,
            Listener::Unix(listener),
            address,
            Wake::Unix(socket.to_owned()),
        );
        server.socket = Some(socket.to_owned());
        server
    }

    fn start(
        device: SharedDevice,
        options: ServerOptions,
        listener: Listener,
        address: String,
        wake: Wake,
    ) -> Self {
        let shared = Arc::new(Shared {
            device,
            options,
            counts: Arc::default(),
            ending: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let ours = Arc::clone(&shared);
        let thread = thread::spawn(move || listen(&ours, &listener));
        NbdServer {
            shared,
            address,
            wake,
            thread: Some(thread),
            socket: None,
        }
    }

    /// The export's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What was asked so far.
    #[must_use]
    pub fn counts(&self) -> &Arc<ServerCounts> {
        &self.shared.counts
    }

    /// Closes the connection that was made last.
    pub fn disconnect_one(&self) {
        if let Some(peer) = self.shared.connections.lock().pop() {
            peer.close();
        }
    }

    /// Closes every connection there is.
    pub fn disconnect(&self) {
        for peer in self.shared.connections.lock().drain(..) {
            peer.close();
        }
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        let _woken = match &self.wake {
            Wake::Tcp(at) => TcpStream::connect(at).map(drop),
            Wake::Unix(path) => UnixStream::connect(path).map(drop),
        };
        self.disconnect();
        if let Some(thread) = self.thread.take() {
            let _panics_are_told = thread.join();
        }
        if let Some(socket) = &self.socket {
            let _gone = std::fs::remove_file(socket);
        }
    }
}

fn listen(shared: &Arc<Shared>, listener: &Listener) {
    let mut threads = Vec::new();
    loop {
        let peer = match listener {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Peer::Tcp(stream)),
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| Peer::Unix(stream)),
        };
        if shared.ending.load(Ordering::SeqCst) {
            break;
        }
        let Ok(peer) = peer else { break };
        let Ok(copy) = peer.try_clone() else { break };
        shared.connections.lock().push(copy);
        let shared = Arc::clone(shared);
        threads.push(thread::spawn(move || {
            let mut peer = peer;
            // The client sees the end, for any reason.
            let _ended = serve(&shared, &mut peer);
            peer.close();
        }));
    }
    // One that came between the last look and the end.
    for peer in shared.connections.lock().drain(..) {
        peer.close();
    }
    for thread in threads {
        let _panics_are_told = thread.join();
    }
}

fn number<const N: usize>(peer: &mut Peer) -> io::Result<u64> {
    let mut bytes = [0; N];
    peer.read_exact(&mut bytes)?;
    Ok(take::<N>(&mut &bytes[..]))
}

fn answer_to(peer: &mut Peer, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut out = wire::OPTION_REPLY.to_be_bytes().to_vec();
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
    peer.write_all(&out)
}

fn export_flags(shared: &Shared) -> u16 {
    let (mut flags, can) = (Transmission::HAS_FLAGS, &shared.options);
    flags.set(Transmission::FLUSH, can.flush);
    flags.set(Transmission::FUA, can.fua);
    flags.set(Transmission::TRIM, can.trim);
    flags.set(Transmission::WRITE_ZEROES, can.write_zeroes);
    flags.set(Transmission::CAN_MULTI_CONN, can.multi);
    flags.set(Transmission::READ_ONLY, shared.device.geometry().read_only);
    flags.bits()
}

/// Negotiates; whether an export was chosen, and whether reads are answered in chunks.
fn greet(shared: &Shared, peer: &mut Peer) -> io::Result<Option<bool>> {
    let mut out = wire::GREETING.to_be_bytes().to_vec();
    out.extend_from_slice(&wire::OPTION.to_be_bytes());
    let flags = Handshake::FIXED_NEWSTYLE | Handshake::NO_ZEROES;
    out.extend_from_slice(&flags.bits().to_be_bytes());
    peer.write_all(&out)?;
    let client = Handshake::from_bits_truncate(number::<4>(peer)? as u16);
    let bytes = shared.device.geometry().bytes;
    let mut structured = false;
    loop {
        if number::<8>(peer)? != wire::OPTION {
            return Ok(None);
        }
        let option = number::<4>(peer)? as u32;
        let mut data = vec![0; number::<4>(peer)? as usize];
        peer.read_exact(&mut data)?;
        let mut rest = &data[..];
        match option {
            option::EXPORT_NAME => {
                if data != shared.options.export.as_bytes() {
                    return Ok(None);
                }
                let mut out = bytes.to_be_bytes().to_vec();
                out.extend_from_slice(&export_flags(shared).to_be_bytes());
                if !client.contains(Handshake::NO_ZEROES) {
                    out.extend_from_slice(&[0; 124]);
                }
                peer.write_all(&out)?;
                return Ok(Some(structured));
            }
            option::STRUCTURED_REPLY if shared.options.structured => {
                structured = true;
                answer_to(peer, option, answer::ACK, &[])?;
            }
            option::SET_META_CONTEXT if structured => {
                let context = [&7u32.to_be_bytes()[..], wire::ALLOCATION.as_bytes()].concat();
                answer_to(peer, option, answer::META_CONTEXT, &context)?;
                answer_to(peer, option, answer::ACK, &[])?;
            }
            option::GO if shared.options.go => {
                let len = take::<4>(&mut rest) as usize;
                if rest.get(..len) != Some(shared.options.export.as_bytes()) {
                    answer_to(peer, option, answer::UNKNOWN, b"not here")?;
                    continue;
                }
                let mut about = info::EXPORT.to_be_bytes().to_vec();
                about.extend_from_slice(&bytes.to_be_bytes());
                about.extend_from_slice(&export_flags(shared).to_be_bytes());
                answer_to(peer, option, answer::INFO, &about)?;
                if let Some((min, preferred, max)) = shared.options.block_sizes {
                    let mut about = info::BLOCK_SIZE.to_be_bytes().to_vec();
                    for size in [min, preferred, max] {
                        about.extend_from_slice(&size.to_be_bytes());
                    }
                    answer_to(peer, option, answer::INFO, &about)?;
                }
                answer_to(peer, option, answer::ACK, &[])?;
                return Ok(Some(structured));
            }
            option::ABORT => {
                answer_to(peer, option, answer::ACK, &[])?;
                return Ok(None);
            }
            other => answer_to(peer, other, answer::UNSUPPORTED, b"what?")?,
        }
    }
}

/// The protocol's number of an error.
fn error_number(kind: &DeviceErrorKind) -> u32 {
    match kind {
        DeviceErrorKind::ReadOnly => 1,
        DeviceErrorKind::Os(libc::ENOSPC) => 28,
        DeviceErrorKind::OutOfRange { .. } => 22,
        DeviceErrorKind::Unsupported => 95,
        DeviceErrorKind::Gone => 108,
        _ => 5,
    }
}

fn reply(cookie: u64, error: u32, data: &[u8]) -> Vec<u8> {
    let mut out = wire::REPLY.to_be_bytes().to_vec();
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(data);
    out
}

/// A chunk of a structured reply.
fn piece(cookie: u64, flags: u16, kind: u16, data: &[&[u8]]) -> Vec<u8> {
    let bytes: usize = data.iter().map(|d| d.len()).sum();
    let mut out = wire::CHUNK.to_be_bytes().to_vec();
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&(bytes as u32).to_be_bytes());
    out.extend(data.concat());
    out
}

/// The data of a read in chunks of 512 bytes at most, last first; zeroes as holes.
fn pieces(shared: &Shared, cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (n, block) in data.chunks(512).enumerate().rev() {
        let at = (offset + n as u64 * 512).to_be_bytes();
        if block.iter().all(|&b| b == 0) {
            shared.counts.holes.fetch_add(1, Ordering::Relaxed);
            let len = (block.len() as u32).to_be_bytes();
            out.extend(piece(cookie, 0, chunk::HOLE, &[&at, &len]));
        } else {
            out.extend(piece(cookie, 0, chunk::DATA, &[&at, block]));
        }
    }
    out.extend(piece(cookie, chunk::DONE, chunk::NONE, &[]));
    out
}

/// An error with a text, as a chunk.
fn failed(cookie: u64, error: u32) -> Vec<u8> {
    let about = [&error.to_be_bytes()[..], &[0, 3], b"bad"].concat();
    piece(cookie, chunk::DONE, chunk::ERROR + 1, &[&about])
}

fn serve(shared: &Shared, peer: &mut Peer) -> io::Result<()> {
    let Some(structured) = greet(shared, peer)? else {
        return Ok(());
    };
    let counts = &shared.counts;
    counts.connections.fetch_add(1, Ordering::Relaxed);
    let device = &shared.device;
    let mut held: Vec<Vec<u8>> = Vec::new();
    let mut served = 0;
    loop {
        let mut head = [0; REQUEST_BYTES];
        peer.read_exact(&mut head)?;
        let mut rest = &head[..];
        if take::<4>(&mut rest) != u64::from(wire::REQUEST) {
            return Ok(());
        }
        let flags = take::<2>(&mut rest) as u16;
        let command = take::<2>(&mut rest) as u16;
        let cookie = take::<8>(&mut rest);
        let offset = DevOffset(take::<8>(&mut rest));
        let bytes = take::<4>(&mut rest);
        let fua = match flags & COMMAND_FUA {
            0 => Flags::empty(),
            _ => Flags::FUA,
        };
        if command == Command::Disconnect as u16 {
            counts.goodbyes.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        counts.requests.fetch_add(1, Ordering::Relaxed);
        let smallest = shared
            .options
            .block_sizes
            .map_or(1, |(smallest, ..)| smallest);
        let is_whole = (offset.0 | bytes).is_multiple_of(u64::from(smallest));
        counts
            .misaligned
            .fetch_add(u64::from(!is_whole), Ordering::Relaxed);
        counts
            .fua
            .fetch_add(u64::from(!fua.is_empty()), Ordering::Relaxed);
        let data_of = |n: u64| AlignedBuf::zeroed(n as usize);
        let mut answered = Vec::new();
        let result = if command == Command::Read as u16 {
            counts.bytes_max.fetch_max(bytes, Ordering::Relaxed);
            let read = device.read_aligned(offset, data_of(bytes));
            read.map(|data| answered = data.to_vec())
        } else if command == Command::Write as u16 {
            counts.bytes_max.fetch_max(bytes, Ordering::Relaxed);
            let mut data = data_of(bytes);
            peer.read_exact(&mut data)?;
            device.write_at(offset, &data, fua)
        } else if command == Command::Flush as u16 {
            counts.flushes.fetch_add(1, Ordering::Relaxed);
            device.flush()
        } else if command == Command::Trim as u16 {
            counts.trims.fetch_add(1, Ordering::Relaxed);
            device.discard(offset, bytes)
        } else if command == Command::WriteZeroes as u16 {
            counts.zeroings.fetch_add(1, Ordering::Relaxed);
            device.write_zeroes(offset, bytes)
        } else if command == Command::BlockStatus as u16 && structured {
            let data = device.next_data(offset).0.min(offset.0 + bytes);
            let (len, flags) = match data - offset.0 {
                0 => (512.min(bytes), 0),
                zeroes => (zeroes, wire::EXTENT_ZERO),
            };
            let extent = [7, len as u32, flags].map(u32::to_be_bytes).concat();
            let status = piece(cookie, chunk::DONE, chunk::BLOCK_STATUS, &[&extent]);
            peer.write_all(&status)?;
            continue;
        } else {
            return Ok(());
        };
        served += 1;
        if let Some((after, fault)) = shared.options.fault
            && served > after
        {
            match fault {
                Fault::Close => return Ok(()),
                Fault::Silence => continue,
                Fault::Garbage => peer.write_all(&[0x55; 16])?,
                Fault::Stranger => peer.write_all(&reply(cookie ^ 1 << 40, 0, &[]))?,
                Fault::HalfRead => {
                    let whole = match structured {
                        true => pieces(shared, cookie, offset.0, &answered),
                        false => reply(cookie, 0, &answered),
                    };
                    peer.write_all(&whole[..whole.len() / 2])?;
                    return Ok(());
                }
            }
            continue;
        }
        held.push(match result {
            Ok(()) if structured && command == Command::Read as u16 => {
                pieces(shared, cookie, offset.0, &answered)
            }
            Ok(()) => reply(cookie, 0, &answered),
            Err(error) if structured && command == Command::Read as u16 => {
                failed(cookie, error_number(&error.kind))
            }
            Err(error) => reply(cookie, error_number(&error.kind), &[]),
        });
        if held.len() >= shared.options.reversed {
            for reply in held.drain(..).rev() {
                peer.write_all(&reply)?;
            }
        }
    }
}
