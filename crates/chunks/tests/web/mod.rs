//! A small web server with manners, for tests: good ones and bad ones.
#![allow(dead_code)]

pub mod s3;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behaviour {
    /// Gives the files of a folder.
    Good,
    /// Fails the first two times that a file is asked for.
    FailsAtFirst,
    /// Sends zeroes without an end.
    Endless,
    /// Promises more than it sends.
    Truncated,
    /// Has nothing.
    Absent,
    /// Has something else under every name.
    Other,
    /// Has gigabytes under every name, well packed.
    Bomb,
    /// Has no chunks at all.
    Garbage,
    /// Sends the client to and fro.
    Loop,
    /// Speaks another protocol, and speaks first.
    NoHttp,
}

/// What a server reads requests from, and writes answers to.
pub trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// Makes a connection secure.
pub type Secure = Arc<dyn Fn(TcpStream) -> Box<dyn Stream> + Send + Sync>;

struct Serving {
    folder: PathBuf,
    manner: Behaviour,
    answers: AtomicUsize,
    failures: Arc<AtomicUsize>,
    connections: AtomicUsize,
    asked: Mutex<HashMap<String, usize>>,
    stop: AtomicBool,
}

/// Stops when it is dropped.
pub struct Web {
    port: u16,
    secure: bool,
    serving: Arc<Serving>,
    pub failures: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Web {
    pub fn start(folder: &Path, manner: Behaviour) -> Self {
        Self::start_with(folder, manner, None)
    }

    /// Serves over TLS.
    pub fn start_tls(folder: &Path, manner: Behaviour, secure: Secure) -> Self {
        Self::start_with(folder, manner, Some(secure))
    }

    fn start_with(folder: &Path, manner: Behaviour, tls: Option<Secure>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().unwrap().port();
        let failures = Arc::new(AtomicUsize::new(0));
        let serving = Arc::new(Serving {
            folder: folder.to_owned(),
            manner,
            answers: AtomicUsize::new(0),
            failures: Arc::clone(&failures),
            connections: AtomicUsize::new(0),
            asked: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&serving);
        let secure = tls.is_some();
        let thread = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if theirs.stop.load(Ordering::Relaxed) {
                    return;
                }
                theirs.connections.fetch_add(1, Ordering::Relaxed);
                let (theirs, tls) = (Arc::clone(&theirs), tls.clone());
                thread::spawn(move || match tls {
                    None => theirs.serve(stream),
                    Some(tls) => theirs.serve(tls(stream)),
                });
            }
        });
        Web {
            port,
            secure,
            serving,
            failures,
            thread: Some(thread),
        }
    }

    pub fn url(&self, path: &str) -> String {
        match self.secure {
            true => format!("https://localhost:{}/{path}", self.port),
            false => format!("http://127.0.0.1:{}/{path}", self.port),
        }
    }

    /// Connections that clients made.
    pub fn connections(&self) -> usize {
        self.serving.connections.load(Ordering::Relaxed)
    }

    /// Files that were given.
    pub fn answers(&self) -> usize {
        self.serving.answers.load(Ordering::Relaxed)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.serving.stop.store(true, Ordering::Relaxed);
        let _wakes_it = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Serving {
    fn serve(&self, stream: impl Read + Write) {
        let mut from = BufReader::new(stream);
        if self.manner == Behaviour::NoHttp {
            let _greeted = from.get_mut().write_all(b"220 mail.example ESMTP\r\n");
            // Until the client hangs up.
            let _ignored = std::io::copy(&mut from, &mut std::io::sink());
            return;
        }
        loop {
            let mut first = String::new();
            if from.read_line(&mut first).unwrap_or(0) == 0 {
                return;
            }
            let mut line = String::new();
            while from.read_line(&mut line).unwrap_or(0) > 2 {
                line.clear();
            }
            let path = first
                .split(' ')
                .nth(1)
                .unwrap_or("/")
                .trim_start_matches('/');
            let found = fs::read(self.folder.join(path)).ok();
            let stream = from.get_mut();
            let mut send = |status: &str, length: usize, body: &[u8]| {
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
                stream.write_all(&[head.as_bytes(), body].concat())
            };
            let sent = match (self.manner, found) {
                (Behaviour::Good, Some(body)) => {
                    self.answers.fetch_add(1, Ordering::Relaxed);
                    send("200 OK", body.len(), &body)
                }
                (Behaviour::FailsAtFirst, Some(body)) => {
                    let times = {
                        let mut asked = self.asked.lock().unwrap();
                        let times = asked.entry(path.to_owned()).or_default();
                        *times += 1;
                        *times
                    };
                    match times {
                        1 => {
                            self.failures.fetch_add(1, Ordering::Relaxed);
                            send("503 Later", 0, b"")
                        }
                        2 => {
                            self.failures.fetch_add(1, Ordering::Relaxed);
                            let _half = send("200 OK", body.len(), &body[..body.len() / 2]);
                            return;
                        }
                        _ => send("200 OK", body.len(), &body),
                    }
                }
                (Behaviour::Endless, _) => {
                    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                    let mut sent = stream.write_all(head.as_bytes());
                    let piece = [b"10000\r\n", &[0; 65536][..], b"\r\n"].concat();
                    while sent.is_ok() {
                        sent = stream.write_all(&piece);
                    }
                    return;
                }
                (Behaviour::Truncated, Some(body)) => {
                    let _half = send("200 OK", body.len(), &body[..body.len() / 2]);
                    return;
                }
                (Behaviour::Other, _) => {
                    // As long as the first chunk of the index says.
                    let index = fs::read(self.folder.join("index.caibx")).unwrap();
                    let bytes = u64::from_le_bytes(index[64..72].try_into().unwrap());
                    let body = zstd::bulk::compress(&vec![1; bytes as usize], 3).unwrap();
                    send("200 OK", body.len(), &body)
                }
                (Behaviour::Bomb, _) => {
                    let body = zstd::bulk::compress(&vec![1; 64 << 20], 3).unwrap();
                    send("200 OK", body.len(), &body)
                }
                (Behaviour::Garbage, _) => send("200 OK", 5, b"<html"),
                (Behaviour::Loop, _) => {
                    let head = format!(
                        "HTTP/1.1 302 Found\r\nLocation: /{path}x\r\nContent-Length: 0\r\n\r\n"
                    );
                    stream.write_all(head.as_bytes())
                }
                _ => send("404 Not Found", 0, b""),
            };
            if sent.is_err() {
                return;
            }
        }
    }
}
