//! What a front end's cache shows while files are written past it, in every order that readers, writers and drops can meet in, by
//! loom: the very source file, with loom's mutex in the place of ours.
//!
//! The front end is modelled after the kernel's FUSE client: a page is locked from before its READ is sent until the answer is in;
//! an asynchronous direct write drops the page (for which it waits for the page's lock) before it is sent, and nothing after.

#[path = "../src/cache"]
mod source {
    pub mod block_set {
        pub use blockwright_vfs::block_set::BlockSet;
    }

    pub mod front_sync {
        pub struct Mutex<T>(loom::sync::Mutex<T>);

        impl<T> Mutex<T> {
            pub fn new(value: T) -> Self {
                Mutex(loom::sync::Mutex::new(value))
            }

            pub fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
                self.0.lock().unwrap()
            }
        }
    }

    pub mod front_pages;
}

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use source::front_pages::FrontPages;

const PAGE: std::ops::Range<u64> = 0..4096;

/// What the server does about pages that were read before a write landed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    Drops,
    /// To see that the model can fail.
    Trusts,
}

struct World {
    server: Server,
    notes: FrontPages,
    /// What the block holds.
    device: AtomicU64,
    /// The page in the front end's cache; its lock is the page's.
    page: Mutex<Option<u64>>,
}

impl World {
    fn new(server: Server) -> Arc<Self> {
        Arc::new(World {
            server,
            notes: FrontPages::default(),
            device: AtomicU64::new(0),
            page: Mutex::new(None),
        })
    }

    /// A read through the front end's cache.
    fn read(&self) -> u64 {
        let mut page = self.page.lock().unwrap();
        *page.get_or_insert_with(|| {
            // The server's side of a READ.
            let fill = self.notes.begin_fill(&PAGE);
            let bytes = self.device.load(Ordering::SeqCst);
            self.notes.end_fill(fill);
            bytes
        })
    }

    /// An asynchronous direct write; what it wrote is there when it returns.
    fn write(&self, value: u64) {
        *self.page.lock().unwrap() = None;
        // The server's side of the WRITE.
        self.device.fetch_max(value, Ordering::SeqCst);
        if self.server == Server::Trusts {
            return;
        }
        if let Some(drop) = self.notes.begin_drop(&PAGE) {
            *self.page.lock().unwrap() = None;
            self.notes.end_drop(&drop);
        }
    }
}

/// A reader beside writers, each of which reads back at once what it wrote; the device keeps the later of their values.
fn writers_beside_a_reader(server: Server, writers: u64) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let world = World::new(server);
        if writers == 1 {
            // Notes are exact from the first write on: the second is the one that is watched.
            world.write(1);
        }
        let threads: Vec<_> = (0..writers)
            .map(|n| {
                let world = Arc::clone(&world);
                loom::thread::spawn(move || {
                    world.write(n + 2);
                    let read = world.read();
                    assert!(read >= n + 2, "stale: {read} after {} was written", n + 2);
                })
            })
            .collect();
        world.read();
        world.read();
        for thread in threads {
            thread.join().unwrap();
        }
        let left = world.read();
        assert_eq!(
            left,
            world.device.load(Ordering::SeqCst),
            "a stale page stays"
        );
    });
}

#[test]
fn no_page_is_older_than_a_write_that_was_acknowledged() {
    writers_beside_a_reader(Server::Drops, 1);
}

#[test]
fn nor_beside_a_second_writer_whose_drop_is_under_way() {
    writers_beside_a_reader(Server::Drops, 2);
}

#[test]
#[should_panic(expected = "stale")]
fn a_server_that_trusts_the_drop_before_the_write_shows_stale_pages() {
    writers_beside_a_reader(Server::Trusts, 1);
}

#[test]
fn only_what_was_read_is_dropped() {
    loom::model(|| {
        let pages = FrontPages::default();
        let all = pages.begin_drop(&(0..4096));
        assert_eq!(all, Some(0..u64::MAX), "at first anything may be held");
        pages.end_drop(&all.unwrap());
        assert_eq!(pages.begin_drop(&(0..1 << 30)), None);
        let before = pages.next_fill();
        let fill = pages.begin_fill(&(8192..12288));
        let after = pages.next_fill();
        assert!(pages.is_filling_since_before(after, &(12287..12289)));
        assert!(!pages.is_filling_since_before(after, &(0..8192)));
        assert!(!pages.is_filling_since_before(before, &(0..1 << 30)));
        pages.end_fill(fill);
        assert!(!pages.is_filling_since_before(after, &(0..1 << 30)));
        assert_eq!(pages.begin_drop(&(0..8192)), None);
        let one = pages.begin_drop(&(8000..8193));
        assert_eq!(one, Some(4096..12288), "whole pages");
        assert_eq!(pages.begin_drop(&(0..4096)), None);
        // While it is being dropped others drop it, too.
        assert_eq!(pages.begin_drop(&(8192..8193)), Some(8192..12288));
        pages.end_drop(&(8192..12288));
        assert!(pages.begin_drop(&(4096..8192)).is_some());
        pages.end_drop(&(4096..8192));
        pages.end_drop(&(4096..12288));
        assert_eq!(pages.begin_drop(&(0..1 << 30)), None);
    });
}

#[test]
fn notes_are_given_up_when_they_are_too_many() {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.check(|| {
        let pages = FrontPages::default();
        let all = pages.begin_drop(&(0..1)).unwrap();
        pages.end_drop(&all);
        for n in 0..=16 << 10 {
            let fill = pages.begin_fill(&(n << 22..(n << 22) + 1));
            pages.end_fill(fill);
        }
        assert_eq!(pages.begin_drop(&(0..1)), Some(0..u64::MAX));
    });
}
