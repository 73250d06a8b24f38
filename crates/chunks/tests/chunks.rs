//! Images in chunks: made, read as a device, put together, and hostile. casync is the oracle in both directions.

mod web;

use blockwright_chunks::*;
use blockwright_device::{
    DevOffset, DeviceErrorKind, DeviceExt, HostDevice, MemoryDevice, OpenMode, SharedDevice,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use web::s3::{self, S3};
use web::{Behaviour, Web};

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let made = tempfile::Builder::new().prefix("chunks-").tempdir_in(base);
        Scratch(made.expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Bytes as images have them: text, noise, zeroes, repetitions.
fn image(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    let mut all = Vec::with_capacity(bytes);
    while all.len() < bytes {
        let len = (1 + rng.below(900_000)) as usize;
        match rng.below(5) {
            0 => all.resize(all.len() + len, 0),
            1 => all.extend(std::iter::repeat_n(b"all work and no play ", len / 21).flatten()),
            2 => {
                let from = rng.below(all.len() as u64 + 1) as usize;
                let to = (from + len).min(all.len());
                all.extend_from_within(from..to);
            }
            _ => all.extend(std::iter::repeat_with(|| rng.next() as u8).take(len)),
        }
    }
    all.truncate(bytes);
    all
}

fn device_of(path: &Path) -> SharedDevice {
    HostDevice::open(path, OpenMode::read_only()).expect("a device")
}

/// Chunks of an image in `scratch/store` and their index in `scratch/index.caibx`.
fn made(scratch: &Scratch, bytes: &[u8]) -> Made {
    let path = scratch.path("image");
    fs::write(&path, bytes).unwrap();
    let options = MakeOptions::default();
    let (store, index) = (scratch.path("store"), scratch.path("index.caibx"));
    let made = make(&device_of(&path), &store, &index, &options, &|_| ());
    made.expect("chunks")
}

fn address(scratch: &Scratch, store: Site) -> ChunkAddress {
    ChunkAddress::new(Site::Path(scratch.path("index.caibx")), vec![store])
}

fn opened(address: &ChunkAddress) -> blockwright_device::Result<SharedDevice> {
    open(address.path(), OpenMode::read_only()).expect("an address")
}

fn local(scratch: &Scratch) -> ChunkAddress {
    address(scratch, Site::Path(scratch.path("store")))
}

fn run(tool: &str, args: &[&str]) {
    let out = Command::new(tool)
        .args(args)
        .output()
        .expect("the tool runs");
    assert!(
        out.status.success(),
        "{tool} {args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

#[test]
fn casync_and_this_program_cut_alike_and_read_each_other() {
    if !blockwright_oracles::have(&["casync"]) {
        return;
    }
    for (seed, bytes) in [
        (1, 0),
        (2, 100),
        (3, 16_384),
        (4, 16_385),
        (5, 9_000_001),
        (6, 24 << 20),
    ] {
        let scratch = Scratch::new();
        let bytes = image(seed, bytes);
        made(&scratch, &bytes);
        let store = format!("--store={}", text(&scratch.path("theirs.castr")));
        let theirs = scratch.path("theirs.caibx");
        if !bytes.is_empty() {
            // casync makes no index of an empty file.
            run(
                "casync",
                &["make", &store, text(&theirs), text(&scratch.path("image"))],
            );
            let ours = fs::read(scratch.path("index.caibx")).unwrap();
            assert!(
                ours == fs::read(&theirs).unwrap(),
                "seed {seed}: other indexes"
            );
            let store = format!("--store={}", text(&scratch.path("store")));
            let out = scratch.path("extracted");
            run(
                "casync",
                &[
                    "extract",
                    &store,
                    text(&scratch.path("index.caibx")),
                    text(&out),
                ],
            );
            assert!(
                fs::read(&out).unwrap() == bytes,
                "seed {seed}: casync extracts ours"
            );
            let mut address = local(&scratch);
            address.stores = vec![Site::Path(scratch.path("theirs.castr"))];
            address.index = Site::Path(theirs);
            check_extract(&scratch, &address, &bytes);
        }
        check_extract(&scratch, &local(&scratch), &bytes);
    }
}

#[test]
fn other_sizes_and_digests_are_casyncs_too() {
    if !blockwright_oracles::have(&["casync"]) {
        return;
    }
    let scratch = Scratch::new();
    let bytes = image(11, 12 << 20);
    let path = scratch.path("image");
    fs::write(&path, &bytes).unwrap();
    for (avg, digest, name) in [
        (4 << 10, Digest::Sha256, "sha256"),
        (48_000, Digest::Sha512_256, "sha512-256"),
        (1 << 20, Digest::Sha512_256, "sha512-256"),
    ] {
        let options = MakeOptions {
            sizes: ChunkSizes::around(avg),
            digest,
            threads: 2,
        };
        let index = scratch.path("index.caibx");
        make(
            &device_of(&path),
            &scratch.path("store"),
            &index,
            &options,
            &|_| (),
        )
        .unwrap();
        let theirs = scratch.path("theirs.caibx");
        let store = format!("--store={}", text(&scratch.path("theirs.castr")));
        let (size, digest) = (format!("--chunk-size={avg}"), format!("--digest={name}"));
        run(
            "casync",
            &["make", &store, &size, &digest, text(&theirs), text(&path)],
        );
        let read = |path: &Path| Index::read(&fs::read(path).unwrap()[..]).unwrap();
        assert_eq!(read(&index), read(&theirs), "{avg} {name}");
        check_extract(&scratch, &local(&scratch), &bytes);
    }
}

fn check_extract(scratch: &Scratch, address: &ChunkAddress, bytes: &[u8]) {
    let stores = Stores::open(address).unwrap();
    let index = Index::read(&stores.index().unwrap()[..]).unwrap();
    let out = scratch.path("ours");
    extract(&index, &stores, &out, &|_| ()).unwrap();
    assert!(fs::read(&out).unwrap() == bytes);
    fs::remove_file(&out).unwrap();
    let found = verify(&index, &stores, &|_| ());
    assert_eq!(
        (found.bytes, &found.problems[..]),
        (bytes.len() as u64, &[][..])
    );
}

/// Compares a device with the image, in reads of all kinds, also at the same time.
fn check_device(device: &SharedDevice, bytes: &[u8], seed: u64) {
    let end = bytes.len() as u64 / 512 * 512;
    assert_eq!(device.geometry().bytes, end);
    assert_eq!(device.tail().unwrap(), &bytes[end as usize..]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut rng = Rng(seed + thread);
                for _ in 0..60 {
                    let at = rng.below(end / 512) * 512;
                    let longest = [1, 16, 3000][rng.below(3) as usize];
                    let len = ((1 + rng.below(longest)) * 512).min(end - at);
                    let found = device.read_buf(DevOffset(at), len as usize).unwrap();
                    assert!(
                        found[..] == bytes[at as usize..(at + len) as usize],
                        "{at} {len}"
                    );
                    let data = device.next_data(DevOffset(at)).0;
                    assert_eq!(data % 512, 0, "the next data from {at}");
                    assert!(bytes[at as usize..data as usize].iter().all(|&b| b == 0));
                }
            });
        }
    });
    let mut at = 0;
    while at < end {
        let len = (256 << 10).min(end - at);
        let found = device.read_buf(DevOffset(at), len as usize).unwrap();
        assert!(found[..] == bytes[at as usize..(at + len) as usize], "{at}");
        at += len;
    }
}

