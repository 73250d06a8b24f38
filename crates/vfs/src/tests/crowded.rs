//! Others need room while a writer changes a part of a block: between reading the block and changing it, all that may leave the
//! cache does. What fsync promised of the change is on the disk, and shown by no later change.

use super::{Fixture, quiet};
use crate::engine::{FallocMode, SyncScope};
use crate::handle::Handle;
use crate::testing::MemOptions;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A file of this many sevens, not cached, in a crowded cache: the bytes that a crash shows when these changes were made
/// durable one after the other.
fn changed(bytes: usize, changes: &[fn(&std::sync::Arc<Handle>)]) -> Vec<u8> {
    let options = MemOptions {
        inline_bytes_max: 500,
        ..MemOptions::default()
    };
    let f = Fixture::new(8 << 20, options, quiet());
    let inode = f.file("f");
    let h = f.open(&inode);
    h.write_at(&vec![7; bytes], 0).unwrap();
    h.sync(SyncScope::All).unwrap();
    f.vfs.drop_caches();
    let vfs = Arc::downgrade(&f.vfs);
    let crowd = move || {
        if let Some(vfs) = vfs.upgrade() {
            vfs.drop_caches();
        }
    };
    assert!(f.engine.on_reserve.set(Box::new(crowd)).is_ok());
    for change in changes {
        change(&h);
        h.sync(SyncScope::All).unwrap();
    }
    f.engine.contents_on_disk(inode.ino()).unwrap()
}

#[test]
fn what_was_cut_off_stays_away() {
    let found = changed(
        5000,
        &[|h| h.set_len(4500).unwrap(), |h| h.set_len(8000).unwrap()],
    );
    assert_eq!(found, [vec![7; 4500], vec![0; 3500]].concat());
}

#[test]
fn a_hole_in_a_block_is_one() {
    let found = changed(
        5000,
        &[|h| h.fallocate(4200..4300, FallocMode::PunchHole).unwrap()],
    );
    assert_eq!(found, [vec![7; 4200], vec![0; 100], vec![7; 700]].concat());
}

#[test]
fn a_file_that_leaves_its_inode_keeps_what_it_held() {
    let found = changed(
        100,
        &[|h| assert_eq!(h.write_at(&[9; 10], 6000).unwrap(), 10)],
    );
    assert_eq!(found, [vec![7; 100], vec![0; 5900], vec![9; 10]].concat());
}

/// Writeback asks where data belongs, and a writer makes the file leave its inode before the data is there. The fsync that
/// waits for it writes it anyway, and reports no error.
#[test]
fn a_file_may_leave_its_inode_during_writeback() {
    let options = MemOptions {
        inline_bytes_max: 500,
        ..MemOptions::default()
    };
    let f = Fixture::new(8 << 20, options, quiet());
    let inode = f.file("f");
    let h = f.open(&inode);
    h.write_at(&[7; 300], 0).unwrap();
    f.engine.outgrow_inline.store(true, Ordering::Relaxed);
    h.sync(SyncScope::All).unwrap();
    assert!(
        !f.engine.outgrow_inline.load(Ordering::Relaxed),
        "it was asked"
    );
    assert_eq!(f.engine.contents_on_disk(inode.ino()).unwrap(), [7; 300]);
}
