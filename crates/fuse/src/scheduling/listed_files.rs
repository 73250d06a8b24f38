//! Which files are read before a program asks for them.
//!
//! A program that reads a tree (`tar`, `cp -r`, `grep -r`) lists a directory and then reads the files of that listing, one after
//! another. Each file is too small for readahead within the file, so each costs a wait for the device. This module remembers what was
//! listed, and names the files that follow the one that is being read. They are read together, while the program works on others.
//!
//! A program that only lists (`find`, `ls -R`) must not cause reads. So listings count only once their files are being read: each such
//! read adds to `trust`, and each file that was read ahead in vain takes more from it.
//!
//! # Invariants
//! * Bytes that were read ahead and not asked for are bounded, for one listing and for all.
//! * What is remembered is bounded: [`LISTED_FILES_MAX`] files. The oldest listing is forgotten first.
//!
//! Not responsible for reading: that is `dispatch::read_ahead`. A wrong guess costs time, never correctness.

use super::limits::{
    AHEAD_TRUST_MAX, AHEAD_TRUST_MIN, AHEAD_VAIN_COST, LISTED_FILES_MAX, LISTING_FILES_MAX,
};
use hashbrown::HashMap;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Listed,
    /// Named, and this many bytes are being read ahead.
    Ahead(u64),
    Read,
}

#[derive(Debug)]
struct Listing {
    number: u64,
    dir: u64,
    files: Vec<(u64, State)>,
    /// Bytes read ahead of its files that were not asked for yet.
    ahead_bytes: u64,
}

/// A place in a listing, from which on files are to be read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    listing: u64,
    at: usize,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct ListedFiles {
    /// By ascending number.
    listings: VecDeque<Listing>,
    next_number: u64,
    /// Where each file is: the listing's number, and the place in it.
    places: HashMap<u64, (u64, usize)>,
    trust: u32,
    ahead_bytes: u64,
    /// Files that were read ahead, and those of them that were asked for.
    files_ahead: u64,
    hits: u64,
    /// The most bytes that are ahead, of one listing and of all.
    window_bytes: u64,
    ahead_bytes_max: u64,
}

impl ListedFiles {
    pub(crate) fn new(window_bytes: u64, ahead_bytes_max: u64) -> Self {
        ListedFiles {
            listings: VecDeque::new(),
            next_number: 0,
            places: HashMap::new(),
            trust: 0,
            ahead_bytes: 0,
            files_ahead: 0,
            hits: 0,
            window_bytes,
            ahead_bytes_max,
        }
    }

    /// Whether listings are followed by reads lately.
    pub(crate) fn is_trusted(&self) -> bool {
        self.trust >= AHEAD_TRUST_MIN
    }

