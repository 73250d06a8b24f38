//! The NBD client against a server that sends any bytes.

use super::no_bases;
use crate::Target;
use blockwright_device::host::nbd::{NbdAddress, NbdDevice, NbdOptions};
use blockwright_device::{DevOffset, DeviceExt, Flags};
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

pub(crate) const TARGET: Target = Target {
    name: "nbd",
    property: "whatever a server sends, opening, reading and writing end with a value or an error, in time",
    run,
    max_len: 4096,
    bases: no_bases,
    seeds,
};

struct Server {
    place: PathBuf,
    jobs: Sender<Vec<u8>>,
    _dir: tempfile::TempDir,
}

fn server() -> &'static Mutex<Server> {
    static SERVER: OnceLock<Mutex<Server>> = OnceLock::new();
    SERVER.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory for the socket");
        let place = dir.path().join("socket");
        let listener = UnixListener::bind(&place).expect("a socket");
        let (jobs, wanted) = channel();
        std::thread::spawn(move || serve(&listener, &wanted));
        Mutex::new(Server {
            place,
            jobs,
            _dir: dir,
        })
    })
}

/// One connection for each job: its bytes are sent, what comes back is thrown away.
fn serve(listener: &UnixListener, jobs: &Receiver<Vec<u8>>) {
    for bytes in jobs {
        let Ok((mut stream, _)) = listener.accept() else {
            return;
        };
        // The client may have left.
        let _sent = stream.write_all(&bytes);
        let _ended = stream.shutdown(std::net::Shutdown::Write);
        let mut sink = [0; 4096];
        while stream.read(&mut sink).is_ok_and(|n| n > 0) {}
    }
}

/// The first byte: bit 0 reads only, bit 1 writes, too.
fn run(data: &[u8]) {
    let Some((flags, bytes)) = data.split_first() else {
        return;
    };
    let server = server()
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let address = format!("nbd+unix:///export?socket={}", server.place.display());
    let Some(Ok(address)) = NbdAddress::parse(Path::new(&address)) else {
        panic!("{address} is an address");
    };
    if server.jobs.send(bytes.to_vec()).is_err() {
        return;
    }
    let options = NbdOptions {
        read_only: flags & 1 == 1,
        lock: false,
        time_limit: Duration::from_millis(500),
        // One connection for each input.
        reconnect: Duration::ZERO,
        ..NbdOptions::default()
    };
    let Ok(device) = NbdDevice::open(&address, &options) else {
        return;
    };
    let unit = device.geometry().logical_block_bytes as usize;
    // Small enough for memory, whatever the server says.
    if unit <= 1 << 20 && device.geometry().bytes >= unit as u64 * 2 {
        let _any = device.read_buf(DevOffset(0), unit * 2);
        if flags & 2 == 2 {
            let _any = device.write_at(DevOffset(0), &vec![1; unit], Flags::FUA);
            let _any = device.flush();
        }
        let _any = device.read_buf(DevOffset(unit as u64), unit);
    }
}

/// Greeting, replies to options, and replies to requests, as a server that knows everything sends them.
fn seeds() -> Vec<Vec<u8>> {
    let option = |option: u32, kind: u32, data: &[u8]| {
        let head = 0x0003_E889_0455_65A9u64.to_be_bytes();
        let len = (data.len() as u32).to_be_bytes();
        [
            &head[..],
            &option.to_be_bytes(),
            &kind.to_be_bytes(),
            &len,
            data,
        ]
        .concat()
    };
    let greeting = [b"NBDMAGICIHAVEOPT".as_slice(), &[0, 3]].concat();
    let export = [&[0, 0][..], &(1u64 << 20).to_be_bytes(), &[0, 0x2D]].concat();
    let sizes = [
        &[0, 3][..],
        &512u32.to_be_bytes(),
        &4096u32.to_be_bytes(),
        &(32u32 << 20).to_be_bytes(),
    ]
    .concat();
    let reply = |n: u64, data: usize| {
        let head = [&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &n.to_be_bytes()].concat();
        [head, vec![7; data]].concat()
    };
    let piece = |n: u64, flags: u16, kind: u16, data: &[u8]| {
        [
            &0x668E_33EFu32.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &kind.to_be_bytes(),
            &n.to_be_bytes(),
            &(data.len() as u32).to_be_bytes(),
            data,
        ]
        .concat()
    };
    let data = [&0u64.to_be_bytes()[..], &[7; 512]].concat();
    let hole = [&512u64.to_be_bytes()[..], &512u32.to_be_bytes()].concat();
    let pieces = [
        piece(0, 0, 1, &data),
        piece(0, 1, 2, &hole),
        piece(1 << 32, 1, 0, &[]),
        piece(2 << 32, 1, 0, &[]),
        piece(3 << 32, 1, 0x8001, &[0, 0, 0, 5, 0, 0]),
        piece(3 << 32, 1, 5, &[0; 12]),
    ]
    .concat();
    let mut all = Vec::new();
    for go in [7, 6] {
        let told = [
            option(go, 3, &export),
            option(go, 3, &sizes),
            option(go, 1, &[]),
        ]
        .concat();
        let replies = [
            reply(0, 1024),
            reply(1 << 32, 0),
            reply(2 << 32, 0),
            reply(3 << 32, 512),
        ]
        .concat();
        all.push([&[2][..], &greeting, &told, &replies].concat());
        let context = [&7u32.to_be_bytes()[..], b"base:allocation"].concat();
        let structured = [
            option(8, 1, &[]),
            option(10, 4, &context),
            option(10, 1, &[]),
            told.clone(),
        ]
        .concat();
        all.push([&[1][..], &greeting, &structured, &pieces].concat());
        all.push([&[3][..], &greeting, &structured, &pieces].concat());
        let refused = [option(8, 1 << 31 | 1, &[]), told].concat();
        all.push([&[2][..], &greeting, &refused, &replies].concat());
    }
    let old = [
        &greeting[..],
        &(1u64 << 20).to_be_bytes(),
        &[0, 1],
        &[0; 124],
    ]
    .concat();
    all.push([&[2][..], &old, &reply(0, 1024)].concat());
    all
}
