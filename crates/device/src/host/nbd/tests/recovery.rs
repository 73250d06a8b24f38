//! Connections that are lost: servers that crash, cut connections, exports that come back otherwise.

use super::*;
use crate::{CrashPolicy, RecordingDevice};

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Waits for all of these, which succeed.
fn all(told: &mut Vec<Receiver<crate::Done>>) {
    for told in told.drain(..) {
        told.recv_timeout(PATIENCE).unwrap().result.unwrap();
    }
}

/// A server crashes again and again, and each time loses any of the writes that no flush had made durable. The device's user sees nothing of it,
/// and after the last flush everything is durable that was answered.
fn crashing_server(seed: u64, connections: usize, server_options: &ServerOptions) {
    const BLOCK: usize = 4096;
    const BLOCKS: u64 = 256;
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let dir = tempdir();
    let socket = dir.0.join("socket");
    let empty = MemoryDevice::new(BLOCKS * BLOCK as u64);
    let mut behind = Arc::new(RecordingDevice::new(&empty));
    let serve = |device: &Arc<RecordingDevice>| {
        NbdServer::unix(
            Arc::clone(device) as SharedDevice,
            server_options.clone(),
            &socket,
        )
    };
    let mut server = Some(serve(&behind));
    let place = server.as_ref().unwrap().address().to_owned();
    let options = NbdOptions {
        connections,
        unflushed_bytes_max: 64 * BLOCK as u64,
        ..NbdOptions::default()
    };
    let device = NbdDevice::open(&address(&place), &options).unwrap();
    let mut model = vec![0u8; BLOCKS as usize * BLOCK];
    for round in 0..5u64 {
        let mut told = Vec::new();
        for n in 0..60u64 {
            // Any place alone, or one of its own while others are written: no two writes of one place at the same time.
            let alone = random.below(4) == 0;
            if alone {
                all(&mut told);
            }
            let block = match alone {
                true => random.below(BLOCKS),
                false => n * 4 + round % 4,
            };
            let fill = (random.below(255) + 1) as u8;
            let (op, bytes) = match random.below(8) {
                0 => (
                    Op::WriteZeroes {
                        bytes: BLOCK as u64,
                    },
                    vec![0; BLOCK],
                ),
                _ => {
                    let bytes = vec![fill; BLOCK];
                    (Op::Write(vec![AlignedBuf::copy_of(&bytes).into()]), bytes)
                }
            };
            let (tell, wait) = channel();
            let mut request = Request::new(op, DevOffset(block * BLOCK as u64), move |done| {
                tell.send(done).unwrap();
            });
            if random.below(6) == 0 {
                request.flags = Flags::FUA;
            }
            device.submit(request);
            told.push(wait);
            model[block as usize * BLOCK..][..BLOCK].copy_from_slice(&bytes);
            if alone {
                all(&mut told);
            }
            if random.below(25) == 0 {
                told.push(submit(&device, Op::Flush, 0));
            }
            if n == 30 {
                drop(server.take());
                let policy = CrashPolicy::Random {
                    seed: random.below(u64::MAX),
                };
                let left = behind.image_at(behind.log_len(), policy);
                behind = Arc::new(RecordingDevice::new(&left));
                server = Some(serve(&behind));
            }
        }
        all(&mut told);
        let found = device.read_buf(DevOffset(0), model.len()).unwrap();
        assert!(found[..] == model[..], "seed {seed}, round {round}: read");
        if random.below(2) == 0 {
            device.flush().unwrap();
            let durable = behind.image_at(behind.log_len(), CrashPolicy::NoneKept);
            let found = durable.read_buf(DevOffset(0), model.len()).unwrap();
            assert!(
                found[..] == model[..],
                "seed {seed}, round {round}: durable"
            );
        }
    }
    device.flush().unwrap();
    let durable = behind.image_at(behind.log_len(), CrashPolicy::NoneKept);
    let found = durable.read_buf(DevOffset(0), model.len()).unwrap();
    assert!(found[..] == model[..], "seed {seed}: durable at the end");
}

#[test]
fn a_server_that_crashes_loses_nothing() {
    let full = ServerOptions::default();
    let little = ServerOptions {
        fua: false,
        write_zeroes: false,
        trim: false,
        structured: false,
        block_sizes: Some((512, 4096, 4096)),
        ..full.clone()
    };
    for seed in 1..4 {
        crashing_server(seed, 1, &full);
        crashing_server(seed, 4, &full);
        crashing_server(seed, 1, &little);
    }
}

