//! Cases of [`Space`](crate::engine::Space).

use super::Access;
use super::fixture::{Fixture, kind, pattern};
use crate::engine::Place;
use crate::error::ErrorKind;
use crate::inode::Inode;
use crate::quota::{Kind, Limits, Quota};
use crate::types::{AttrChange, FileKind};
use std::sync::Arc;

/// The user of the quota cases.
const USER: u32 = 4711;

/// Reserved blocks are not free; they are free again when they are given back.
pub fn reservations_count_as_used(v: &mut Fixture) {
    let (block, file) = (v.block(), v.file("file"));
    let free = v.blocks_free();
    v.reserve(&file, 0..100 * block).expect("reserved");
    assert!(v.blocks_free() + 100 <= free, "{}", v.blocks_free());
    v.engine().unreserve(&file, 0..100 * block);
    v.engine().release_write(&file);
    assert_eq!(v.blocks_free(), free);
}

/// Blocks that are reserved or held already are not reserved again.
pub fn reserving_twice_takes_once(v: &mut Fixture) {
    let (block, file) = (v.block(), v.file("file"));
    v.write(&file, 2 * block, &pattern(1, 2 * block))
        .expect("written");
    v.reserve(&file, 0..8 * block).expect("reserved");
    let (free, taken) = (v.blocks_free(), file.attr().blocks512);
    for range in [0..8 * block, 3 * block..5 * block, 2 * block..4 * block] {
        v.reserve(&file, range).expect("reserved again");
        assert_eq!((v.blocks_free(), file.attr().blocks512), (free, taken));
    }
    v.engine().unreserve(&file, 0..8 * block);
}

/// `reserve_hole` never calls a range new that holds data or a reservation.
pub fn only_fresh_holes_are_new(v: &mut Fixture) {
    let (block, file) = (v.block(), v.file("file"));
    v.write(&file, 4 * block, &pattern(1, block))
        .expect("written");
    for range in [
        4 * block..5 * block,
        3 * block..6 * block,
        0..4 * block + block,
    ] {
        let new = v.reserve(&file, range.clone()).expect("reserved");
        assert!(!new, "{range:?} holds data");
    }
    v.reserve(&file, 10 * block..12 * block).expect("reserved");
    let new = v.reserve(&file, 11 * block..13 * block).expect("reserved");
    assert!(!new, "a part was reserved before");
    v.engine().unreserve(&file, 0..20 * block);
}

/// `reserve` says `NoSpace` when the volume is full, and takes nothing then. What was reserved before can be written.
pub fn a_full_volume_keeps_its_promises(v: &mut Fixture) {
    let (block, file) = (v.block(), v.file("file"));
    v.engine().sync_volume().expect("synced");
    let empty = v.blocks_free();
    let mut blocks = 0;
    let mut piece = 256;
    while piece > 0 {
        let range = blocks * block..(blocks + piece) * block;
        let before = v.blocks_free();
        match v.reserve(&file, range.clone()) {
            Ok(_) => blocks += piece,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NoSpace);
                // But for a node or two.
                let taken = before - v.blocks_free();
                assert!(taken <= 4, "a refusal took {taken} blocks");
                assert_eq!(v.place(&file, range.start), Place::Hole);
                piece /= 2;
            }
        }
    }
    assert!(blocks >= empty / 2, "{blocks} of {empty} blocks");
    let data = pattern(1, blocks * block);
    file.update_attr(|a| a.size = blocks * block);
    for at in (0..blocks).step_by(64) {
        let end = blocks.min(at + 64);
        let part = &data[(at * block) as usize..(end * block) as usize];
        v.write_reserved(&file, at * block, part);
    }
    assert!(v.read(&file) == data, "all that was promised");
    let root = v.root();
    v.remove(&root, b"file").expect("names can be removed");
    v.evict(file);
    v.engine().sync_volume().expect("synced");
    assert!(v.blocks_free() >= empty - empty / 100, "room is back");
}

/// What deleted files had can be used again, again and again.
pub fn deleting_gives_room_back(v: &mut Fixture) {
    let block = v.block();
    let root = v.root();
    let room = v.blocks_free() / 3;
    for round in 0..6 {
        let file = v.file("file");
        for at in (0..room).step_by(64) {
            let data = pattern(round, 64 * block);
            v.write(&file, at * block, &data).expect("written");
        }
        v.remove(&root, b"file").expect("removed");
        v.evict(file);
        v.engine().sync_volume().expect("synced");
    }
}

/// Reserved blocks take data, whether they are placed by `reserve` or at writeback.
pub fn early_and_late_allocation_take_data(v: &mut Fixture) {
    if !v.format().reserve_allocates {
        return;
    }
    let (block, data) = (v.block(), pattern(1, 4 * v.block()));
    for (name, delayed) in [("early", false), ("late", true)] {
        v.engine().set_delayed_allocation(delayed);
        let file = v.file(name);
        v.reserve(&file, 0..4 * block).expect("reserved");
        file.update_attr(|a| a.size = 4 * block);
        v.write_reserved(&file, 0, &data);
        assert_eq!(v.read(&file), data);
    }
}

