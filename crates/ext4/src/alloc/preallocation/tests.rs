//! Every rule of preallocation, and both collections against a naive model.

use super::comparison::{ENTRIES_MAX, List, SLACK};
use super::pa::{OfInode, OfLocality, Pa, Taken};
use super::tree::Tree;
use super::window::{appends, place, window};
use super::*;
use crate::comparison::Preallocation;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn run(start: u64, len: u32) -> Run {
    Run {
        start: BlockNo(start),
        len,
    }
}

fn keep(pa: &mut InodeAlloc, registry: &PaRegistry, at: u64, start: u64, len: u32) {
    let back = pa.keep(registry, FileBlock(at), run(start, len));
    assert!(back.is_empty());
}

#[test]
fn a_preallocation_is_used_from_both_ends_and_deleted_once() {
    let pa = Pa::new(OfInode { logical: 100 }, run(1000, 50));
    assert_eq!(pa.take_at(50, 1), Taken::Missed);
    assert_eq!(pa.take_at(0, 10), Taken::Run(run(1000, 10)));
    assert_eq!(pa.take_at(5, 10), Taken::Missed);
    assert_eq!(pa.take_at(40, u32::MAX), Taken::Run(run(1040, 10)));
    assert_eq!(pa.take_at(20, 5), Taken::Middle);
    assert_eq!(pa.logical_left(), 110..140);
    assert_eq!(pa.physical_end(), BlockNo(1040));
    assert_eq!(pa.delete(), Some(run(1010, 30)));
    assert!(pa.is_deleted());
    assert_eq!(pa.delete(), None);
    assert_eq!(pa.take_at(10, 1), Taken::Missed);
    let area = Pa::new(OfLocality, run(7, 3));
    assert_eq!(area.take_front(2), Some(run(7, 2)));
    assert_eq!(area.take_front(2), Some(run(9, 1)));
    assert_eq!(area.take_front(2), None);
}

#[test]
fn using_the_middle_leaves_both_sides() {
    for mode in [Preallocation::Tree, Preallocation::List] {
        let registry = PaRegistry::default();
        registry.mode.set(mode);
        let mut pa = InodeAlloc::default();
        keep(&mut pa, &registry, 100, 1000, 50);
        let get =
            |at, max, limit| pa.use_at(&registry, FileBlock(at), max, Option::map(limit, BlockNo));
        assert_eq!(get(99, 5, None), None);
        assert_eq!(get(150, 5, None), None);
        // The end of the preallocation decides, not that of the request.
        assert_eq!(get(110, 5, Some(1049)), None, "ends above the limit");
        assert_eq!(get(110, 5, Some(1050)), Some(run(1010, 5)));
        assert_eq!(get(110, 5, None), None, "used");
        assert_eq!(get(115, 99, None), Some(run(1015, 35)));
        assert_eq!(registry.blocks(), 10);
        assert_eq!(registry.discard(), [run(1000, 10)]);
        assert!(pa.discard(&registry).is_empty());
        assert_eq!(registry.blocks(), 0);
    }
}

/// One whose end the file cannot point to ends the search, even where another might serve.
#[test]
fn what_lies_too_high_ends_the_search() {
    let registry = PaRegistry::default();
    let mut pa = InodeAlloc::default();
    let high = u64::from(u32::MAX) - 10;
    keep(&mut pa, &registry, 0, high, 20);
    keep(&mut pa, &registry, 20, 500, 20);
    let limit = Some(BlockNo(1 << 32));
    assert_eq!(pa.use_at(&registry, FileBlock(0), 1, limit), None);
    assert_eq!(
        pa.use_at(&registry, FileBlock(20), 1, limit),
        Some(run(500, 1))
    );
    assert_eq!(
        pa.use_at(&registry, FileBlock(0), 1, None),
        Some(run(high, 1))
    );
}

#[test]
#[should_panic(expected = "overlap")]
#[cfg(debug_assertions)]
fn overlap_is_caught() {
    let registry = PaRegistry::default();
    let mut pa = InodeAlloc::default();
    keep(&mut pa, &registry, 10, 0, 10);
    keep(&mut pa, &registry, 5, 100, 6);
}

