//! The NBD client against the conformance suite, and against servers that are old, limited, slow or wrong.

use super::server::{Fault, NbdServer, ServerCounts, ServerOptions};
use super::*;
use crate::sim::{
    self,
    faulty::{Ops, Rule},
};
use crate::{AlignedBuf, FaultyDevice, MemoryDevice, conformance};
use crate::{DeviceExt, Flags, IoSlice};
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, channel};

mod recovery;

const BYTES: u64 = conformance::BYTES_MIN;
/// For replies that come; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

fn memory() -> SharedDevice {
    Arc::new(MemoryDevice::new(BYTES))
}

fn address(text: &str) -> NbdAddress {
    NbdAddress::parse(Path::new(text)).unwrap().unwrap()
}

fn open(server: &NbdServer) -> SharedDevice {
    NbdDevice::open(&address(server.address()), &NbdOptions::default()).unwrap()
}

/// For which a lost connection is final.
fn hasty() -> NbdOptions {
    NbdOptions {
        reconnect: Duration::ZERO,
        ..NbdOptions::default()
    }
}

fn kind_of_open(text: &str, options: &NbdOptions) -> DeviceErrorKind {
    let error = NbdDevice::open(&address(text), options).err().unwrap();
    assert_eq!(error.op, "open");
    error.kind
}

fn submit(device: &SharedDevice, op: Op, offset: u64) -> Receiver<crate::Done> {
    let (tell, told) = channel();
    device.submit(Request::new(op, DevOffset(offset), move |done| {
        tell.send(done).unwrap();
    }));
    told
}

fn read(device: &SharedDevice, offset: u64, bytes: usize) -> Receiver<crate::Done> {
    submit(device, Op::Read(AlignedBuf::zeroed(bytes)), offset)
}

/// A server that sends these bytes to each client, and then waits for the end.
fn parrot(words: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The client may have seen enough before the last byte.
        let _ended = stream.write_all(&words);
        let _ended = std::io::copy(&mut stream, &mut std::io::sink());
    });
    format!("nbd://{at}/x")
}

/// A server that sends these bytes, and after the first request those.
fn answering(words: Vec<u8>, answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ended = stream.write_all(&words);
        let mut seen = Vec::new();
        let mut byte = [0];
        while std::io::Read::read(&mut stream, &mut byte).is_ok_and(|n| n == 1) {
            seen.push(byte[0]);
            if seen.ends_with(&wire::REQUEST.to_be_bytes()) {
                let _ended = stream.write_all(&answer);
                let _ended = std::io::copy(&mut stream, &mut std::io::sink());
            }
        }
    });
    format!("nbd://{at}/x")
}

fn hello(flags: u16) -> Vec<u8> {
    let mut words = wire::GREETING.to_be_bytes().to_vec();
    words.extend_from_slice(&wire::OPTION.to_be_bytes());
    words.extend_from_slice(&flags.to_be_bytes());
    words
}

fn said(option: u32, kind: u32, bytes: u32) -> Vec<u8> {
    let mut words = wire::OPTION_REPLY.to_be_bytes().to_vec();
    for number in [option, kind, bytes] {
        words.extend_from_slice(&number.to_be_bytes());
    }
    words
}

#[test]
fn conforms_over_tcp_and_unix_sockets() {
    let server = NbdServer::tcp(memory(), ServerOptions::default());
    conformance::run(&open(&server), 31);
    let dir = tempdir();
    let named = ServerOptions {
        export: "a disk".into(),
        ..ServerOptions::default()
    };
    let server = NbdServer::unix(memory(), named, &dir.0.join("socket"));
    conformance::run(&open(&server), 32);
    let counts = server.counts();
    assert!(counts.fua.load(Ordering::Relaxed) > 0);
    assert!(counts.zeroings.load(Ordering::Relaxed) > 0);
    assert!(counts.trims.load(Ordering::Relaxed) > 0);
}