#[test]
fn a_device_reads_what_was_cut() {
    let scratch = Scratch::new();
    let bytes = image(20, 30_000_123);
    let first = made(&scratch, &bytes);
    assert_eq!(first.bytes, bytes.len() as u64);
    check_device(&opened(&local(&scratch)).unwrap(), &bytes, 21);
    // Again: nothing is new.
    let again = made(&scratch, &bytes);
    assert_eq!((again.chunks, again.new_chunks), (first.chunks, 0));
    let write = open(local(&scratch).path(), OpenMode::default()).unwrap();
    assert_eq!(write.err().unwrap().kind, DeviceErrorKind::ReadOnly);
}

#[test]
fn holes_are_cut_as_zeroes_without_reading_them() {
    let scratch = Scratch::new();
    let path = scratch.path("sparse");
    let file = fs::File::create(&path).unwrap();
    file.set_len(40 << 30).unwrap();
    use std::os::unix::fs::FileExt;
    for at in [0u64, 5_000_192, (20 << 30) + 77, (40 << 30) - 3] {
        file.write_all_at(b"abc", at).unwrap();
    }
    drop(file);
    let index = scratch.path("index.caibx");
    let options = MakeOptions::default();
    let sparse = make(
        &device_of(&path),
        &scratch.path("store"),
        &index,
        &options,
        &|_| (),
    )
    .unwrap();
    assert!(sparse.new_chunks < 12, "{sparse:?}");
    // The same with every zero read.
    let start: Vec<u8> = {
        let mut bytes = Vec::new();
        fs::File::open(&path)
            .unwrap()
            .take(8 << 20)
            .read_to_end(&mut bytes)
            .unwrap();
        bytes
    };
    let small: SharedDevice = Arc::new(MemoryDevice::from_image(&start));
    let other = scratch.path("other.caibx");
    make(&small, &scratch.path("store"), &other, &options, &|_| ()).unwrap();
    let read = |path: &Path| Index::read(&fs::read(path).unwrap()[..]).unwrap();
    let (all, small) = (read(&index), read(&other));
    let shared = small.entries().len() - 1;
    assert_eq!(all.entries()[..shared], small.entries()[..shared]);
    assert_eq!(all.bytes(), 40 << 30);
    let device = opened(&local(&scratch)).unwrap();
    assert_eq!(
        &device.read_buf(DevOffset(20 << 30), 512).unwrap()[77..80],
        b"abc"
    );
    assert!(device.next_data(DevOffset(6 << 20)).0 > 19 << 30);
}