    /// How many files were read ahead, and how many of these were read afterwards.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.files_ahead, self.hits)
    }

    fn listing(&mut self, number: u64) -> Option<&mut Listing> {
        let at = (self.listings).binary_search_by_key(&number, |listing| listing.number);
        self.listings.get_mut(at.ok()?)
    }

    /// These files of a directory were listed; `begins`: they are its first. Returns from where on to read ahead, if that is worth it.
    pub(crate) fn listed(&mut self, dir: u64, begins: bool, files: &[u64]) -> Option<Point> {
        if files.is_empty() {
            return None;
        }
        let goes_on = |listing: &&Listing| {
            listing.dir == dir && !begins && listing.files.len() < LISTING_FILES_MAX
        };
        let number = match self.listings.back().filter(goes_on) {
            Some(listing) => listing.number,
            None => {
                self.next_number += 1;
                self.listings.push_back(Listing {
                    number: self.next_number,
                    dir,
                    files: Vec::new(),
                    ahead_bytes: 0,
                });
                self.next_number
            }
        };
        let listing = self.listings.back_mut()?;
        let at = listing.files.len();
        for &file in files {
            let place = (number, listing.files.len());
            listing.files.push((file, State::Listed));
            self.places.insert(file, place);
        }
        while self.places.len() > LISTED_FILES_MAX && self.listings.len() > 1 {
            self.forget_oldest();
        }
        self.is_trusted().then_some(Point {
            listing: number,
            at,
        })
    }

    fn forget_oldest(&mut self) {
        let Some(listing) = self.listings.pop_front() else {
            return;
        };
        let mut in_vain = 0;
        for (file, state) in listing.files {
            in_vain += u32::from(matches!(state, State::Ahead(_)));
            // It may have been listed again.
            if self
                .places
                .get(&file)
                .is_some_and(|p| p.0 == listing.number)
            {
                self.places.remove(&file);
            }
        }
        self.ahead_bytes -= listing.ahead_bytes;
        self.trust = (self.trust).saturating_sub(in_vain.saturating_mul(AHEAD_VAIN_COST));
    }

    /// A file is read from its beginning. Returns from where on to read ahead, if that is worth it.
    pub(crate) fn read(&mut self, file: u64) -> Option<Point> {
        let &(number, at) = self.places.get(&file)?;
        let listing = self.listing(number)?;
        let state = &mut listing.files.get_mut(at)?.1;
        let bytes = match std::mem::replace(state, State::Read) {
            State::Read => return None,
            State::Listed => 0,
            State::Ahead(bytes) => {
                self.hits += 1;
                bytes
            }
        };
        let listing = self.listing(number)?;
        listing.ahead_bytes -= bytes;
        let ahead = listing.ahead_bytes;
        self.ahead_bytes -= bytes;
        self.trust = (self.trust + 1).min(AHEAD_TRUST_MAX);
        let is_due = self.is_trusted() && ahead < self.window_bytes / 2;
        is_due.then_some(Point {
            listing: number,
            at: at + 1,
        })
    }

    /// Names up to `most` files that are to be read ahead, in the order of their listing. They count as named from now on.
    /// [`ListedFiles::began`] must follow for each.
    pub(crate) fn name(&mut self, point: Point, most: usize) -> Vec<u64> {
        let full = self.ahead_bytes >= self.ahead_bytes_max;
        let window = self.window_bytes;
        let Some(listing) = self.listing(point.listing) else {
            return Vec::new();
        };
        if full || listing.ahead_bytes >= window {
            return Vec::new();
        }
        let rest = listing.files.iter_mut().skip(point.at);
        let listed = rest.filter(|(_, state)| *state == State::Listed);
        listed
            .take(most)
            .map(|(file, state)| {
                *state = State::Ahead(0);
                *file
            })
            .collect()
    }

    /// This many bytes of a named file are being read; 0 where it was left out.
    pub(crate) fn began(&mut self, file: u64, bytes: u64) {
        let Some(&(number, at)) = self.places.get(&file) else {
            return;
        };
        let Some(listing) = self.listing(number) else {
            return;
        };
        // It may have been asked for meanwhile.
        if let Some((_, state)) = listing.files.get_mut(at)
            && *state == State::Ahead(0)
        {
            *state = match bytes {
                // Nothing of it is wasted if it is not asked for.
                0 => State::Read,
                _ => State::Ahead(bytes),
            };
            listing.ahead_bytes += bytes;
            self.ahead_bytes += bytes;
            self.files_ahead += u64::from(bytes > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    /// Carries out what is asked for, with files of one size. How many files that were.
    fn carry_out(files: &mut ListedFiles, point: Option<Point>, bytes: u64) -> usize {
        let Some(point) = point else { return 0 };
        let mut count = 0;
        loop {
            let named = files.name(point, 8);
            if named.is_empty() {
                return count;
            }
            count += named.len();
            named.iter().for_each(|file| files.began(*file, bytes));
        }
    }

    /// A walk over directories of `per_dir` files. How many files were read ahead, and how many of these were read.
    fn walk(files: &mut ListedFiles, dirs: u64, per_dir: u64, reads: bool) -> (usize, usize) {
        let (mut ahead, mut hits) = (0, 0);
        let first = files.next_number * 10_000 + 1;
        for dir in first..first + dirs {
            let all: Vec<u64> = (0..per_dir).map(|n| dir * 100_000 + n).collect();
            let point = files.listed(dir, true, &all);
            ahead += carry_out(files, point, 8 * KIB);
            for file in all.iter().filter(|_| reads) {
                let place = files.places.get(file).copied();
                let state = place.and_then(|(number, at)| Some(files.listing(number)?.files[at].1));
                hits += usize::from(matches!(state, Some(State::Ahead(_))));
                let point = files.read(*file);
                ahead += carry_out(files, point, 8 * KIB);
            }
        }
        (ahead, hits)
    }

    fn small() -> ListedFiles {
        ListedFiles::new(256 * KIB, 1024 * KIB)
    }

    #[test]
    fn a_walk_that_reads_finds_nearly_all_files_read_ahead() {
        for (dirs, per_dir) in [(2000, 7), (1, 20_000), (100, 1)] {
            let (ahead, hits) = walk(&mut small(), dirs, per_dir, true);
            let all = (dirs * per_dir) as usize;
            assert!(hits >= all - 8, "{dirs} × {per_dir}: {hits}");
            assert!(ahead <= all);
        }
    }

    #[test]
    fn a_walk_that_only_lists_causes_no_reads() {
        let mut files = small();
        assert_eq!(walk(&mut files, 1000, 30, false), (0, 0));
        // Not even many after one that did read.
        walk(&mut files, 1000, 30, true);
        let (ahead, _) = walk(&mut files, 100_000, 30, false);
        assert!(ahead as u64 * 8 * KIB <= 2 * 1024 * KIB, "{ahead}");
    }

    #[test]
    fn what_is_ahead_and_what_is_remembered_are_bounded() {
        let mut files = small();
        walk(&mut files, 10, 10, true);
        let all: Vec<u64> = (0..3 * LISTED_FILES_MAX as u64).collect();
        let point = files.listed(1, true, &all);
        let ahead = carry_out(&mut files, point, 8 * KIB);
        assert!(ahead as u64 * 8 * KIB <= (256 + 8 * 8) * KIB, "{ahead}");
        files.listed(2, true, &[u64::MAX]);
        assert_eq!((files.listings.len(), files.places.len()), (1, 1));
        assert_eq!(files.ahead_bytes, 0);
    }

    #[test]
    fn files_in_another_order_are_read_ahead_once() {
        let mut files = small();
        walk(&mut files, 10, 10, true);
        let all: Vec<u64> = (0..1000).collect();
        let point = files.listed(1, true, &all);
        let mut ahead = carry_out(&mut files, point, 8 * KIB);
        for step in 0..1000 {
            let point = files.read(step * 7 % 1000);
            ahead += carry_out(&mut files, point, 8 * KIB);
        }
        assert!(ahead <= 1000);
        assert_eq!(files.ahead_bytes, 0, "all were read");
    }

    #[test]
    fn a_directory_that_is_listed_again_begins_anew() {
        let mut files = small();
        walk(&mut files, 10, 10, true);
        let point = files.listed(1, true, &[5, 6]);
        assert_eq!(carry_out(&mut files, point, KIB), 2);
        let point = files.listed(1, true, &[6, 7]);
        assert_eq!(carry_out(&mut files, point, KIB), 2);
        let point = files.listed(1, false, &[8]);
        assert_eq!(carry_out(&mut files, point, KIB), 1);
        assert_eq!(files.read(8).map(|point| point.at), Some(3));
        // Files that were removed or never listed mean nothing.
        assert_eq!(files.read(4), None);
        files.began(4, KIB);
    }
}