#[test]
fn conforms_with_servers_that_can_little() {
    let old = ServerOptions {
        structured: false,
        multi: false,
        go: false,
        flush: true,
        fua: false,
        trim: false,
        write_zeroes: false,
        ..ServerOptions::default()
    };
    let server = NbdServer::tcp(memory(), old.clone());
    conformance::run(&open(&server), 33);
    let counts = server.counts();
    assert_eq!(counts.fua.load(Ordering::Relaxed), 0);
    assert!(
        counts.flushes.load(Ordering::Relaxed) > 20,
        "FUA by flushes"
    );
    let none = ServerOptions {
        flush: false,
        block_sizes: Some((4096, 16384, 65536)),
        go: true,
        ..old
    };
    let server = NbdServer::tcp(memory(), none);
    let device = open(&server);
    let geometry = device.geometry();
    assert_eq!(geometry.logical_block_bytes, 4096);
    assert_eq!(geometry.optimal_io_bytes, 16384);
    assert_eq!(geometry.request_bytes_max, 65536);
    assert!(!geometry.fua && !geometry.discard);
    conformance::run(&device, 34);
    assert_eq!(server.counts().bytes_max.load(Ordering::Relaxed), 65536);
    assert_eq!(server.counts().flushes.load(Ordering::Relaxed), 0);
}

/// As in front of an object store: the device has smaller blocks all the same.
#[test]
fn conforms_with_a_server_of_large_blocks() {
    let large = ServerOptions {
        block_sizes: Some((65536, 65536, 1 << 20)),
        ..ServerOptions::default()
    };
    let server = NbdServer::tcp(memory(), large);
    let device = open(&server);
    assert_eq!(device.geometry().logical_block_bytes, 512);
    assert_eq!(device.geometry().optimal_io_bytes, 65536);
    conformance::run(&device, 36);
    assert_eq!(server.counts().misaligned.load(Ordering::Relaxed), 0);
}

/// nbdkit ends the connection when a plugin names blocks of 128 KiB.
#[test]
fn a_server_that_hangs_up_when_asked_for_block_sizes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let structured = said(wire::option::STRUCTURED_REPLY, wire::answer::UNSUPPORTED, 0);
        let _ended = stream.write_all(&[hello(1), structured].concat());
        let _ended = stream.shutdown(std::net::Shutdown::Write);
        let _ended = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let kind = kind_of_open(&format!("nbd://{at}/x"), &NbdOptions::default());
    let DeviceErrorKind::Refused { why } = kind else {
        panic!("{kind:?}")
    };
    assert!(
        why.contains("closed the connection") && why.contains("65536 bytes"),
        "{why}"
    );
}

#[test]
fn a_write_without_fua_is_durable_before_it_is_told() {
    let options = ServerOptions {
        fua: false,
        ..ServerOptions::default()
    };
    let server = NbdServer::tcp(memory(), options);
    let device = open(&server);
    device
        .write_at(DevOffset(0), &vec![7; 3 << 20], Flags::FUA)
        .unwrap();
    // Three parts and one flush.
    assert_eq!(server.counts().requests.load(Ordering::Relaxed), 4);
    assert_eq!(server.counts().flushes.load(Ordering::Relaxed), 1);
    device
        .write_at(DevOffset(0), &[7; 512], Flags::empty())
        .unwrap();
    assert_eq!(server.counts().flushes.load(Ordering::Relaxed), 1);
}

#[test]
fn replies_come_in_any_order() {
    let inner = memory();
    let mut bytes = vec![0; 1 << 20];
    for (at, block) in bytes.chunks_mut(512).enumerate() {
        block.fill(at as u8);
    }
    inner
        .write_at(DevOffset(0), &bytes, Flags::empty())
        .unwrap();
    let options = ServerOptions {
        reversed: 12,
        block_sizes: Some((512, 4096, 8192)),
        ..ServerOptions::default()
    };
    let server = NbdServer::tcp(inner, options);
    let device = open(&server);
    // Two of five parts each, and two whole ones.
    let places = [(0, 40960), (81920, 36864), (204800, 512), (512000, 8192)];
    let told: Vec<_> = places
        .iter()
        .map(|&(at, len)| (at, len, read(&device, at as u64, len)))
        .collect();
    for (at, len, told) in told {
        let done = told.recv_timeout(PATIENCE).unwrap();
        done.result.unwrap();
        assert!(*done.read.unwrap() == bytes[at..at + len], "{len} at {at}");
    }
}