/// Chunks end at any byte, so zeroes between data do, too.
#[test]
fn an_image_in_chunks_is_cut_again() {
    let scratch = Scratch::new();
    let mut rng = Rng(22);
    let mut noise = |len: usize| -> Vec<u8> { (0..len).map(|_| rng.next() as u8).collect() };
    let mut bytes = Vec::new();
    for at in 0..6 {
        bytes.extend(noise(300_000 + 1111 * at));
        bytes.resize(bytes.len() + (3 << 20), 0);
    }
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    made(&scratch, &bytes);
    let device = opened(&local(&scratch)).unwrap();
    let again = scratch.path("again.caibx");
    let options = MakeOptions::default();
    let found = make(&device, &scratch.path("store"), &again, &options, &|_| ()).unwrap();
    assert_eq!((found.bytes, found.new_chunks), (bytes.len() as u64, 0));
    assert_eq!(
        fs::read(again).unwrap(),
        fs::read(scratch.path("index.caibx")).unwrap()
    );
}

#[test]
fn over_http_chunks_are_fetched_when_they_are_read_and_kept_in_the_cache() {
    let scratch = Scratch::new();
    let bytes = image(30, 20 << 20);
    let made = made(&scratch, &bytes);
    let web = Web::start(scratch.0.path(), Behaviour::Good);
    let mut address = address(&scratch, Site::Url(web.url("store")));
    address.index = Site::Url(web.url("index.caibx"));
    address.cache = Some(scratch.path("cache"));
    let device = opened(&address).unwrap();
    assert_eq!(web.answers(), 1, "the index alone");
    device.read_buf(DevOffset(512), 512).unwrap();
    assert!(web.answers() <= 2);
    check_device(&device, &bytes, 31);
    // Once each, whichever reader asked.
    assert!(
        web.answers() <= 1 + made.new_chunks as usize,
        "{} of {}",
        web.answers(),
        made.new_chunks
    );
    drop(device);
    let before = web.answers();
    check_device(&opened(&address).unwrap(), &bytes, 32);
    assert_eq!(
        web.answers(),
        before + 1,
        "the index again, chunks from the cache"
    );
    // What is damaged in the cache is fetched again.
    let mut damaged = 0;
    for folder in fs::read_dir(scratch.path("cache")).unwrap().flatten() {
        for file in fs::read_dir(folder.path()).unwrap().flatten() {
            fs::write(file.path(), b"damage").unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 50);
    check_device(&opened(&address).unwrap(), &bytes, 33);
    let before = web.answers();
    check_device(&opened(&address).unwrap(), &bytes, 34);
    assert_eq!(web.answers(), before + 1);
}

#[test]
fn passing_failures_of_a_server_are_overcome() {
    let scratch = Scratch::new();
    let bytes = image(40, 3 << 20);
    made(&scratch, &bytes);
    let web = Web::start(scratch.0.path(), Behaviour::FailsAtFirst);
    let device = opened(&address(&scratch, Site::Url(web.url("store")))).unwrap();
    check_device(&device, &bytes, 41);
    assert!(web.failures.load(Ordering::Relaxed) > 0);
}

/// Reads the whole device, whose store is hostile: every read ends with an error that says these.
fn refused(address: &ChunkAddress, says: &[&str]) {
    let device = opened(address).unwrap();
    let error = device.read_buf(DevOffset(0), 4096).unwrap_err();
    for part in says {
        assert!(
            error.to_string().contains(part),
            "{error} does not say {part}"
        );
    }
}

#[test]
fn hostile_stores_give_errors_with_the_chunk_and_the_store() {
    let scratch = Scratch::new();
    let bytes = image(51, 1 << 20);
    made(&scratch, &bytes);
    let index = Index::read(&fs::read(scratch.path("index.caibx")).unwrap()[..]).unwrap();
    let name = index.entries()[0].id.to_string();
    for (manner, says) in [
        (Behaviour::Endless, "the server sends more than"),
        (Behaviour::Truncated, ""),
        (Behaviour::Absent, "is not in http://"),
        (Behaviour::Other, "another digest"),
        (Behaviour::Bomb, "does not unpack into"),
        (Behaviour::Garbage, "not compressed by zstd"),
        (Behaviour::Loop, "redirect"),
    ] {
        let web = Web::start(scratch.0.path(), manner);
        let store = web.url("store");
        refused(
            &address(&scratch, Site::Url(store.clone())),
            &[&name, &store, says],
        );
    }
    // A second store helps.
    let web = Web::start(scratch.0.path(), Behaviour::Absent);
    let mut two = address(&scratch, Site::Url(web.url("store")));
    two.stores.push(Site::Path(scratch.path("store")));
    check_device(&opened(&two).unwrap(), &bytes, 52);
    // No server is there.
    let mut nobody = local(&scratch);
    nobody.stores = vec![Site::Url("http://127.0.0.1:1/s".to_owned())];
    refused(&nobody, &[&name, "refused", "4 times"]);
    // Files of a local store.
    let first = scratch.path("store").join(index.entries()[0].id.path());
    let good = fs::read(&first).unwrap();
    fs::write(&first, vec![0; 4 << 20]).unwrap();
    refused(&local(&scratch), &[&name, "too many for a chunk"]);
    fs::write(&first, &good[..good.len() / 2]).unwrap();
    refused(&local(&scratch), &[&name, "does not unpack"]);
    fs::remove_file(&first).unwrap();
    refused(
        &local(&scratch),
        &[&name, "is not in", text(&scratch.path("store"))],
    );
    let stores = Stores::open(&local(&scratch)).unwrap();
    assert_eq!(verify(&index, &stores, &|_| ()).problems.len(), 1);
    let out = scratch.path("out");
    assert!(extract(&index, &stores, &out, &|_| ()).is_err());
    assert!(!out.exists(), "half of an image stays");
}

/// Two authorities, `ca.pem` and `other.pem`, and a server that has a certificate of the first for `localhost`.
fn tls(scratch: &Scratch) -> Arc<ServerConfig> {
    let run = |args: &str| {
        let mut command = Command::new("openssl");
        let args = args.split(' ').chain([
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ]);
        let out = command.args(args).current_dir(&scratch.0).output().unwrap();
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{told}");
    };
    run("req -x509 -days 2 -subj /CN=ca -keyout ca.key -out ca.pem");
    run("req -x509 -days 2 -subj /CN=other -keyout other.key -out other.pem");
    run(
        "req -x509 -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
         -addext basicConstraints=critical,CA:FALSE -CA ca.pem -CAkey ca.key -keyout key.pem -out cert.pem",
    );
    let cert = CertificateDer::from_pem_file(scratch.path("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(scratch.path("key.pem")).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    Arc::new(config.with_single_cert(vec![cert], key).unwrap())
}

/// A server whose first connections get these bytes instead of TLS.
fn tls_web(scratch: &Scratch, config: &Arc<ServerConfig>, first: &[&'static [u8]]) -> Web {
    let config = Arc::clone(config);
    let first = Mutex::new(VecDeque::from(first.to_vec()));
    let secure = move |mut stream: TcpStream| -> Box<dyn web::Stream> {
        let answer = first.lock().unwrap().pop_front();
        let Some(answer) = answer else {
            let end = ServerConnection::new(Arc::clone(&config)).expect("a configuration");
            return Box::new(StreamOwned::new(end, stream));
        };
        // With the client's greeting unread, closing would drop the answer.
        let _greeting = stream.read(&mut [0; 4096]);
        let _told = stream.write_all(answer);
        Box::new(std::io::empty())
    };
    Web::start_tls(scratch.0.path(), Behaviour::Good, Arc::new(secure))
}

/// An image whose index is at a URL, and whose store is local.
fn index_at(
    scratch: &Scratch,
    url: String,
    ca: Option<&str>,
) -> blockwright_device::Result<SharedDevice> {
    let mut address = local(scratch);
    address.index = Site::Url(url);
    address.ca = ca.map(|ca| scratch.path(ca));
    opened(&address)
}

/// Fatal alerts as records of TLS.
const INTERNAL_ERROR: &[u8] = &[21, 3, 3, 0, 2, 2, 80];
const HANDSHAKE_FAILURE: &[u8] = &[21, 3, 3, 0, 2, 2, 40];
const PROTOCOL_VERSION: &[u8] = &[21, 3, 3, 0, 2, 2, 70];
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

#[test]
fn a_tls_server_that_restarts_is_asked_again() {
    if !blockwright_oracles::have(&["openssl"]) {
        return;
    }
    let scratch = Scratch::new();
    let bytes = image(91, 1 << 20);
    made(&scratch, &bytes);
    let first = [INTERNAL_ERROR, HANDSHAKE_FAILURE, PLAIN_HTTP];
    let web = tls_web(&scratch, &tls(&scratch), &first);
    let device = index_at(&scratch, web.url("index.caibx"), Some("ca.pem")).unwrap();
    assert_eq!(web.connections(), 4);
    check_device(&device, &bytes, 92);
}

#[test]
fn errors_that_no_retry_fixes_are_reported_at_once() {
    if !blockwright_oracles::have(&["openssl"]) {
        return;
    }
    let scratch = Scratch::new();
    let bytes = image(71, 1 << 20);
    made(&scratch, &bytes);
    let config = tls(&scratch);
    let web = tls_web(&scratch, &config, &[]);
    let url = web.url("index.caibx");
    let device = index_at(&scratch, url.clone(), Some("ca.pem")).unwrap();
    check_device(&device, &bytes, 72);
    let old = tls_web(&scratch, &config, &[PROTOCOL_VERSION; 4]);
    let mail = Web::start(scratch.0.path(), Behaviour::NoHttp);
    let other_name = url.replace("localhost", "127.0.0.1");
    let mail_url = mail.url("index.caibx");
    let cases = [
        (&web, url.clone(), Some("other.pem"), "UnknownIssuer", 1),
        (&web, url, None, "UnknownIssuer", 1),
        (&web, other_name, Some("ca.pem"), "not valid for name", 1),
        (&old, old.url("index.caibx"), None, "ProtocolVersion", 1),
        // A server that restarts may answer so, too.
        (
            &mail,
            mail_url.replace("http:", "https:"),
            None,
            "TLS: received corrupt message",
            4,
        ),
        (&mail, mail_url, None, "http parse fail", 4),
    ];
    for (server, url, ca, says, tries) in cases {
        let before = server.connections();
        let error = index_at(&scratch, url.clone(), ca).err().expect("an error");
        let error = error.to_string();
        assert!(error.contains(says) && error.contains(&url), "{error}");
        assert_eq!(error.contains("4 times"), tries == 4, "{error}");
        assert_eq!(server.connections(), before + tries, "{error}");
    }
}

#[test]
fn the_compressions_of_other_stores_are_named() {
    if !blockwright_oracles::have(&["casync"]) {
        return;
    }
    let scratch = Scratch::new();
    fs::write(scratch.path("image"), image(81, 1 << 20)).unwrap();
    for name in ["xz", "gzip"] {
        let (index, store) = (scratch.path("index.caibx"), scratch.path(name));
        let store_option = format!("--store={}", text(&store));
        let compression = format!("--compression={name}");
        run(
            "casync",
            &[
                "make",
                &store_option,
                &compression,
                text(&index),
                text(&scratch.path("image")),
            ],
        );
        let says = format!("compressed by {name}, and only zstd");
        refused(&address(&scratch, Site::Path(store)), &[&says]);
    }
}

#[test]
fn hostile_indexes_are_refused_when_they_are_opened() {
    let scratch = Scratch::new();
    made(&scratch, &image(61, 1 << 20));
    let good = fs::read(scratch.path("index.caibx")).unwrap();
    let refused = |bytes: &[u8], says: &str| {
        fs::write(scratch.path("index.caibx"), bytes).unwrap();
        let error = opened(&local(&scratch))
            .err()
            .expect("an error")
            .to_string();
        assert!(error.contains(says), "{error}");
    };
    refused(&good[..good.len() - 1], "ends after byte");
    refused(b"", "ends after byte 0");
    refused(&[7; 4096], "does not begin as an index");
    // Two sizes for one chunk: an error of the read.
    let index = Index::read(&good[..]).unwrap();
    let other = (1..index.entries().len())
        .find(|&n| index.chunk_bytes(n) != index.chunk_bytes(0))
        .expect("chunks of two sizes");
    let mut same = good.clone();
    same.copy_within(72..104, 72 + other * 40);
    fs::write(scratch.path("index.caibx"), &same).unwrap();
    let device = opened(&local(&scratch)).unwrap();
    let error = device
        .read_buf(DevOffset(0), 1 << 20)
        .unwrap_err()
        .to_string();
    assert!(error.contains("bytes in"), "{error}");
    let web = Web::start(scratch.0.path(), Behaviour::Endless);
    let mut endless = local(&scratch);
    endless.index = Site::Url(web.url("index.caibx"));
    // A body that never ends is cut off at the bound, whatever is in it.
    let error = opened(&endless).err().expect("an error").to_string();
    assert!(error.contains("the server sends more than"), "{error}");
}

/// A client of the server, with the right keys.
fn s3_keys() -> S3Keys {
    S3Keys::new(s3::KEY, s3::SECRET, Some(s3::TOKEN))
}

fn site(text: &str) -> Site {
    ChunkAddress::site(Path::new(text)).expect("a place")
}

#[test]
fn chunks_are_made_in_s3_and_read_from_it() {
    let scratch = Scratch::new();
    let bytes = image(101, 5 << 20);
    fs::write(scratch.path("image"), &bytes).unwrap();
    let server = S3::start(&scratch.path("objects"), true);
    let store = site(&server.place("a%20prefix/of/chunks"));
    let Site::S3(place) = &store else {
        panic!("{store:?}")
    };
    let sink = S3Store::open_with(place, s3_keys(), None).unwrap();
    let options = MakeOptions::default();
    let device = device_of(&scratch.path("image"));
    let index = scratch.path("index.caibx");
    let first = make_into(&device, &sink, &index, &options, &|_| ()).unwrap();
    assert_eq!(first.new_chunks as usize, server.puts());
    let again = make_into(&device, &sink, &index, &options, &|_| ()).unwrap();
    assert_eq!((again.chunks, again.new_chunks), (first.chunks, 0));
    // The same names and bytes as in a folder.
    made(&scratch, &bytes);
    let objects = scratch.path("objects/a prefix/of/chunks");
    let entries = Index::read(&fs::read(&index).unwrap()[..]).unwrap();
    for entry in entries.entries() {
        let read = |folder: &Path| fs::read(folder.join(entry.id.path())).unwrap();
        assert!(read(&objects) == read(&scratch.path("store")));
    }
    // The index from there as well.
    fs::rename(&index, scratch.path("objects/disk.caibx")).unwrap();
    let place = site(&server.place("disk.caibx"));
    let address = ChunkAddress::new(place, vec![store]);
    assert_eq!(
        ChunkAddress::parse(address.path()).unwrap().unwrap(),
        address
    );
    let stores = Stores::open_with(&address, s3_keys()).unwrap();
    let device = hold(Box::new(stores), address.to_string()).start().unwrap();
    check_device(&device, &bytes, 102);
    assert_eq!(server.refused(), 0);
}

#[test]
fn what_s3_refuses_is_said_with_its_cause_and_without_secrets() {
    let scratch = Scratch::new();
    let server = S3::start(&scratch.path("objects"), false);
    let id = ChunkId([7; 32]);
    let good = s3_keys();
    let wrong_secret = S3Keys::new(s3::KEY, "hidden", Some(s3::TOKEN));
    let unknown = S3Keys::new("AKIAOTHER", s3::SECRET, Some(s3::TOKEN));
    let store = server.place("p");
    let bucket = format!("{}?region={}", server.bare("other", "p"), s3::REGION);
    let elsewhere = format!("{}?region=us-west-9", server.bare(s3::BUCKET, "p"));
    let region = format!("in region `{}`", s3::REGION);
    for (keys, place, says) in [
        (&wrong_secret, &store, "SignatureDoesNotMatch"),
        (&unknown, &store, "InvalidAccessKeyId"),
        (&S3Keys::default(), &store, "set AWS_ACCESS_KEY_ID"),
        (&good, &bucket, "no bucket `other`"),
        (&good, &elsewhere, &region),
    ] {
        let address = address(&scratch, site(place));
        let stores = Stores::open_with(&address, keys.clone()).unwrap();
        let Site::S3(place) = &address.stores[0] else {
            panic!("{address}")
        };
        let sink = S3Store::open_with(place, keys.clone(), None).unwrap();
        for error in [
            stores.fetch(id, 1000, false).unwrap_err(),
            sink.put(id, b"chunk").unwrap_err(),
        ] {
            assert!(matches!(error, Error::Store { .. }), "{error:?}");
            let error = error.to_string();
            assert!(error.contains(says) && error.contains("http://"), "{error}");
            assert!(
                !error.contains("hidden") && !error.contains(s3::SECRET),
                "{error}"
            );
            assert!(!error.contains("times"), "asked again: {error}");
        }
    }
    assert_eq!(server.puts(), 0);
    // A chunk that is not there is missing, and another store is asked.
    let stores = Stores::open_with(&address(&scratch, site(&store)), good).unwrap();
    let error = stores.fetch(id, 1000, false).unwrap_err();
    assert!(matches!(error, Error::Missing { .. }), "{error:?}");
}

#[test]
fn a_store_to_write_is_a_folder_or_in_s3() {
    let scratch = Scratch::new();
    let file = scratch.path("file");
    fs::write(&file, b"no folder").unwrap();
    for (place, says) in [
        (text(&file), "is no folder"),
        ("http://h/store", "not written over HTTP"),
    ] {
        let error = open_sink(&site(place), None).err().expect("an error");
        let error = error.to_string();
        assert!(error.contains(says) && error.contains(place), "{error}");
    }
}