#[test]
#[should_panic(expected = "overlap")]
#[cfg(debug_assertions)]
fn overlap_behind_a_deleted_one_is_caught() {
    let tree = Tree::default();
    assert_eq!(tree.insert(0, run(0, 100)), None);
    assert_eq!(tree.use_at(0, 50, None), Some(run(0, 50)));
    assert_eq!(tree.insert(20, run(500, 10)), None);
    assert_eq!(tree.delete_only(20), Some(run(500, 10)));
    // 50..100 is left of the first; the deleted one in between must not hide it.
    tree.insert(40, run(900, 11));
}

/// Deleted preallocations that are still in the tree are stepped over by searches and by clipping, also
/// when one overlaps the newcomer.
#[test]
fn the_deleted_are_stepped_over() {
    let tree = Tree::default();
    assert_eq!(tree.insert(100, run(1000, 50)), None);
    assert_eq!(tree.insert(200, run(2000, 50)), None);
    assert_eq!(tree.insert(300, run(3000, 50)), None);
    assert_eq!(tree.delete_only(200), Some(run(2000, 50)));
    assert_eq!(tree.len(), 3);
    assert_eq!(tree.clip(220, 0..1000), 150..300);
    assert_eq!(tree.use_at(220, 1, None), None);
    // The newcomer begins before the deleted one and ends inside of it.
    assert_eq!(tree.insert(160, run(5000, 60)), None);
    assert_eq!(tree.use_at(210, 1, None), Some(run(5050, 1)));
    assert_eq!(tree.use_at(199, 1, None), Some(run(5039, 1)));
    assert_eq!(tree.clip(235, 0..1000), 220..300);
    let mut left = tree.discard();
    left.sort_unstable_by_key(|r| r.start.0);
    assert_eq!(
        left,
        [
            run(1000, 50),
            run(3000, 50),
            run(5000, 39),
            run(5040, 10),
            run(5051, 9)
        ]
    );
    assert_eq!(tree.len(), 0);
}

/// A hole may come back before the key of a preallocation used up to behind it (a write that failed).
#[test]
fn a_newcomer_may_lie_where_an_older_one_was_used() {
    let tree = Tree::default();
    assert_eq!(tree.insert(100, run(1000, 50)), None);
    assert_eq!(tree.use_at(100, 20, None), Some(run(1000, 20)));
    assert_eq!(tree.clip(100, 64..192), 64..120);
    assert_eq!(tree.insert(100, run(7000, 20)), None);
    assert_eq!(tree.use_at(110, 1, None), Some(run(7010, 1)));
    assert_eq!(tree.use_at(120, 1, None), Some(run(1020, 1)));
    assert_eq!(tree.clip(110, 0..500), 110..111);
    // Found by the model below: the older one begins before the newcomer, and what is left of it lies behind.
    let tree = Tree::default();
    assert_eq!(tree.insert(16, run(1000, 29)), None);
    assert_eq!(tree.use_at(16, 26, None), Some(run(1000, 26)));
    assert_eq!(tree.insert(17, run(7000, 21)), None);
    assert_eq!(tree.clip(45, 25..46), 45..46);
    assert_eq!(tree.use_at(44, 1, None), Some(run(1028, 1)));
}

#[test]
fn the_list_is_capped_and_trimmed_the_tree_is_not() {
    let n = (ENTRIES_MAX + SLACK) as u64 + 1;
    let list = List::default();
    let mut back = Vec::new();
    for i in 0..n {
        back.extend(list.insert(i * 10, run(i * 100, 5)));
    }
    // The oldest went.
    assert_eq!(back.len() + list.len(), n as usize);
    assert!(back.iter().any(|r| *r == run(0, 5)));
    assert_eq!(list.len(), ENTRIES_MAX);
    assert_eq!(list.use_at(0, 1, None), None);
    let tree = Tree::default();
    for i in 0..100_000 {
        assert_eq!(tree.insert(i * 10, run(i * 100, 5)), None);
    }
    assert_eq!(tree.use_at(4, 9, None), Some(run(4, 1)));
    assert_eq!(tree.discard().len(), 100_000);
}