/// Connections that are cut, all or one of them, while the server continues.
#[test]
fn cut_connections_are_made_again() {
    let server = NbdServer::tcp(memory(), ServerOptions::default());
    let place = address(&format!("{}?connections=3", server.address()));
    let device = NbdDevice::open(&place, &NbdOptions::default()).unwrap();
    for round in 0..4u64 {
        let fill = round as u8 + 1;
        let told: Vec<_> = (0..200u64)
            .map(|n| {
                let op = Op::Write(vec![AlignedBuf::copy_of(&[fill; 4096]).into()]);
                let told = submit(&device, op, n * 4096);
                match (n == 100, round % 2) {
                    (true, 0) => server.disconnect(),
                    (true, _) => server.disconnect_one(),
                    _ => {}
                }
                told
            })
            .collect();
        for told in told {
            told.recv_timeout(PATIENCE).unwrap().result.unwrap();
        }
        let found = device.read_buf(DevOffset(0), 200 * 4096).unwrap();
        assert!(found.iter().all(|&b| b == fill), "round {round}");
    }
    assert!(server.counts().connections.load(Ordering::Relaxed) >= 6);
    let stats = device.monitor().unwrap().stats();
    assert_eq!((stats.errors, stats.in_flight), (0, 0));
    // Cut while nothing is asked, and closed then.
    server.disconnect();
    thread::sleep(Duration::from_millis(50));
    drop(device);
}

#[test]
fn what_comes_back_must_be_the_same_export() {
    let dir = tempdir();
    let socket = dir.0.join("socket");
    let server = NbdServer::unix(memory(), ServerOptions::default(), &socket);
    let place = address(server.address());
    let options = NbdOptions {
        reconnect: Duration::from_secs(2),
        ..NbdOptions::default()
    };
    let device = NbdDevice::open(&place, &options).unwrap();
    device
        .write_at(DevOffset(0), &[1; 512], Flags::empty())
        .unwrap();
    drop(server);
    let smaller = Arc::new(MemoryDevice::new(BYTES / 2));
    let server = NbdServer::unix(smaller.clone(), ServerOptions::default(), &socket);
    let error = device.read_at(DevOffset(0), &mut [0; 512]).unwrap_err();
    assert!(
        error.to_string().contains("another export came back"),
        "{error}"
    );
    let error = device.flush().unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Gone);
    assert_eq!(server.counts().requests.load(Ordering::Relaxed), 0);
    drop(device);
    // The server does not come back.
    let device = NbdDevice::open(&place, &options).unwrap();
    drop(server);
    let began = Instant::now();
    let error = device.flush().unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Os(libc::ENOENT));
    assert!(began.elapsed() > Duration::from_millis(1500));
}

/// A write that a living server does not answer could still be done after newer ones.
#[test]
fn an_unanswered_write_is_not_repeated() {
    let options = ServerOptions {
        fault: Some((1, Fault::Silence)),
        ..ServerOptions::default()
    };
    let server = NbdServer::tcp(memory(), options);
    let options = NbdOptions {
        time_limit: Duration::from_millis(300),
        reconnect: Duration::from_secs(1),
        ..NbdOptions::default()
    };
    let device = NbdDevice::open(&address(server.address()), &options).unwrap();
    device.read_at(DevOffset(0), &mut [0; 512]).unwrap();
    let error = device
        .write_at(DevOffset(0), &[1; 512], Flags::empty())
        .unwrap_err();
    assert!(error.to_string().contains("may still do it"), "{error}");
    assert_eq!(server.counts().connections.load(Ordering::Relaxed), 1);
    drop(device);
    // A read is asked again.
    let device = NbdDevice::open(&address(server.address()), &options).unwrap();
    device.read_at(DevOffset(0), &mut [0; 512]).unwrap();
    device.read_at(DevOffset(0), &mut [0; 512]).unwrap();
    assert_eq!(server.counts().connections.load(Ordering::Relaxed), 3);
}

#[test]
fn what_is_kept_is_bounded_by_flushes() {
    let server = NbdServer::tcp(memory(), ServerOptions::default());
    let options = NbdOptions {
        unflushed_bytes_max: 64 << 10,
        ..NbdOptions::default()
    };
    let device = NbdDevice::open(&address(server.address()), &options).unwrap();
    for _ in 0..50 {
        let write = |n: u64| {
            let op = Op::Write(vec![AlignedBuf::copy_of(&[3; 4096]).into()]);
            submit(&device, op, n * 4096)
        };
        all(&mut (0..20).map(write).collect());
    }
    let flushes = server.counts().flushes.load(Ordering::Relaxed);
    assert!((20..=70).contains(&flushes), "{flushes}");
}

/// As a confined process does it: another process makes the connections.
#[test]
fn connections_are_passed() {
    let server = NbdServer::tcp(memory(), ServerOptions::default());
    let place = address(server.address());
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let endpoint = place.endpoint.clone();
    let helper = thread::spawn(move || serve_connections(&endpoint, &theirs));
    let device = NbdDevice::connect(&place, &NbdOptions::default())
        .unwrap()
        .reconnect_by(Connector::passed(ours))
        .begin()
        .unwrap();
    device
        .write_at(DevOffset(0), &[1; 512], Flags::FUA)
        .unwrap();
    server.disconnect();
    let mut found = [0; 512];
    device.read_at(DevOffset(0), &mut found).unwrap();
    assert_eq!(found, [1; 512]);
    drop(device);
    helper.join().unwrap().unwrap();
    // The error of the one that connects.
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let absent = NbdEndpoint::Unix("/nonexistent/socket".into());
    let endpoint = absent.clone();
    let _helper = thread::spawn(move || serve_connections(&endpoint, &theirs));
    let error = Connector::passed(ours)
        .connect(&absent, Instant::now())
        .err()
        .unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
}
