//! A source or a sink in another process, for a confined process that may no longer open files and connections. A socket connects the two.
//!
//! Requests and answers carry a number each, so that many are under way at once. The other process passes on what stores say, without looking at it. It
//! can be asked for chunks and for the index, or to keep chunks, and for nothing else.

use crate::fetch::THREADS;
use crate::index::{CHUNK_BYTES_MAX, INDEX_BYTES_MAX};
use crate::pack::packed_bytes_max;
use crate::{ChunkId, Error, Packed, Result, Sink, Source};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

const REQUEST_BYTES: usize = 41;
const ANSWER_BYTES: usize = 15;
/// A compressed chunk can be larger than the largest chunk.
const BYTES_MAX: u64 = packed_bytes_max(CHUNK_BYTES_MAX as usize);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Chunk = 0,
    Fresh = 1,
    Index = 2,
    Has = 3,
    /// The compressed chunk follows.
    Put = 4,
    Sync = 5,
}

struct Asked {
    tag: u32,
    kind: Kind,
    bytes: u32,
    id: ChunkId,
}

impl Asked {
    fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut out = [0; REQUEST_BYTES];
        out[..4].copy_from_slice(&self.tag.to_le_bytes());
        out[4] = self.kind as u8;
        out[5..9].copy_from_slice(&self.bytes.to_le_bytes());
        out[9..].copy_from_slice(&self.id.0);
        out
    }

    fn decode(from: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut id = [0; 32];
        id.copy_from_slice(&from[9..]);
        Some(Asked {
            tag: word(&from[..4]),
            kind: match from[4] {
                0 => Kind::Chunk,
                1 => Kind::Fresh,
                2 => Kind::Index,
                3 => Kind::Has,
                4 => Kind::Put,
                5 => Kind::Sync,
                _ => return None,
            },
            bytes: Some(word(&from[5..9])).filter(|&bytes| u64::from(bytes) <= BYTES_MAX)?,
            id: ChunkId(id),
        })
    }
}

/// A little-endian number of up to four bytes.
fn word(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |all, &b| all << 8 | u32::from(b))
}

/// An answer in two texts: what is at fault or gave the bytes, and the bytes or the reason.
fn encode(tag: u32, answer: Result<Packed>) -> Vec<u8> {
    let (status, errno, first, second) = match answer {
        Ok(packed) => (0, 0, packed.store, packed.bytes),
        Err(Error::Missing { stores, .. }) => (1, 0, stores, Vec::new()),
        Err(Error::Wrong { store, why, .. }) => (2, 0, store, why.into_bytes()),
        Err(Error::Host { place, why, errno }) => (4, errno.unwrap_or(0), place, why.into_bytes()),
        Err(Error::Store { place, why }) => (3, 0, place, why.into_bytes()),
        Err(Error::Index(why)) => (5, 0, String::new(), why.into_bytes()),
        Err(e) => (
            3,
            0,
            "the fetching process".to_owned(),
            e.to_string().into_bytes(),
        ),
    };
    let first = &first.as_bytes()[..first.len().min(usize::from(u16::MAX))];
    let mut out = Vec::with_capacity(ANSWER_BYTES + first.len() + second.len());
    out.extend(tag.to_le_bytes());
    out.push(status);
    out.extend((first.len() as u16).to_le_bytes());
    out.extend((second.len() as u32).to_le_bytes());
    out.extend(i32::to_le_bytes(errno));
    out.extend(first);
    out.extend(second);
    out
}

/// Reads one answer.
fn decode(from: &mut impl Read) -> io::Result<(u32, Answer)> {
    let mut head = [0; ANSWER_BYTES];
    from.read_exact(&mut head)?;
    let first_len = word(&head[5..7]) as usize;
    let second_len = u64::from(word(&head[7..11]));
    if second_len > INDEX_BYTES_MAX + 1 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut first = vec![0; first_len];
    from.read_exact(&mut first)?;
    let mut second = Vec::new();
    if from.take(second_len).read_to_end(&mut second)? as u64 != second_len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let answer = Answer {
        status: head[4],
        errno: word(&head[11..15]) as i32,
        first: String::from_utf8_lossy(&first).into_owned(),
        second,
    };
    Ok((word(&head[..4]), answer))
}