#[test]
fn windows_grow_with_the_file_and_stay_in_their_hole() {
    let all = 0..u64::MAX;
    let of = |at, len, blocks, hole: Range<u64>| {
        let appends = at + u64::from(len) >= blocks;
        window(FileBlock(at), len, blocks, appends, hole, u64::MAX, 12)
    };
    assert_eq!(of(3, 1, 4, all.clone()), 0..16);
    assert_eq!(of(100, 10, 110, all.clone()), 0..128);
    assert_eq!(of(100, 10, 110, 90..105), 90..110);
    let big = 1 << 20;
    assert_eq!(of(big, 1, 2 * big, all.clone()), big..big + 2048);
    assert_eq!(of(big, 1, big, all), big..big + 32768);
}

/// Writeback is behind the size in memory: an append is told by what is allocated.
#[test]
fn appending_is_told_by_what_is_allocated() {
    let of = |at, len, blocks, hole: Range<u64>, before: Option<u64>| {
        appends(FileBlock(at), len, blocks, &hole, before.map(FileBlock))
    };
    let endless = 1 << 40;
    assert!(of(0, 16, 5000, 0..endless, None));
    assert!(of(100, 16, 5000, 100..endless, Some(100)));
    assert!(of(4990, 10, 5000, 900..endless, Some(900)));
    // A jump; and a hole in the middle.
    assert!(!of(100, 16, 5000, 90..endless, Some(90)));
    assert!(!of(100, 16, 5000, 100..200, Some(100)));
    assert!(!of(16, 16, 5000, 0..endless, None));
}

/// On a volume that fills up a window takes no more than there is to spare, but always the request.
#[test]
fn windows_shrink_with_the_space_to_spare() {
    let of = |at, len, spare| window(FileBlock(at), len, 1 << 20, false, 0..u64::MAX, spare, 12);
    assert_eq!(of(5000, 8, 100), 5000..5100);
    assert_eq!(of(5000, 8, 3), 5000..5008);
    assert_eq!(of(5000, 8, 0), 5000..5008);
    assert_eq!(of(5000, 8, 2048), 4096..6144);
}

#[test]
fn windows_end_where_files_do() {
    let end = 1u64 << 32;
    for at in [end - 1, end - 2, end - 300, end - 32769] {
        for spare in [u64::MAX, 100, 0] {
            let w = window(FileBlock(at), 1, end - 1, true, 0..u64::MAX, spare, 12);
            assert!(w.start <= at && at < w.end && w.end <= end, "{at}: {w:?}");
        }
    }
    // Beyond what a file can have, nothing overflows.
    let w = window(
        FileBlock(u64::MAX - 1),
        5,
        u64::MAX,
        true,
        0..u64::MAX,
        9,
        12,
    );
    assert!(w.contains(&(u64::MAX - 1)));
}

#[test]
fn placing_covers_the_request() {
    let w = 64..128;
    // All of the window.
    assert_eq!(place(FileBlock(100), 8, 64, &w), FileBlock(64));
    // At its end, when the request fits there.
    assert_eq!(place(FileBlock(100), 8, 30, &w), FileBlock(98));
    assert_eq!(place(FileBlock(120), 8, 9, &w), FileBlock(119));
    // At its start.
    assert_eq!(place(FileBlock(70), 8, 30, &w), FileBlock(64));
    // At neither.
    assert_eq!(place(FileBlock(90), 8, 9, &w), FileBlock(90));
    // Near the end of the logical space, in 64 bits.
    let end = 1u64 << 32;
    let w = end - 64..end;
    assert_eq!(place(FileBlock(end - 3), 2, 3, &w), FileBlock(end - 3));
    assert_eq!(place(FileBlock(end - 1), 1, 40, &w), FileBlock(end - 40));
    assert_eq!(place(FileBlock(end - 64), 2, 40, &w), FileBlock(end - 64));
}