#[test]
fn errors_of_the_server_are_told_and_the_connection_goes_on() {
    let faulty = Arc::new(FaultyDevice::new(memory(), 1));
    let server = NbdServer::tcp(faulty.clone(), ServerOptions::default());
    let device = open(&server);
    faulty.add(Rule::new(Ops::READ, sim::faulty::Fault::Errno(libc::EIO)).range(4096..8192));
    let mut buf = [0; 4096];
    let error = device.read_at(DevOffset(4096), &mut buf).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Os(libc::EIO));
    assert_eq!(
        (error.op, error.offset.0, error.bytes),
        ("read", 4096, 4096)
    );
    device.read_at(DevOffset(8192), &mut buf).unwrap();
    let stats = device.monitor().unwrap().stats();
    assert_eq!((stats.errors, stats.in_flight), (1, 0));
}

#[test]
fn read_only_exports_are_not_opened_for_writing() {
    let inner = Arc::new(MemoryDevice::new(BYTES).into_read_only());
    let server = NbdServer::tcp(inner, ServerOptions::default());
    let writing = NbdOptions::default();
    assert_eq!(
        kind_of_open(server.address(), &writing),
        DeviceErrorKind::ReadOnly
    );
    let reading = NbdOptions {
        read_only: true,
        ..writing
    };
    let device = NbdDevice::open(&address(server.address()), &reading).unwrap();
    let mut buf = [1; 512];
    device.read_at(DevOffset(0), &mut buf).unwrap();
    assert_eq!(buf, [0; 512]);
    let error = device.write_at(DevOffset(0), &buf, Flags::empty());
    assert_eq!(error.unwrap_err().kind, DeviceErrorKind::ReadOnly);
    device.flush().unwrap();
}

#[test]
fn two_writers_of_one_host_are_kept_apart() {
    let server = NbdServer::tcp(memory(), ServerOptions::default());
    let place = address(server.address());
    let writer = open(&server);
    assert!(is_claimed(&place));
    for read_only in [false, true] {
        let options = NbdOptions {
            read_only,
            ..NbdOptions::default()
        };
        let DeviceErrorKind::InUse { holder } = kind_of_open(server.address(), &options) else {
            panic!("in use")
        };
        let me = format!("process {} ", std::process::id());
        assert!(holder.as_ref().unwrap().starts_with(&me), "{holder:?}");
    }
    let unlocked = NbdOptions {
        lock: false,
        ..NbdOptions::default()
    };
    NbdDevice::open(&place, &unlocked).unwrap();
    drop(writer);
    assert!(!is_claimed(&place));
    open(&server);
}

#[test]
fn a_lost_connection_is_a_device_that_is_gone() {
    for (fault, first) in [
        (Fault::Close, "gone"),
        (Fault::HalfRead, "gone"),
        (Fault::Garbage, "breaks the protocol"),
        (Fault::Stranger, "breaks the protocol"),
    ] {
        let options = ServerOptions {
            fault: Some((2, fault)),
            ..ServerOptions::default()
        };
        let server = NbdServer::tcp(memory(), options);
        let device = NbdDevice::open(&address(server.address()), &hasty()).unwrap();
        let mut buf = [0; 8192];
        device.read_at(DevOffset(0), &mut buf).unwrap();
        device.read_at(DevOffset(0), &mut buf).unwrap();
        let told: Vec<_> = (0..50).map(|n| read(&device, n * 8192, 8192)).collect();
        let mut whys = String::new();
        for told in told {
            let done = told.recv_timeout(PATIENCE).unwrap();
            whys += &done.result.unwrap_err().to_string();
        }
        assert!(whys.contains(first), "{fault:?}: {whys}");
        let error = device.flush().unwrap_err();
        assert_eq!(error.kind, DeviceErrorKind::Gone, "{fault:?}");
        let error = device.write_at(DevOffset(0), &buf, Flags::FUA).unwrap_err();
        assert_eq!(error.kind, DeviceErrorKind::Gone, "{fault:?}");
        assert_eq!(device.monitor().unwrap().stats().in_flight, 0);
    }
}