/// An answer that does not repeat which chunk it is about.
struct Answer {
    status: u8,
    errno: i32,
    first: String,
    second: Vec<u8>,
}

impl Answer {
    fn about(self, chunk: ChunkId) -> Result<Packed> {
        let why = || String::from_utf8_lossy(&self.second).into_owned();
        Err(match self.status {
            0 => {
                return Ok(Packed {
                    bytes: self.second,
                    store: self.first,
                });
            }
            1 => Error::Missing {
                chunk,
                stores: self.first,
            },
            2 => Error::Wrong {
                chunk,
                why: why(),
                store: self.first,
            },
            4 => Error::Host {
                why: why(),
                place: self.first,
                errno: Some(self.errno).filter(|&errno| errno != 0),
            },
            5 => Error::Index(why()),
            _ => Error::Store {
                why: why(),
                place: self.first,
            },
        })
    }
}

#[derive(Default)]
struct Slots {
    /// Who waits for which answer, and those that came.
    answers: HashMap<u32, Option<Answer>>,
    next: u32,
    reading: bool,
    ended: bool,
}

struct Line {
    stream: UnixStream,
    sending: Mutex<()>,
    slots: Mutex<Slots>,
    came: Condvar,
}

/// See the module's head.
pub struct Remote(Arc<Line>);

impl Remote {
    /// Asks the process at the other end of a socket, where [`serve`] answers. Its thread starts with the first question.
    #[must_use]
    pub fn new(stream: UnixStream) -> Self {
        Remote(Arc::new(Line {
            stream,
            sending: Mutex::new(()),
            slots: Mutex::default(),
            came: Condvar::new(),
        }))
    }

    /// `body`: what follows the request.
    fn ask(&self, kind: Kind, bytes: usize, id: ChunkId, body: &[u8]) -> Result<Packed> {
        let line = &self.0;
        let gone = |why: &str| Error::Store {
            place: "the fetching process".to_owned(),
            why: why.to_owned(),
        };
        let tag = {
            let mut slots = line.slots.lock();
            if !slots.reading {
                let theirs = Arc::clone(line);
                let thread = thread::Builder::new().name("chunk-answers".to_owned());
                if let Err(e) = thread.spawn(move || theirs.receive()) {
                    return Err(gone(&blockwright_device::host_reason(&e)));
                }
                slots.reading = true;
            }
            while slots.answers.contains_key(&slots.next) {
                slots.next = slots.next.wrapping_add(1);
            }
            let tag = slots.next;
            slots.next = tag.wrapping_add(1);
            slots.answers.insert(tag, None);
            tag
        };
        let asked = Asked {
            tag,
            kind,
            bytes: bytes as u32,
            id,
        };
        let sent = {
            let _whole = line.sending.lock();
            (&line.stream)
                .write_all(&asked.encode())
                .and_then(|()| (&line.stream).write_all(body))
        };
        let mut slots = line.slots.lock();
        loop {
            if let Some(Some(_)) = slots.answers.get(&tag)
                && let Some(Some(answer)) = slots.answers.remove(&tag)
            {
                return answer.about(id);
            }
            if sent.is_err() || slots.ended {
                slots.answers.remove(&tag);
                return Err(gone("it has ended"));
            }
            line.came.wait(&mut slots);
        }
    }
}

impl Line {
    fn receive(&self) {
        let mut from = io::BufReader::with_capacity(64 << 10, &self.stream);
        while let Ok((tag, answer)) = decode(&mut from) {
            let mut slots = self.slots.lock();
            if let Some(slot) = slots.answers.get_mut(&tag) {
                *slot = Some(answer);
                self.came.notify_all();
            }
        }
        self.slots.lock().ended = true;
        self.came.notify_all();
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Fails when the other side was first. The thread ends with the connection.
        let _ = self.0.stream.shutdown(Shutdown::Both);
    }
}

impl Source for Remote {
    fn fetch(&self, id: ChunkId, bytes: usize, fresh: bool) -> Result<Packed> {
        let kind = match fresh {
            true => Kind::Fresh,
            false => Kind::Chunk,
        };
        let packed = self.ask(kind, bytes, id, &[])?;
        match packed.bytes.len() as u64 > packed_bytes_max(bytes) {
            true => Err(Error::Wrong {
                chunk: id,
                store: packed.store,
                why: "it is larger than it can be".to_owned(),
            }),
            false => Ok(packed),
        }
    }

