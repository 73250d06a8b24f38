//! The NBD client against nbdkit and qemu-nbd: sparse reads, several connections, servers that are killed, errors and delays, TLS.

use blockwright_device::host::nbd::{NbdAddress, NbdDevice, NbdOptions};
use blockwright_device::{
    AlignedBuf, DevOffset, DeviceErrorKind, DeviceExt, Done, Flags, Op, Request, SharedDevice,
    conformance,
};
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK: usize = 4096;

/// A unique directory, removed when dropped.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("blockwright-servers-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Dir(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A sparse file.
    fn disk(&self, bytes: u64) -> String {
        let disk = fs::File::create(self.path("disk")).unwrap();
        disk.set_len(bytes).unwrap();
        self.text("disk")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

/// A server in the foreground, killed when dropped.
struct Server(Child);

impl Server {
    /// Starts it, and waits until it answers.
    fn start(program: &str, args: &[&str], socket: &Path) -> Self {
        let _absent = fs::remove_file(socket);
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server(child);
        let start = Instant::now();
        while UnixStream::connect(socket).is_err() {
            assert!(start.elapsed() < PATIENCE, "{program} {args:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

fn nbdkit(dir: &Dir, args: &[&str]) -> Server {
    let socket = dir.text("socket");
    let all = [&["-f", "-U", &socket], args].concat();
    Server::start("nbdkit", &all, &dir.path("socket"))
}

fn qemu_nbd(dir: &Dir, args: &[&str]) -> Server {
    let socket = dir.text("socket");
    let all = [&["-t", "-k", &socket, "-f", "raw", "-e", "8"], args].concat();
    Server::start("qemu-nbd", &all, &dir.path("socket"))
}

fn open_with(place: &str, options: &NbdOptions) -> Result<SharedDevice, String> {
    let address = NbdAddress::parse(Path::new(place)).unwrap().unwrap();
    NbdDevice::open(&address, options).map_err(|e| e.to_string())
}

fn open(dir: &Dir, parameters: &str) -> SharedDevice {
    let place = format!("nbd+unix:///?socket={}{parameters}", dir.text("socket"));
    open_with(&place, &NbdOptions::default()).unwrap()
}

fn write(device: &SharedDevice, block: u64, fill: u8) -> Receiver<Done> {
    let (tell, told) = channel();
    let op = Op::Write(vec![AlignedBuf::copy_of(&[fill; BLOCK]).into()]);
    let at = DevOffset(block * BLOCK as u64);
    device.submit(Request::new(op, at, move |done| tell.send(done).unwrap()));
    told
}

#[test]
fn nbdkit_conforms_with_its_policies() {
    if !blockwright_oracles::have(&["nbdkit"]) {
        return;
    }
    let size = conformance::BYTES_MIN.to_string();
    // Requests of other sizes are errors.
    let policy = [
        "--filter=blocksize-policy",
        "memory",
        "blocksize-minimum=4096",
        "blocksize-preferred=65536",
        "blocksize-maximum=262144",
        "blocksize-error-policy=error",
    ];
    let cases: [(&[&str], &str); 8] = [
        (&["memory"], ""),
        (&["memory"], "&connections=4"),
        (&["--filter=cow", "memory"], "&connections=4"),
        (&policy, ""),
        (&["--filter=fua", "memory", "fuamode=emulate"], ""),
        (&["--filter=nozero", "--filter=noextents", "memory"], ""),
        (
            &["--filter=multi-conn", "memory", "multi-conn-mode=disable"],
            "&connections=4",
        ),
        (&["--no-sr", "memory"], ""),
    ];
    for (n, (args, parameters)) in cases.into_iter().enumerate() {
        let dir = Dir::new();
        let _server = nbdkit(&dir, &[args, &[&size]].concat());
        conformance::run(&open(&dir, parameters), 100 + n as u64);
    }
}

#[test]
fn sparse_exports_are_read_sparsely() {
    if !blockwright_oracles::have(&["nbdkit", "qemu-nbd"]) {
        return;
    }
    let dir = Dir::new();
    let file = dir.disk(4 << 30);
    for at in [1 << 20, 3 << 30] {
        let disk = fs::OpenOptions::new().write(true).open(&file).unwrap();
        disk.write_all_at(&[7; 65536], at).unwrap();
    }
    for qemu in [false, true] {
        let _server = match qemu {
            false => nbdkit(&dir, &["file", &file]),
            true => qemu_nbd(&dir, &["-r", &file]),
        };
        let reading = NbdOptions {
            read_only: true,
            ..NbdOptions::default()
        };
        let place = format!("nbd+unix:///?socket={}", dir.text("socket"));
        let device = open_with(&place, &reading).unwrap();
        let next = |at: u64| device.next_data(DevOffset(at)).0;
        assert_eq!((next(0), next(1 << 20)), (1 << 20, 1 << 20));
        assert_eq!(next((1 << 20) + 65536), 3 << 30);
        assert_eq!(next((3 << 30) + 65536), 4 << 30);
        let found = device.read_buf(DevOffset(0), 2 << 20).unwrap();
        let written = 1 << 20..(1 << 20) + 65536;
        let right = |(at, byte): (usize, &u8)| *byte == if written.contains(&at) { 7 } else { 0 };
        assert!(found.iter().enumerate().all(right), "qemu: {qemu}");
    }
}

/// A server of a file is killed under load and started again, again and again: nothing is lost, and no request fails.
fn killed(dir: &Dir, start: &dyn Fn() -> Server, parameters: &str) {
    const BLOCKS: u64 = 2048;
    let mut server = Some(start());
    let device = open(dir, parameters);
    for round in 0..4u64 {
        let fill = |n: u64| (n + round * 7) as u8 | 1;
        let mut told = Vec::new();
        for n in 0..BLOCKS {
            told.push(write(&device, n, fill(n)));
            if n == 400 * (round + 1) {
                drop(server.take());
                server = Some(start());
            }
        }
        for told in told {
            told.recv_timeout(PATIENCE).unwrap().result.unwrap();
        }
        device.flush().unwrap();
        let behind = fs::read(dir.path("disk")).unwrap();
        for (n, block) in behind.chunks(BLOCK).enumerate().take(BLOCKS as usize) {
            let right = block.iter().all(|b| *b == fill(n as u64));
            assert!(right, "round {round}, block {n}");
        }
    }
    let stats = device.monitor().unwrap().stats();
    assert_eq!((stats.errors, stats.in_flight), (0, 0));
}

#[test]
fn servers_that_are_killed_lose_nothing() {
    if !blockwright_oracles::have(&["nbdkit", "qemu-nbd"]) {
        return;
    }
    for parameters in ["", "&connections=4"] {
        let dir = Dir::new();
        let file = dir.disk(16 << 20);
        killed(&dir, &|| nbdkit(&dir, &["file", &file]), parameters);
        let args = ["--cache=writeback", &file];
        killed(&dir, &|| qemu_nbd(&dir, &args), parameters);
    }
}

/// An export in memory dies with its server, and with it all that was written and not flushed. The client writes that again.
#[test]
fn writes_that_died_with_the_server_are_written_again() {
    if !blockwright_oracles::have(&["nbdkit"]) {
        return;
    }
    let dir = Dir::new();
    let args = ["memory", "16M"];
    let server = nbdkit(&dir, &args);
    let device = open(&dir, "&connections=2");
    for block in 0..500 {
        let told = write(&device, block, block as u8 | 1);
        told.recv_timeout(PATIENCE).unwrap().result.unwrap();
    }
    drop(server);
    let _server = nbdkit(&dir, &args);
    let found = device.read_buf(DevOffset(0), 500 * BLOCK).unwrap();
    for (n, block) in found.chunks(BLOCK).enumerate() {
        assert!(block.iter().all(|b| *b == n as u8 | 1), "block {n}");
    }
}

#[test]
fn errors_are_told_and_delays_are_waited_for() {
    if !blockwright_oracles::have(&["nbdkit"]) {
        return;
    }
    let dir = Dir::new();
    let trigger = dir.text("fail");
    let file = format!("error-file={trigger}");
    let failing = [
        "--filter=error",
        "memory",
        "16M",
        "error=ENOSPC",
        "error-rate=1",
        &file,
    ];
    let _server = nbdkit(&dir, &failing);
    let device = open(&dir, "");
    let write_at = |fill| device.write_at(DevOffset(0), &[fill; BLOCK], Flags::FUA);
    write_at(1).unwrap();
    fs::write(&trigger, "").unwrap();
    let error = write_at(2).unwrap_err();
    assert!(error.is_out_of_room(), "{error}");
    assert!(device.read_at(DevOffset(0), &mut [0; BLOCK]).is_err());
    fs::remove_file(&trigger).unwrap();
    write_at(3).unwrap();
    drop(device);

    // Silent for longer than the limit, in a write: waited for. In a read: asked again, and given up after the time for that.
    let dir = Dir::new();
    let slow = [
        "--filter=delay",
        "memory",
        "16M",
        "wdelay=1500ms",
        "rdelay=1500ms",
    ];
    let _server = nbdkit(&dir, &slow);
    let place = format!("nbd+unix:///?socket={}&reconnect=4", dir.text("socket"));
    let hasty = NbdOptions {
        time_limit: Duration::from_millis(500),
        ..NbdOptions::default()
    };
    let device = open_with(&place, &hasty).unwrap();
    let none = Flags::empty();
    device.write_at(DevOffset(0), &[1; BLOCK], none).unwrap();
    let error = device.read_at(DevOffset(0), &mut [0; BLOCK]).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Os(110), "{error}");
}

/// In `pki` an authority, a server's certificate for `localhost`, and a client's, as nbdkit wants them; in `foreign` another authority.
fn certificates(dir: &Dir) {
    let run = |args: &[&str]| {
        let mut command = Command::new("openssl");
        let out = command.args(args).current_dir(&dir.0).output().unwrap();
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{told}");
    };
    let request = |args: &[&str], name: &str, key: &str, out: &str| {
        let subject = format!("/CN={name}");
        let new = [
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ];
        let named = ["-subj", &subject, "-keyout", key, "-out", out];
        run(&[&["req"][..], args, &new, &named].concat());
    };
    for (name, at) in [("ca", "pki"), ("other", "foreign")] {
        fs::create_dir(dir.path(at)).unwrap();
        let (key, cert) = (format!("{name}-key.pem"), format!("{at}/ca-cert.pem"));
        request(&["-x509", "-days", "2"], name, &key, &cert);
    }
    for (name, usage) in [("server", "serverAuth"), ("client", "clientAuth")] {
        let (key, cert) = (
            format!("pki/{name}-key.pem"),
            format!("pki/{name}-cert.pem"),
        );
        request(&[], "localhost", &key, "request");
        let about = format!("subjectAltName=DNS:localhost\nextendedKeyUsage={usage}\n");
        fs::write(dir.path("about"), about).unwrap();
        let authority = [
            "-CA",
            "pki/ca-cert.pem",
            "-CAkey",
            "ca-key.pem",
            "-CAcreateserial",
        ];
        let what = [
            "-req", "-days", "2", "-in", "request", "-extfile", "about", "-out", &cert,
        ];
        run(&[&["x509"][..], &what, &authority].concat());
    }
}

#[test]
fn tls() {
    if !blockwright_oracles::have(&["nbdkit", "openssl"]) {
        return;
    }
    let dir = Dir::new();
    certificates(&dir);
    let size = conformance::BYTES_MIN.to_string();
    let pki = format!("--tls-certificates={}", dir.text("pki"));
    let place = |folder: &str, more: &str| {
        let (socket, folder) = (dir.text("socket"), dir.text(folder));
        format!("nbds+unix:///?socket={socket}&tls-certificates={folder}{more}")
    };
    let options = NbdOptions::default();
    let told = |place: &str| open_with(place, &options).err().unwrap();
    let required = ["--tls=require", "--tls-verify-peer", &pki, "memory", &size];
    let server = nbdkit(&dir, &required);
    conformance::run(&open_with(&place("pki", ""), &options).unwrap(), 7);
    let several = open_with(&place("pki", "&connections=4"), &options).unwrap();
    conformance::run(&several, 8);
    // What died with the server comes back through TLS as well.
    let large = vec![9; 1 << 20];
    several
        .write_at(DevOffset(0), &large, Flags::empty())
        .unwrap();
    drop(server);
    let server = nbdkit(&dir, &required);
    let found = several.read_buf(DevOffset(0), 1 << 20).unwrap();
    assert!(found[..] == large[..]);
    drop(several);

    let plain = format!("nbd+unix:///?socket={}", dir.text("socket"));
    for (place, says) in [
        (plain.clone(), "wants TLS"),
        (place("foreign", ""), "certificate"),
        (place("pki", "&tls-hostname=other.example"), "other.example"),
        (place("absent", ""), "absent/ca-cert.pem"),
    ] {
        let told = told(&place);
        assert!(
            told.contains("TLS") && told.contains(says),
            "{place}: {told}"
        );
    }
    // Without a certificate of the client.
    fs::create_dir(dir.path("nameless")).unwrap();
    let authority = "ca-cert.pem";
    fs::copy(
        dir.path("pki").join(authority),
        dir.path("nameless").join(authority),
    )
    .unwrap();
    told(&place("nameless", ""));
    drop(server);

    // A server without TLS, and one that shows another export to those without it.
    let server = nbdkit(&dir, &["memory", &size]);
    let without = told(&place("pki", ""));
    assert!(without.contains("does not do TLS"), "{without}");
    drop(server);
    let fallback = ["--tls=on", &pki, "--filter=tls-fallback", "memory", &size];
    let _server = nbdkit(&dir, &fallback);
    let secured = open_with(&place("pki", ""), &options).unwrap();
    assert_eq!(secured.geometry().bytes, conformance::BYTES_MIN);
    drop(secured);
    let reading = NbdOptions {
        read_only: true,
        ..options
    };
    let fallen = open_with(&plain, &reading).unwrap();
    assert_eq!(fallen.geometry().bytes, 512);
}