#[test]
fn a_silent_server_is_given_up() {
    let options = ServerOptions {
        fault: Some((1, Fault::Silence)),
        ..ServerOptions::default()
    };
    let server = NbdServer::tcp(memory(), options);
    let hasty = NbdOptions {
        time_limit: Duration::from_millis(300),
        ..hasty()
    };
    let device = NbdDevice::open(&address(server.address()), &hasty).unwrap();
    device.read_at(DevOffset(0), &mut [0; 512]).unwrap();
    // Silent while nothing is asked is not silent.
    thread::sleep(Duration::from_millis(700));
    let told = read(&device, 0, 512);
    let done = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(
        done.result.unwrap_err().kind,
        DeviceErrorKind::Os(libc::ETIMEDOUT)
    );
    let error = device.read_at(DevOffset(0), &mut [0; 512]).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Gone);
}

#[test]
fn a_server_that_does_not_read_is_given_up() {
    // Negotiates, and never reads a request: writes fill the socket.
    let mut words = hello(3);
    let first = wire::option::STRUCTURED_REPLY;
    words.extend_from_slice(&said(first, wire::answer::UNSUPPORTED, 0));
    let mut about = said(wire::option::GO, wire::answer::INFO, 12);
    about.extend_from_slice(&0u16.to_be_bytes());
    about.extend_from_slice(&(64u64 << 20).to_be_bytes());
    about.extend_from_slice(&1u16.to_be_bytes());
    words.extend_from_slice(&about);
    words.extend_from_slice(&said(wire::option::GO, wire::answer::ACK, 0));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (stop, stopped) = channel::<()>();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&words).unwrap();
        let _until_dropped = stopped.recv();
    });
    let hasty = NbdOptions {
        time_limit: Duration::from_millis(300),
        ..hasty()
    };
    let device = NbdDevice::open(&address(&format!("nbd://{at}/")), &hasty).unwrap();
    let slice = IoSlice::from(AlignedBuf::zeroed(1 << 20));
    let told: Vec<_> = (0..40)
        .map(|n| submit(&device, Op::Write(vec![slice.clone()]), n << 20))
        .collect();
    for told in told {
        let done = told.recv_timeout(PATIENCE).unwrap();
        assert!(done.result.is_err());
    }
    drop(device);
    drop(stop);
    server.join().unwrap();
}

#[test]
fn handshakes_that_fail_say_why() {
    let server = NbdServer::tcp(
        memory(),
        ServerOptions {
            export: "there".into(),
            ..ServerOptions::default()
        },
    );
    let options = NbdOptions {
        time_limit: Duration::from_secs(20),
        ..NbdOptions::default()
    };
    let wrong = server.address().replace("there", "absent");
    let go = wire::option::GO;
    let first = wire::option::STRUCTURED_REPLY;
    let plain = || [hello(3), said(first, wire::answer::UNSUPPORTED, 0)].concat();
    let mut cases = vec![
        (wrong, "no export `absent`: not here"),
        (parrot(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()), "no NBD server"),
        (
            parrot([wire::GREETING.to_be_bytes(), wire::OLDSTYLE.to_be_bytes()].concat()),
            "oldstyle",
        ),
        (parrot(hello(0)), "does not negotiate"),
        (
            parrot([plain(), said(3, 1, 0)].concat()),
            "no reply to our option",
        ),
        (
            parrot([plain(), said(go, 3, u32::MAX)].concat()),
            "a reply of 4294967295 bytes",
        ),
        (
            parrot([plain(), said(go, wire::answer::TLS_REQUIRED, 0)].concat()),
            "TLS",
        ),
        (
            parrot([plain(), said(go, 1, 0)].concat()),
            "does not describe the export",
        ),
        (
            parrot([plain(), said(go, 3, 2), vec![9, 9]].concat().repeat(1)),
            "",
        ),
    ];
    // The last one says nothing more: the time limit ends it.
    let (silent, _) = cases.pop().unwrap();
    for (text, why) in cases {
        let DeviceErrorKind::Refused { why: told } = kind_of_open(&text, &options) else {
            panic!("{why}")
        };
        assert!(told.contains(why), "{told}");
    }
    let hasty = NbdOptions {
        time_limit: Duration::from_millis(200),
        ..options
    };
    assert_eq!(
        kind_of_open(&silent, &hasty),
        DeviceErrorKind::Os(libc::ETIMEDOUT)
    );
    let sizes = ServerOptions {
        block_sizes: Some((3000, 4096, 65536)),
        ..ServerOptions::default()
    };
    let server = NbdServer::tcp(memory(), sizes);
    let DeviceErrorKind::Refused { why } = kind_of_open(server.address(), &options) else {
        panic!("refused")
    };
    assert!(why.contains("3000"), "{why}");
    // A port without a listener.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    assert_eq!(
        kind_of_open(&format!("nbd://{free}/"), &options),
        DeviceErrorKind::Os(libc::ECONNREFUSED)
    );
    assert_eq!(
        kind_of_open("nbd+unix:///?socket=/nonexistent/socket", &options),
        DeviceErrorKind::Os(libc::ENOENT)
    );
}

