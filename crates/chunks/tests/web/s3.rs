//! A small S3 server with one bucket, for tests. It checks each signature from the description of "AWS Signature Version 4", by its own code.

use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

pub const KEY: &str = "AKIATEST";
pub const SECRET: &str = "a/secret+of=the/tests";
pub const TOKEN: &str = "token==";
pub const BUCKET: &str = "disk.images";
pub const REGION: &str = "eu-test-2";
/// Objects that are slow at first.
const SLOW_MAX: usize = 8;

struct Serving {
    /// Objects are files below it.
    folder: PathBuf,
    /// Answers the first request for each of the first objects with 503.
    slow_down: bool,
    stop: AtomicBool,
    puts: AtomicUsize,
    refused: AtomicUsize,
    asked: Mutex<HashSet<String>>,
}

/// Stops when it is dropped.
pub struct S3 {
    port: u16,
    serving: Arc<Serving>,
    thread: Option<JoinHandle<()>>,
}

impl S3 {
    pub fn start(folder: &Path, slow_down: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().unwrap().port();
        let serving = Arc::new(Serving {
            folder: folder.to_owned(),
            slow_down,
            stop: AtomicBool::new(false),
            puts: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            asked: Mutex::default(),
        });
        let theirs = Arc::clone(&serving);
        let thread = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if theirs.stop.load(Ordering::Relaxed) {
                    return;
                }
                let theirs = Arc::clone(&theirs);
                thread::spawn(move || theirs.serve(stream));
            }
        });
        S3 {
            port,
            serving,
            thread: Some(thread),
        }
    }

    /// A place in the bucket, in the right region.
    pub fn place(&self, prefix: &str) -> String {
        format!("{}?region={REGION}", self.bare(BUCKET, prefix))
    }

    pub fn bare(&self, bucket: &str, prefix: &str) -> String {
        format!("s3+http://127.0.0.1:{}/{bucket}/{prefix}", self.port)
    }

    /// Objects that were made.
    pub fn puts(&self) -> usize {
        self.serving.puts.load(Ordering::Relaxed)
    }

    /// Requests whose signature was missing or wrong.
    pub fn refused(&self) -> usize {
        self.serving.refused.load(Ordering::Relaxed)
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.serving.stop.store(true, Ordering::Relaxed);
        let _wakes_it = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Request {
    method: String,
    target: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

impl Request {
    fn read(from: &mut impl BufRead) -> Option<Self> {
        let mut line = String::new();
        if from.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let mut words = line.split_ascii_whitespace().map(str::to_owned);
        let (method, target) = (words.next()?, words.next()?);
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            from.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").map_or("0", |len| len);
        let mut body = vec![0; length.parse().ok()?];
        from.read_exact(&mut body).ok()?;
        Some(Request {
            method,
            target,
            headers,
            body,
        })
    }

    /// The code and the sentence of S3, when the request is not signed as it must be.
    fn check(&self) -> Result<(), (&'static str, &'static str, String)> {
        let header = |name: &str| self.headers.get(name).cloned().unwrap_or_default();
        let denied = |why: &str| Err(("403 Forbidden", "AccessDenied", why.to_owned()));
        let authorization = header("authorization");
        let Some(rest) = authorization.strip_prefix("AWS4-HMAC-SHA256 ") else {
            return denied("Access Denied");
        };
        let fields: HashMap<&str, &str> = rest
            .split(',')
            .filter_map(|field| field.trim().split_once('='))
            .collect();
        let credential: Vec<&str> = fields["Credential"].split('/').collect();
        let [id, day, region, service, end] = credential[..] else {
            return denied("credential");
        };
        if id != KEY {
            let why = "The AWS Access Key Id you provided does not exist in our records.";
            return Err(("403 Forbidden", "InvalidAccessKeyId", why.to_owned()));
        }
        if region != REGION {
            let why = format!(
                "The region '{region}' is wrong</Message><Region>{REGION}</Region><Message>"
            );
            return Err(("400 Bad Request", "AuthorizationHeaderMalformed", why));
        }
        let time = header("x-amz-date");
        if (service, end) != ("s3", "aws4_request") || !time.starts_with(day) {
            return denied("scope");
        }
        if header("x-amz-security-token") != TOKEN {
            return Err(("400 Bad Request", "InvalidToken", "token".to_owned()));
        }
        let hash = hex(&Sha256::digest(&self.body));
        if header("x-amz-content-sha256") != hash {
            return Err(("400 Bad Request", "XAmzContentSHA256Mismatch", hash));
        }
        let names = fields["SignedHeaders"];
        for needed in [
            "host",
            "x-amz-content-sha256",
            "x-amz-date",
            "x-amz-security-token",
        ] {
            if !names.split(';').any(|name| name == needed) {
                return denied(needed);
            }
        }
        let lines: String = names
            .split(';')
            .map(|name| format!("{name}:{}\n", header(name)))
            .collect();
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        let canonical = format!("{}\n{path}\n{query}\n{lines}\n{names}\n{hash}", self.method);
        let scope = format!("{day}/{region}/s3/aws4_request");
        let digest = hex(&Sha256::digest(canonical));
        let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}");
        let mut key = format!("AWS4{SECRET}").into_bytes();
        for part in [day, region, "s3", "aws4_request"] {
            key = hmac(&key, part.as_bytes());
        }
        if fields["Signature"] != hex(&hmac(&key, to_sign.as_bytes())) {
            let why = "The request signature we calculated does not match";
            return Err(("403 Forbidden", "SignatureDoesNotMatch", why.to_owned()));
        }
        Ok(())
    }
}

fn hmac(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut block = [0; 64];
    match key.len() > 64 {
        true => block[..32].copy_from_slice(&Sha256::digest(key)),
        false => block[..key.len()].copy_from_slice(key),
    }
    let inner = Sha256::digest([&block.map(|b| b ^ 0x36)[..], bytes].concat());
    Sha256::digest([&block.map(|b| b ^ 0x5C)[..], &inner].concat()).to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl Serving {
    fn serve(&self, stream: TcpStream) {
        let mut from = BufReader::new(stream);
        while let Some(request) = Request::read(&mut from) {
            let (status, body) = self.answer(&request);
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            let body = match request.method == "HEAD" {
                true => &[],
                false => &body[..],
            };
            let sent = from.get_mut().write_all(&[head.as_bytes(), body].concat());
            if sent.is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: &Request) -> (&'static str, Vec<u8>) {
        let error = |status, code: &str, why: &str| {
            let text = format!(
                "<Error><Code>{code}</Code><Message>{why}</Message><Secret>x</Secret></Error>"
            );
            (status, text.into_bytes())
        };
        if let Err((status, code, why)) = request.check() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return error(status, code, &why);
        }
        let is_slow = self.slow_down && {
            let mut asked = self.asked.lock().unwrap();
            asked.len() < SLOW_MAX && asked.insert(request.target.clone())
        };
        if is_slow {
            return error(
                "503 Slow Down",
                "SlowDown",
                "Please reduce your request rate.",
            );
        }
        let path = request.target.trim_start_matches('/');
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        if bucket != BUCKET {
            return error("404 Not Found", "NoSuchBucket", "no such bucket");
        }
        let file = self.folder.join(key.replace("%20", " "));
        match &*request.method {
            "PUT" => {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(&file, &request.body).unwrap();
                self.puts.fetch_add(1, Ordering::Relaxed);
                ("200 OK", Vec::new())
            }
            _ => match fs::read(&file) {
                Ok(body) => ("200 OK", body),
                Err(_) => error("404 Not Found", "NoSuchKey", "no such key"),
            },
        }
    }
}