    fn index(&self) -> Result<Vec<u8>> {
        Ok(self.ask(Kind::Index, 0, ChunkId([0; 32]), &[])?.bytes)
    }
}

impl Sink for Remote {
    fn has(&self, id: ChunkId) -> Result<bool> {
        Ok(!self.ask(Kind::Has, 0, id, &[])?.bytes.is_empty())
    }

    fn put(&self, id: ChunkId, packed: &[u8]) -> Result<()> {
        self.ask(Kind::Put, packed.len(), id, packed).map(drop)
    }

    fn sync(&self) -> Result<()> {
        self.ask(Kind::Sync, 0, ChunkId([0; 32]), &[]).map(drop)
    }
}

/// What a [`Remote`] is answered from.
#[derive(Clone, Copy)]
enum Served<'a> {
    Source(&'a dyn Source),
    Sink(&'a dyn Sink),
}

impl Served<'_> {
    fn answers(self, kind: Kind) -> bool {
        let is_read = matches!(kind, Kind::Chunk | Kind::Fresh | Kind::Index);
        is_read == matches!(self, Served::Source(_))
    }

    fn answer(self, asked: &Asked, body: &[u8]) -> Result<Packed> {
        let answer = |bytes| Packed {
            bytes,
            store: String::new(),
        };
        match (self, asked.kind) {
            (Served::Source(source), Kind::Index) => source.index().map(answer),
            (Served::Source(source), kind) => {
                source.fetch(asked.id, asked.bytes as usize, kind == Kind::Fresh)
            }
            (Served::Sink(sink), Kind::Has) => sink
                .has(asked.id)
                .map(|found| answer(vec![1; usize::from(found)])),
            (Served::Sink(sink), Kind::Put) => {
                sink.put(asked.id, body).map(|()| answer(Vec::new()))
            }
            (Served::Sink(sink), _) => sink.sync().map(|()| answer(Vec::new())),
        }
    }
}

/// Answers a [`Remote`] until it closes its end. It is asked for chunks and the index.
///
/// # Errors
/// As reading from the socket, and writing to it.
pub fn serve(source: &dyn Source, stream: &UnixStream) -> io::Result<()> {
    serve_any(Served::Source(source), stream)
}

/// The same for a [`Remote`] that chunks are put into.
///
/// # Errors
/// As [`serve`].
pub fn serve_sink(sink: &dyn Sink, stream: &UnixStream) -> io::Result<()> {
    serve_any(Served::Sink(sink), stream)
}

type Job = (Asked, Vec<u8>);

fn serve_any(served: Served<'_>, stream: &UnixStream) -> io::Result<()> {
    let waiting = match served {
        Served::Source(_) => 4 * THREADS,
        // Each has a chunk with it.
        Served::Sink(_) => THREADS / 2,
    };
    let (queue, jobs) = sync_channel::<Job>(waiting);
    let jobs = Mutex::new(jobs);
    let sending = Mutex::new(());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| answer(served, &jobs, stream, &sending));
        }
        let mut from = io::BufReader::new(stream);
        let mut head = [0; REQUEST_BYTES];
        let result = loop {
            match from.read_exact(&mut head) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break Ok(()),
                Err(e) => break Err(e),
            }
            let Some(asked) = Asked::decode(&head).filter(|asked| served.answers(asked.kind))
            else {
                break Err(io::ErrorKind::InvalidData.into());
            };
            let mut body = Vec::new();
            if asked.kind == Kind::Put {
                body.resize(asked.bytes as usize, 0);
                if let Err(e) = from.read_exact(&mut body) {
                    break Err(e);
                }
            }
            if queue.send((asked, body)).is_err() {
                break Ok(());
            }
        };
        drop(queue);
        result
    })
}

