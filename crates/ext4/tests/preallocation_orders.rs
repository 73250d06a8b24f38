//! One preallocation in every order that its users and those who delete it can meet in, by loom: the very source
//! file, with loom's atomics in the place of std's.

/// What the file needs of the allocator.
mod alloc {
    use blockwright_ondisk::ext4::BlockNo;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Run {
        pub start: BlockNo,
        pub len: u32,
    }
}

#[path = "../src/alloc/preallocation"]
mod preallocation {
    pub mod atomics {
        pub use loom::sync::atomic::{AtomicU64, Ordering};
    }

    #[allow(dead_code)] // the tests use a part of it
    pub mod pa;
}

use alloc::Run;
use blockwright_ondisk::ext4::BlockNo;
use loom::sync::Arc;
use preallocation::pa::{OfInode, OfLocality, Pa, Taken};

/// Marks blocks of 100.. as taken; panics when one was.
fn mark(seen: &mut [bool], run: Option<Run>) {
    for b in run
        .into_iter()
        .flat_map(|r| r.start.0..r.start.0 + u64::from(r.len))
    {
        let slot = &mut seen[(b - 100) as usize];
        assert!(!*slot, "block {b} went to two");
        *slot = true;
    }
}

fn five() -> Run {
    Run {
        start: BlockNo(100),
        len: 5,
    }
}

#[test]
fn a_shared_area_gives_each_block_once() {
    loom::model(|| {
        let pa = Arc::new(Pa::new(OfLocality, five()));
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let pa = Arc::clone(&pa);
                loom::thread::spawn(move || pa.take_front(2))
            })
            .collect();
        let deleted = pa.delete();
        let mut seen = [false; 5];
        mark(&mut seen, deleted);
        for t in takers {
            mark(&mut seen, t.join().unwrap());
        }
        assert!(pa.is_deleted());
        assert_eq!(pa.take_front(1), None);
        assert_eq!(seen, [true; 5], "a block was lost");
    });
}

#[test]
fn both_ends_and_a_discarder() {
    loom::model(|| {
        let pa = Arc::new(Pa::new(OfInode { logical: 7 }, five()));
        let take = |at, max| {
            let pa = Arc::clone(&pa);
            loom::thread::spawn(move || match pa.take_at(at, max) {
                Taken::Run(run) => {
                    // What is asked for or the end of what is left, from just that place.
                    assert_eq!(run.start, BlockNo(100 + u64::from(at)));
                    Some(run)
                }
                Taken::Missed => None,
                Taken::Middle => panic!("both places are ends"),
            })
        };
        let front = take(0, 2);
        let back = take(3, 2);
        let deleted = pa.delete();
        let mut seen = [false; 5];
        mark(&mut seen, deleted);
        mark(&mut seen, front.join().unwrap());
        mark(&mut seen, back.join().unwrap());
        assert!(pa.is_deleted());
        assert_eq!(seen, [true; 5], "a block was lost");
    });
}