#[test]
fn a_clipped_window_avoids_neighbours() {
    for mode in [Preallocation::Tree, Preallocation::List] {
        let registry = PaRegistry::default();
        registry.mode.set(mode);
        let mut pa = InodeAlloc::default();
        assert_eq!(pa.clip(FileBlock(20), 0..64), 0..64);
        keep(&mut pa, &registry, 0, 0, 10);
        keep(&mut pa, &registry, 50, 100, 10);
        assert_eq!(pa.clip(FileBlock(20), 0..64), 10..50);
        assert_eq!(pa.clip(FileBlock(60), 0..64), 60..64);
    }
}

#[test]
fn localities_hand_out_consecutive_blocks() {
    let l = Localities::new();
    // This thread may change its CPU at any time: each area is told from the others.
    let next = std::cell::Cell::new(0u64);
    let refill = || {
        next.set(next.get() + 1000);
        Ok::<_, ()>(Some(run(next.get(), 8)))
    };
    let mut got: BTreeMap<u64, Vec<Run>> = BTreeMap::new();
    for _ in 0..100 {
        let run = l.take(3, None, refill).unwrap().unwrap();
        got.entry(run.start.0 / 1000).or_default().push(run);
    }
    for (area, runs) in &got {
        let start = area * 1000;
        let whole = [run(start, 3), run(start + 3, 3), run(start + 6, 2)];
        assert!(whole.starts_with(runs), "{runs:?}");
    }
    let used: u32 = got.values().flatten().map(|r| r.len).sum();
    let left: u32 = l.discard().iter().map(|r| r.len).sum();
    assert_eq!(u64::from(used + left), next.get() / 1000 * 8);
    assert!(l.discard().is_empty());
    // Too high for this file, which takes its blocks elsewhere.
    let high = || Ok::<_, ()>(Some(run(500, 8)));
    assert_eq!(l.take(3, Some(BlockNo(507)), high), Ok(None));
    assert_eq!(l.take(3, None, || Err(())).is_err(), l.discard().is_empty());
}

/// What the naive model does on every step: a map from each file block kept to its device block.
#[derive(Clone, Debug)]
enum Step {
    Use { at: u64, max: u32 },
    Keep { at: u64, len: u32 },
    Delete { nth: usize },
    Discard,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..300u64, 1..40u32).prop_map(|(at, max)| Step::Use { at, max }),
        6 => (0..300u64, 1..40u32).prop_map(|(at, len)| Step::Keep { at, len }),
        1 => (0..8usize).prop_map(|nth| Step::Delete { nth }),
        1 => Just(Step::Discard),
    ]
}

/// The longest stretch from `at` on that lies in one preallocation's successive blocks.
fn model_use(model: &mut BTreeMap<u64, (u64, u64)>, at: u64, max: u32) -> Option<Run> {
    let (block, owner) = *model.get(&at)?;
    let mut len = 0;
    while len < max && model.get(&(at + u64::from(len))) == Some(&(block + u64::from(len), owner)) {
        model.remove(&(at + u64::from(len)));
        len += 1;
    }
    Some(run(block, len))
}