#[test]
fn closing_waits_and_says_goodbye() {
    let inner = memory();
    let server = NbdServer::tcp(inner.clone(), ServerOptions::default());
    let device = open(&server);
    let finished = Arc::new(AtomicUsize::new(0));
    for n in 0..300u64 {
        let finished = Arc::clone(&finished);
        let op = Op::Write(vec![AlignedBuf::copy_of(&[(n % 251) as u8; 4096]).into()]);
        device.submit(Request::new(op, DevOffset(n * 4096), move |done| {
            done.result.unwrap();
            finished.fetch_add(1, Ordering::SeqCst);
        }));
    }
    drop(device);
    assert_eq!(finished.load(Ordering::SeqCst), 300);
    let mut byte = [0; 512];
    inner.read_at(DevOffset(299 * 4096), &mut byte).unwrap();
    assert_eq!(byte[0], 48);
    let counts = Arc::clone(server.counts());
    assert_goodbyes(&counts, 1);
    drop(server);
}

#[test]
fn a_completion_may_drop_the_device_and_may_panic() {
    let server = NbdServer::tcp(memory(), ServerOptions::default());
    let device = open(&server);
    device.submit(Request::new(
        Op::Read(AlignedBuf::zeroed(512)),
        DevOffset(0),
        |_| panic!("a test's completion, on purpose"),
    ));
    let (tell, told) = channel();
    let last = Arc::clone(&device);
    let (give, given) = channel::<SharedDevice>();
    device.submit(Request::new(Op::Flush, DevOffset(0), move |done| {
        done.result.unwrap();
        drop(given.recv().unwrap());
        tell.send(()).unwrap();
    }));
    drop(device);
    give.send(last).unwrap();
    told.recv_timeout(PATIENCE).unwrap();
}

/// The server has read this many goodbyes; one that ends at once may not get to them.
fn assert_goodbyes(counts: &ServerCounts, expected: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while counts.goodbyes.load(Ordering::Relaxed) < expected && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(counts.goodbyes.load(Ordering::Relaxed), expected);
}

#[test]
fn several_connections() {
    let server = NbdServer::tcp(memory(), ServerOptions::default());
    let place = address(&format!("{}?connections=4", server.address()));
    let device = NbdDevice::open(&place, &NbdOptions::default()).unwrap();
    conformance::run(&device, 35);
    let counts = Arc::clone(server.counts());
    assert_eq!(counts.connections.load(Ordering::Relaxed), 4);
    drop(device);
    assert_goodbyes(&counts, 4);
    drop(server);
    let one = ServerOptions {
        multi: false,
        ..ServerOptions::default()
    };
    let server = NbdServer::tcp(memory(), one);
    let place = address(&format!("{}?connections=4", server.address()));
    conformance::run(
        &NbdDevice::open(&place, &NbdOptions::default()).unwrap(),
        36,
    );
    assert_eq!(server.counts().connections.load(Ordering::Relaxed), 1);
}