fn answer(
    served: Served<'_>,
    jobs: &Mutex<Receiver<Job>>,
    stream: &UnixStream,
    sending: &Mutex<()>,
) {
    loop {
        let job = jobs.lock().recv();
        let Ok((asked, body)) = job else { return };
        let found = served.answer(&asked, &body);
        let bytes = encode(asked.tag, found);
        let _whole = sending.lock();
        // The other side has gone: the reading thread finds out.
        let _sent = { stream }.write_all(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Digest;
    use crate::fetch::fetch_checked;
    use crate::pack::pack;

    /// Knows numbers as chunks.
    struct Numbers;

    fn contents(n: usize) -> Vec<u8> {
        vec![n as u8; 1000 + n]
    }

    impl Source for Numbers {
        fn fetch(&self, id: ChunkId, bytes: usize, fresh: bool) -> Result<Packed> {
            let store = "numbers".to_owned();
            let n = bytes - 1000;
            match n % 7 {
                5 => Err(Error::Missing {
                    chunk: id,
                    stores: store,
                }),
                6 => Err(Error::Host {
                    place: "p".into(),
                    why: "no".into(),
                    errno: Some(13),
                }),
                // What a damaged cache would give.
                4 if !fresh => Ok(Packed {
                    bytes: vec![1, 2, 3],
                    store,
                }),
                _ => Ok(Packed {
                    bytes: pack(&contents(n)).unwrap(),
                    store,
                }),
            }
        }

        fn index(&self) -> Result<Vec<u8>> {
            Ok(vec![7; 3 << 20])
        }
    }

    #[test]
    fn many_ask_at_once_and_each_gets_its_answer() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let remote = &Remote::new(ours);
        thread::scope(|scope| {
            let server = scope.spawn(move || serve(&Numbers, &theirs));
            let askers: Vec<_> = (0..20)
                .map(|asker| {
                    scope.spawn(move || {
                        for n in (0..300).map(|n| n * 20 + asker) {
                            let id = Digest::default().of(&contents(n));
                            let found = fetch_checked(remote, Digest::default(), id, 1000 + n);
                            match n % 7 {
                                5 => assert_eq!(
                                    found.unwrap_err(),
                                    Error::Missing {
                                        chunk: id,
                                        stores: "numbers".into()
                                    }
                                ),
                                6 => assert!(matches!(
                                    found,
                                    Err(Error::Host {
                                        errno: Some(13),
                                        ..
                                    })
                                )),
                                _ => assert_eq!(found.unwrap(), contents(n)),
                            }
                        }
                        assert_eq!(remote.index().unwrap(), vec![7; 3 << 20]);
                    })
                })
                .collect();
            for asker in askers {
                asker.join().unwrap();
            }
            remote.0.stream.shutdown(Shutdown::Both).unwrap();
            server.join().unwrap().unwrap();
            let error = remote.fetch(ChunkId([0; 32]), 1000, false).unwrap_err();
            assert!(error.to_string().contains("it has ended"), "{error}");
        });
    }

    /// Keeps chunks, and no odd ones.
    #[derive(Default)]
    struct Shelf(Mutex<HashMap<ChunkId, Vec<u8>>>);

    impl Sink for Shelf {
        fn has(&self, id: ChunkId) -> Result<bool> {
            Ok(self.0.lock().contains_key(&id))
        }

        fn put(&self, id: ChunkId, packed: &[u8]) -> Result<()> {
            if packed.len() % 2 == 1 {
                return Err(Error::Store {
                    place: "shelf".into(),
                    why: "odd".into(),
                });
            }
            self.0.lock().insert(id, packed.to_vec());
            Ok(())
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn chunks_are_put_through_a_socket_and_a_sink_gives_none() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let remote = &Remote::new(ours);
        let shelf = &Shelf::default();
        thread::scope(|scope| {
            let server = scope.spawn(move || serve_sink(shelf, &theirs));
            let putters = [0, 1, 2, 3].map(|putter| {
                scope.spawn(move || {
                    for n in (0..100).map(|n| n * 4 + putter) {
                        let contents = vec![putter as u8; n * 701];
                        let id = Digest::default().of(&n.to_le_bytes());
                        let put = remote.put(id, &contents);
                        assert_eq!(put.is_ok(), contents.len().is_multiple_of(2), "{put:?}");
                        assert_eq!(remote.has(id), Ok(put.is_ok()));
                    }
                    remote.sync().unwrap();
                })
            });
            for putter in putters {
                putter.join().unwrap();
            }
            assert_eq!(shelf.0.lock().len(), 200);
            // A process that only writes is answered nothing else.
            assert!(remote.index().is_err());
            assert!(server.join().unwrap().is_err());
        });
    }
}