fn sorted(mut runs: Vec<Run>) -> Vec<u64> {
    runs.sort_unstable_by_key(|r| r.start.0);
    runs.iter().flat_map(|r| r.start.0..r.end().0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// The tree, the list and a naive map agree on every use, every clipping and on what is left.
    #[test]
    fn collections_agree_with_a_naive_model(steps in prop::collection::vec(step(), 1..120)) {
        let (tree, list) = (Tree::default(), List::default());
        let mut model: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut next = 10_000u64;
        let mut keys: Vec<u64> = Vec::new();
        for s in steps {
            match s {
                Step::Use { at, max } => {
                    // Where a preallocation was cut, the collections may give less at once; in sum the same.
                    let mut at = at;
                    let mut left = max;
                    let want = model_use(&mut model, at, max);
                    let Some(want) = want else {
                        prop_assert_eq!(tree.use_at(at, max, None), None);
                        prop_assert_eq!(list.use_at(at, max, None), None);
                        continue;
                    };
                    let mut expected = want.start.0;
                    while left > max - want.len {
                        let got = tree.use_at(at, left.min(want.len - (max - left)), None);
                        let also = list.use_at(at, got.map_or(1, |g| g.len), None);
                        prop_assert_eq!(got, also);
                        let got = got.unwrap();
                        prop_assert_eq!(got.start.0, expected);
                        expected += u64::from(got.len);
                        at += u64::from(got.len);
                        left -= got.len;
                    }
                }
                Step::Keep { at, len } => {
                    if model.contains_key(&at) {
                        continue;
                    }
                    let window = tree.clip(at, at.saturating_sub(20)..at + u64::from(len));
                    prop_assert_eq!(&window, &list.clip(at, at.saturating_sub(20)..at + u64::from(len)));
                    // Nothing is kept inside, and it could not be larger.
                    prop_assert!(window.contains(&at));
                    prop_assert!(window.clone().all(|b| !model.contains_key(&b)));
                    prop_assert!(window.start == at.saturating_sub(20) || model.contains_key(&(window.start - 1)));
                    prop_assert!(window.end == at + u64::from(len) || model.contains_key(&window.end));
                    let run = run(next, (window.end - window.start) as u32);
                    for (i, b) in window.clone().enumerate() {
                        model.insert(b, (next + i as u64, next));
                    }
                    prop_assert_eq!(tree.insert(window.start, run), None);
                    prop_assert!(list.insert(window.start, run).is_empty());
                    keys.push(window.start);
                    next += 1000;
                }
                Step::Delete { nth } => {
                    // The tree only: its deleted entries stay. The list and the model follow.
                    let Some(key) = keys.get(nth) else { continue };
                    let Some(gone) = tree.delete_only(*key) else { continue };
                    for b in gone.start.0..gone.end().0 {
                        let at = *model.iter().find(|(_, (p, _))| *p == b).unwrap().0;
                        model.remove(&at);
                        prop_assert_eq!(list.use_at(at, 1, None), Some(Run { start: BlockNo(b), len: 1 }));
                    }
                }
                Step::Discard => {
                    let left: Vec<u64> = {
                        let mut all: Vec<u64> = model.values().map(|(p, _)| *p).collect();
                        all.sort_unstable();
                        all
                    };
                    prop_assert_eq!(&sorted(tree.discard()), &left);
                    prop_assert_eq!(&sorted(list.discard()), &left);
                    prop_assert_eq!(tree.len(), 0);
                    model.clear();
                    keys.clear();
                }
            }
        }
    }
}

/// Users, a keeper and a discarder at the same tree: every block goes to exactly one of them.
#[test]
fn every_block_has_one_taker_under_contention() {
    use std::sync::atomic::{AtomicBool, AtomicU32};
    const BLOCKS: u64 = 4000;
    let tree = Tree::default();
    let taken: Vec<AtomicU32> = (0..BLOCKS).map(|_| AtomicU32::new(0)).collect();
    let kept = AtomicU32::new(0);
    let done = AtomicBool::new(false);
    let note = |run: Run| {
        for b in run.start.0..run.end().0 {
            taken[b as usize].fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|s| {
        for seed in 0..3u64 {
            let (tree, done, note) = (&tree, &done, &note);
            s.spawn(move || {
                let mut x = seed + 1;
                while !done.load(Ordering::Acquire) {
                    x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if let Some(run) = tree.use_at((x >> 33) % BLOCKS, 1 + (x >> 60) as u32, None) {
                        note(run);
                    }
                }
            });
        }
        let (discarded, over) = (&tree, &done);
        let note_discarded = &note;
        s.spawn(move || {
            while !over.load(Ordering::Acquire) {
                discarded.discard().into_iter().for_each(note_discarded);
                std::thread::yield_now();
            }
        });
        for at in (0..BLOCKS).step_by(40) {
            assert_eq!(tree.insert(at, run(at, 40)), None);
            kept.fetch_add(40, Ordering::Relaxed);
            if at % 400 == 0 {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Release);
    });
    tree.discard().into_iter().for_each(note);
    assert_eq!(u64::from(kept.into_inner()), BLOCKS);
    assert!(taken.iter().all(|t| t.load(Ordering::Relaxed) == 1));
}