/// `trim` discards what no file has, and refuses ranges that hold no block.
pub fn trimming_keeps_data(v: &mut Fixture) {
    let block = v.block();
    let bytes = v.device_bytes();
    let (kept, gone) = (v.file("kept"), v.file("gone"));
    let data = pattern(1, 50 * block);
    v.write(&kept, 0, &data).expect("written");
    v.write(&gone, 0, &data).expect("written");
    let root = v.root();
    v.remove(&root, b"gone").expect("removed");
    v.evict(gone);
    let trimmed = v.engine().trim(0..u64::MAX, 0).expect("trimmed");
    assert!(trimmed <= bytes, "{trimmed} of {bytes}");
    assert_eq!(v.read(&kept), data);
    for range in [bytes..bytes + 100 * block, 0..block - 1] {
        let refused = v.engine().trim(range.clone(), 0);
        assert_eq!(kind(refused), Some(ErrorKind::Invalid), "{range:?}");
    }
}

fn quota(v: &Fixture, kind: Kind, id: u32) -> Option<Quota> {
    let all = v.engine().quotas(kind).expect("asked").expect("counted");
    all.into_iter().find(|q| q.id == id)
}

/// A volume that does not count says so, and refuses limits.
pub fn volumes_without_quota_refuse_limits(v: &mut Fixture) {
    let file = v.file("file");
    for by in [Kind::User, Kind::Group, Kind::Project] {
        assert_eq!(v.engine().quotas(by).expect("asked"), None, "{by:?}");
        let refused = v.engine().set_quota_limits(by, USER, &Limits::default());
        assert_eq!(kind(refused), Some(ErrorKind::Unsupported), "{by:?}");
    }
    v.engine().check_quota(&file, 1 << 50).expect("no limit");
}

/// A file of the user's.
fn users_file(v: &mut Fixture, name: &str) -> Arc<Inode> {
    let (root, mut new) = (v.root(), v.new_inode(FileKind::Regular));
    (new.uid, new.gid) = (USER, USER);
    v.create_as(&root, name.as_bytes(), &new).expect("created")
}

/// Blocks are counted by owner. Beyond a limit, `reserve`, `check_quota` and a change of owner say `QuotaExceeded`, and take nothing.
pub fn quota_counts_and_limits_blocks(v: &mut Fixture) {
    let block = v.block();
    let file = users_file(v, "file");
    v.write(&file, 0, &pattern(1, 10 * block)).expect("written");
    let used = quota(v, Kind::User, USER).expect("counted");
    assert!(used.bytes >= 10 * block, "{used:?}");
    assert_eq!(used.inodes, 1);
    let limits = Limits {
        space_hard: used.bytes + 20 * block,
        ..Limits::default()
    };
    v.engine()
        .set_quota_limits(Kind::User, USER, &limits)
        .expect("set");
    let refused = v.engine().check_quota(&file, 40 * block);
    assert_eq!(kind(refused), Some(ErrorKind::QuotaExceeded));
    let before = (v.blocks_free(), file.attr().blocks512);
    let refused = v.reserve(&file, 10 * block..60 * block);
    assert_eq!(kind(refused), Some(ErrorKind::QuotaExceeded));
    assert_eq!((v.blocks_free(), file.attr().blocks512), before);
    v.write(&file, 10 * block, &pattern(2, 5 * block))
        .expect("within the limit");
    let other = v.file("another's");
    v.write(&other, 0, &pattern(3, 50 * block))
        .expect("written");
    let give = AttrChange {
        uid: Some(USER),
        ..AttrChange::default()
    };
    assert_eq!(
        kind(v.set_attr(&other, &give)),
        Some(ErrorKind::QuotaExceeded)
    );
    assert_eq!(other.attr().uid, 0);
    v.remount(Access::ReadWrite);
    let after = quota(v, Kind::User, USER).expect("counted");
    assert_eq!(after.limits, limits, "limits persist");
    assert!(after.bytes >= 15 * block, "{after:?}");
    assert_eq!(quota(v, Kind::Group, USER).map(|q| q.inodes), Some(1));
}

/// Beyond a limit of inodes, `create` says `QuotaExceeded`, and makes nothing.
pub fn quota_limits_inodes(v: &mut Fixture) {
    let root = v.root();
    users_file(v, "one");
    let limits = Limits {
        inodes_hard: 2,
        ..Limits::default()
    };
    v.engine()
        .set_quota_limits(Kind::Group, USER, &limits)
        .expect("set");
    let two = users_file(v, "two");
    let mut new = v.new_inode(FileKind::Regular);
    (new.uid, new.gid) = (USER, USER);
    let refused = v.create_as(&root, b"three", &new);
    assert_eq!(kind(refused), Some(ErrorKind::QuotaExceeded));
    assert!(v.find(&root, b"three").is_none());
    v.remove(&root, b"two").expect("removed");
    v.evict(two);
    users_file(v, "three");
    assert_eq!(quota(v, Kind::Group, USER).map(|q| q.inodes), Some(2));
}