#[test]
fn holes_travel_as_lengths() {
    let inner = memory();
    let put = |at: u64| {
        inner
            .write_at(DevOffset(at), &[5; 512], Flags::empty())
            .unwrap();
    };
    put(4096);
    put(1 << 20);
    let server = NbdServer::tcp(inner.clone(), ServerOptions::default());
    let device = open(&server);
    let found = device.read_buf(DevOffset(0), 2 << 20).unwrap();
    assert!(found[..] == inner.read_buf(DevOffset(0), 2 << 20).unwrap()[..]);
    assert!(server.counts().holes.load(Ordering::Relaxed) > 4000);
    for at in [0, 512, 4096, 4608, 1 << 20, (1 << 20) + 512] {
        let (ours, theirs) = (
            device.next_data(DevOffset(at)),
            inner.next_data(DevOffset(at)),
        );
        assert_eq!(ours, theirs, "from {at}");
    }
    let plain = ServerOptions {
        structured: false,
        ..ServerOptions::default()
    };
    let server = NbdServer::tcp(inner, plain);
    assert_eq!(open(&server).next_data(DevOffset(512)), DevOffset(512));
}

/// Chunks that a server must not send.
#[test]
fn chunks_are_bounded_by_what_was_asked() {
    let go = wire::option::GO;
    let mut about = 0u16.to_be_bytes().to_vec();
    about.extend_from_slice(&(1u64 << 20).to_be_bytes());
    about.extend_from_slice(&1u16.to_be_bytes());
    let greeting = [
        hello(3),
        said(wire::option::STRUCTURED_REPLY, wire::answer::ACK, 0),
        said(wire::option::SET_META_CONTEXT, wire::answer::ACK, 0),
        said(go, wire::answer::INFO, 12),
        about,
        said(go, wire::answer::ACK, 0),
    ]
    .concat();
    let piece = |flags: u16, kind: u16, bytes: u32, data: &[u8]| {
        let mut out = wire::CHUNK.to_be_bytes().to_vec();
        out.extend_from_slice(&flags.to_be_bytes());
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&0u64.to_be_bytes());
        out.extend_from_slice(&bytes.to_be_bytes());
        out.extend_from_slice(data);
        out
    };
    let place = |at: u64, data: &[u8]| [&at.to_be_bytes()[..], data].concat();
    let hole = |at: u64, len: u32| place(at, &len.to_be_bytes());
    for (words, why) in [
        (piece(1, 0, 0, &[]), "missing bytes"),
        (
            piece(1, 1, 8 + 256, &place(512, &[1; 256])),
            "missing bytes",
        ),
        (piece(0, 1, 8 + 512, &place(513, &[1; 512])), "outside"),
        (piece(0, 1, 8 + 512, &place(0, &[1; 512])), "outside"),
        (piece(0, 1, 8, &place(512, &[])), "outside"),
        (piece(0, 1, 4, &[0; 4]), "does not belong"),
        (piece(0, 2, 12, &hole(512, u32::MAX)), "outside"),
        (piece(0, 2, 12, &hole(u64::MAX, 512)), "outside"),
        (piece(0, 2, 16, &[0; 16]), "without a length"),
        (piece(0, 5, 12, &[0; 12]), "does not belong"),
        (piece(0, 77, u32::MAX, &[]), "does not belong"),
        (piece(0, 0x8001, u32::MAX, &[]), "does not belong"),
        (piece(0, 0, 0, &[]), "does not belong"),
        (
            [wire::REPLY.to_be_bytes(), [0; 4], [0; 4], [0; 4]].concat(),
            "without chunks",
        ),
    ] {
        let at = answering(greeting.clone(), words);
        let reading = NbdOptions {
            read_only: true,
            ..NbdOptions::default()
        };
        let device = NbdDevice::open(&address(&at), &reading).unwrap();
        let error = device.read_at(DevOffset(512), &mut [0; 512]).unwrap_err();
        assert!(error.to_string().contains(why), "{why}: {error}");
    }
    // One that is an error of the read alone.
    let bad = piece(1, 0x8001, 9, &[0, 0, 0, 5, 0, 3, b'b', b'a', b'd']);
    let at = answering(greeting, bad);
    let reading = NbdOptions {
        read_only: true,
        ..NbdOptions::default()
    };
    let device = NbdDevice::open(&address(&at), &reading).unwrap();
    let error = device.read_at(DevOffset(512), &mut [0; 512]).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Os(libc::EIO));
}

/// A unique directory, removed when dropped.
struct Dir(std::path::PathBuf);

fn tempdir() -> Dir {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path =
        std::env::temp_dir().join(format!("blockwright-nbd-{}-{number}", std::process::id()));
    std::fs::create_dir(&path).unwrap();
    Dir(path)
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}
