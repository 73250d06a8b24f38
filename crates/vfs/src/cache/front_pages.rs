//! Which pages of a file a front end's own cache may hold from reads.
//!
//! A front end with a cache above ours (the kernel, over FUSE) fills it by reads. It drops the pages of a range before it sends a
//! direct write. A read that is sent between the drop and the write fills them again, with bytes that are old as soon as the write
//! has completed. The kernel of a local file system drops the pages once more when the write is done; a FUSE client does not do so
//! for asynchronous writes. So the front end's server does: it notes every read that fills the cache. After a direct write has
//! completed, and before the writer gets its answer, it has the pages dropped that may have been read.
//!
//! A file that nothing was written to past the front end's cache has no notes, so most files cost nothing. The first direct write
//! drops all pages of the file; notes are exact from then on.
//!
//! # Invariants
//! * A read is noted ([`FrontPages::begin_fill`]) before the first look at the bytes that it brings.
//! * A writer asks ([`FrontPages::begin_drop`]) after its bytes are what every later read finds.
//! * A range that is being dropped counts as held until [`FrontPages::end_drop`]: a second write that completes meanwhile
//!   drops it too. Otherwise its writer would get its answer while an old page is still cached.
//! * The front end's drop waits for reads on their way to its cache. So a read that began before the notes were exact is over
//!   when the first drop, which is of the whole file, is.
//!
//! # Locks
//! One, a leaf. crates/vfs/tests/front_page_orders.rs runs this very file under loom.

// Behind names of their own, so that the test can put loom's in their place.
use super::block_set::BlockSet;
use super::front_sync::Mutex;
use std::ops::Range;

/// The unit that front ends cache in.
const PAGE: u64 = 4 << 10;
/// More notes are not kept of one file (about 3 MB): the next direct write drops all of its pages again. Random reads of a file
/// of 64 GiB come to this many.
const PIECES_MAX: usize = 16 << 10;

/// See the module's head.
pub struct FrontPages {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `None`: nothing is known, the front end may hold anything.
    notes: Option<Box<Notes>>,
    /// Reads under way, in the order in which they began.
    filling: Vec<(Fill, Range<u64>)>,
    begun: u64,
}

/// A read under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fill(u64);

#[derive(Default)]
struct Notes {
    /// Ranges that were read since they were last dropped.
    read: BlockSet<PAGE>,
    /// What is being dropped.
    dropping: Vec<Range<u64>>,
}

impl Default for FrontPages {
    fn default() -> Self {
        FrontPages {
            state: Mutex::new(State::default()),
        }
    }
}

/// The whole pages that a range touches.
fn pages(range: &Range<u64>) -> Range<u64> {
    let end = range.end.min(u64::MAX / PAGE * PAGE);
    range.start / PAGE * PAGE..end.next_multiple_of(PAGE)
}

impl FrontPages {
    /// The front end asks for bytes that it will cache.
    pub fn begin_fill(&self, range: &Range<u64>) -> Fill {
        let range = pages(range);
        let mut state = self.state.lock();
        let fill = Fill(state.begun);
        state.begun += 1;
        state.filling.push((fill, range.clone()));
        if let Some(known) = state.notes.as_mut() {
            known.read.insert(range);
            if known.read.pieces() > PIECES_MAX {
                state.notes = None;
            }
        }
        fill
    }

    /// The front end was given the bytes.
    pub fn end_fill(&self, fill: Fill) {
        self.state.lock().filling.retain(|(f, _)| *f != fill);
    }

    /// What reads that begin from now on begin with.
    pub fn next_fill(&self) -> Fill {
        Fill(self.state.lock().begun)
    }

    /// Whether a read of some of the range is under way that began before another would have been `fill`.
    pub fn is_filling_since_before(&self, fill: Fill, range: &Range<u64>) -> bool {
        let state = self.state.lock();
        let mut earlier = state.filling.iter().filter(|(f, _)| *f < fill);
        earlier.any(|(_, r)| r.start < range.end && range.start < r.end)
    }

    /// A direct write of this range has completed. The range that the front end must drop before the writer gets its answer, if
    /// it may hold any of it.
    #[must_use = "the writer must not be told before that was dropped"]
    pub fn begin_drop(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let range = pages(range);
        let mut state = self.state.lock();
        let Some(known) = state.notes.as_mut() else {
            let all = 0..u64::MAX;
            state.notes = Some(Box::new(Notes {
                read: BlockSet::default(),
                dropping: vec![all.clone()],
            }));
            return Some(all);
        };
        let mut dropping = known.dropping.iter();
        let held = dropping.any(|d| d.start < range.end && range.start < d.end);
        if !held && !known.read.intersects(range.clone()) {
            return None;
        }
        known.read.remove(range.clone());
        known.dropping.push(range.clone());
        Some(range)
    }

    /// The front end has dropped what [`FrontPages::begin_drop`] returned.
    pub fn end_drop(&self, range: &Range<u64>) {
        let mut state = self.state.lock();
        // Notes that were given up meanwhile have no such entry, and the next write drops everything.
        if let Some(known) = state.notes.as_mut()
            && let Some(at) = known.dropping.iter().position(|d| d == range)
        {
            known.dropping.swap_remove(at);
        }
    }
}
