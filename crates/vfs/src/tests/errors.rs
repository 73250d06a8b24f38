//! Full volumes and failing devices.

use super::{Fixture, Submit, quiet};
use crate::engine::SyncScope;
use crate::error::ErrorKind;
use crate::testing::MemOptions;
use crate::{Handle, MountOptions, OpenFlags, WriteOp};
use blockwright_device::AlignedBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

#[test]
fn a_full_volume_refuses_writes_at_write_time_and_takes_what_fits() {
    let f = Fixture::new(1 << 20, MemOptions::default(), quiet());
    let inode = f.file("f");
    let h = f.open(&inode);
    let n = h.write_at(&vec![7; 2 << 20], 100).unwrap();
    // 255 blocks, the first of which starts 100 bytes in.
    assert_eq!(n, 255 * 4096 - 100);
    assert_eq!(
        h.write_at(&[1; 8192], 1 << 20).unwrap_err().kind(),
        ErrorKind::NoSpace
    );
    // Overwriting still works, and everything written gets to the disk.
    h.write_at(&[9; 5000], 300).unwrap();
    h.sync(SyncScope::All).unwrap();
    let disk = f.engine.contents_on_disk(inode.ino()).unwrap();
    assert_eq!(disk.len(), n + 100);
    assert!(disk[..100].iter().all(|b| *b == 0));
    assert!(disk[300..5300].iter().all(|b| *b == 9));
    h.set_len(0).unwrap();
    assert_eq!(f.engine.free_blocks(), 255);
    h.write_at(&[1; 8192], 1 << 20).unwrap();
    h.sync(SyncScope::Data).unwrap();
}

#[test]
fn a_full_volume_refuses_direct_writes() {
    let f = Fixture::new(1 << 20, MemOptions::default(), quiet());
    let inode = f.file("f");
    let h = f.open_direct(&inode);
    assert_eq!(h.write_at(&vec![7; 1 << 20], 0).unwrap(), 255 * 4096);
    assert_eq!(
        h.write_at(&vec![7; 4096], 1 << 20).unwrap_err().kind(),
        ErrorKind::NoSpace
    );
    assert_eq!(h.write_at(&vec![8; 4096], 0).unwrap(), 4096);
}

/// Handles whose front end cannot tell a short write from a failed one hear why it is short, whichever way they write.
#[test]
fn a_short_direct_write_says_why_to_who_asks() {
    let flags = OpenFlags {
        direct: true,
        front_end: crate::FrontEnd::FuseClientDirect,
        ..OpenFlags::read_write()
    };
    type Way = fn(&Arc<Handle>, Vec<u8>) -> crate::Result<usize>;
    let ways: [Way; 3] = [
        |h, bytes| h.write_at(&bytes, 0),
        |h, bytes| h.run(WriteOp::at(0, vec![AlignedBuf::copy_of(&bytes).into()])),
        |h, bytes| {
            let (send, receive) = mpsc::channel();
            let slices = vec![AlignedBuf::copy_of(&bytes).into()];
            h.submit_write(slices, 0, Box::new(move |r| send.send(r).unwrap()));
            receive.recv().unwrap()
        },
    ];
    for (n, way) in ways.into_iter().enumerate() {
        let f = Fixture::new(1 << 20, MemOptions::default(), quiet());
        let inode = f.file("f");
        let h = f.vfs.open(&f.cred, &inode, flags).unwrap();
        let failed = way(&h, vec![7; 1 << 20]).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::NoSpace, "{n}");
        // What fitted may stay; a front end that wants it gone cuts the file.
        assert_eq!(inode.size(), 255 * 4096, "{n}");
        h.set_len(0).unwrap();
        assert_eq!(way(&h, vec![8; 8192]).unwrap(), 8192, "{n}");
    }
}

#[test]
fn a_failed_data_write_reaches_each_open_handle_once() {
    let f = Fixture::new(8 << 20, MemOptions::default(), quiet());
    let inode = f.file("f");
    let (a, b) = (f.open(&inode), f.open(&inode));
    a.write_at(&[1; 10_000], 0).unwrap();
    f.engine.device().fail_writes.store(true, Ordering::SeqCst);
    assert_eq!(a.sync(SyncScope::Data).unwrap_err().kind(), ErrorKind::Io);
    f.engine.device().fail_writes.store(false, Ordering::SeqCst);
    let late = f.open(&inode);
    assert!(a.sync(SyncScope::Data).is_ok(), "once");
    assert_eq!(b.sync(SyncScope::All).unwrap_err().kind(), ErrorKind::Io);
    assert!(b.sync(SyncScope::All).is_ok());
    assert!(late.sync(SyncScope::All).is_ok(), "opened afterwards");
    // Blocks were given back; writing again works.
    assert_eq!(f.engine.reserved_blocks(), 0);
    a.write_at(&[2; 10_000], 0).unwrap();
    a.sync(SyncScope::Data).unwrap();
    assert_eq!(
        f.engine.contents_on_disk(inode.ino()).unwrap(),
        vec![2; 10_000]
    );
}

#[test]
fn sync_reports_and_so_does_unmount() {
    let f = Fixture::new(8 << 20, MemOptions::default(), quiet());
    let h = f.open(&f.file("f"));
    h.write_at(&[1; 4096], 0).unwrap();
    f.engine.device().fail_writes.store(true, Ordering::SeqCst);
    assert_eq!(f.vfs.sync().unwrap_err().kind(), ErrorKind::Io);
    assert!(f.vfs.sync().is_ok());
    h.write_at(&[1; 4096], 0).unwrap();
    assert_eq!(f.vfs.unmount().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(
        h.read_at(&mut [0; 1], 0).unwrap_err().kind(),
        ErrorKind::Stale
    );
}

#[test]
fn failed_reads_are_reported_and_not_cached() {
    let f = Fixture::new(8 << 20, MemOptions::default(), quiet());
    let inode = f.file("f");
    let h = f.open(&inode);
    h.write_at(&[1; 100_000], 0).unwrap();
    f.vfs.sync().unwrap();
    f.vfs.drop_caches();
    f.engine.device().fail_reads.store(true, Ordering::SeqCst);
    let mut buf = [0; 100];
    assert_eq!(h.read_at(&mut buf, 5000).unwrap_err().kind(), ErrorKind::Io);
    // A partial overwrite needs the block's other bytes, so it fails and changes nothing.
    assert_eq!(
        h.write_at(&[9; 10], 5000).unwrap_err().kind(),
        ErrorKind::Io
    );
    f.engine.device().fail_reads.store(false, Ordering::SeqCst);
    assert_eq!(h.read_at(&mut buf, 5000).unwrap(), 100);
    assert_eq!(buf, [1; 100]);
}

#[test]
fn the_cache_stays_within_its_budget() {
    let mount = MountOptions {
        cache_bytes: 4 << 20,
        dirty_bytes_background: 1 << 20,
        dirty_bytes_max: 2 << 20,
        ..quiet()
    };
    let f = Fixture::new(128 << 20, MemOptions::default(), mount);
    let inode = f.file("f");
    let h = f.open(&inode);
    let cached = || {
        let all = f.vfs.counters();
        all.iter().find(|(n, _)| n == "cache_bytes").unwrap().1
    };
    let chunk = vec![3; 1 << 20];
    for i in 0..64 {
        h.write_at(&chunk, i << 20).unwrap();
        assert!(cached() <= (4 << 20) + (1 << 20), "{}", cached());
    }
    h.sync(SyncScope::Data).unwrap();
    let mut buf = vec![0; 1 << 20];
    for i in 0..64 {
        h.read_at(&mut buf, i << 20).unwrap();
        assert!(buf.iter().all(|b| *b == 3));
        assert!(cached() <= (4 << 20) + (4 << 20), "{}", cached());
    }
    // A small file takes a small folio.
    f.vfs.drop_caches();
    let before = cached();
    let small = f.open(&f.file("small"));
    small.write_at(b"hello", 0).unwrap();
    assert_eq!(cached() - before, 4096);
}

/// Pages that were written once, and then to the device, make room before pages in use.
#[test]
fn what_was_written_once_leaves_the_cache_first() {
    let mount = MountOptions {
        cache_bytes: 1 << 20,
        ..quiet()
    };
    let f = Fixture::new(64 << 20, MemOptions::default(), mount);
    let used = f.file("used");
    let h = f.open(&used);
    h.write_at(&vec![1; 256 << 10], 0).unwrap();
    h.sync(SyncScope::Data).unwrap();
    assert_eq!(h.read_at(&mut [0; 4096], 0).unwrap(), 4096);
    let scattered = f.open(&f.file("scattered"));
    for k in 0..224u64 {
        scattered.write_at(&[2; 4096], k * 8192).unwrap();
        if k % 32 == 31 {
            scattered.sync(SyncScope::Data).unwrap();
        }
    }
    let reclaimed = f.vfs.core.budget.reclaimed.load(Ordering::Relaxed);
    assert!(reclaimed > 0);
    assert!(used.pages.lock().holds(0..256 << 10, 4096), "{reclaimed}");
}

/// A nameless inode whose blocks could not be freed, and a named one whose times could not be stored. No handle is left, so the
/// volume's next sync reports it, once; the unmount reports what failed since.
#[test]
fn a_failed_eviction_reaches_the_next_sync() {
    let f = Fixture::new(8 << 20, MemOptions::default(), quiet());
    drop(f.file("nameless"));
    f.engine.fail_evictions.store(true, Ordering::SeqCst);
    f.vfs.unlink(&f.cred, &f.root, b"nameless").unwrap();
    assert_eq!(f.vfs.sync().unwrap_err().kind(), ErrorKind::Io);
    f.vfs.sync().unwrap();
    drop(f.file("named"));
    f.vfs.drop_caches();
    assert_eq!(f.vfs.sync().unwrap_err().kind(), ErrorKind::Io);
    f.vfs.sync().unwrap();
    let Fixture { vfs, root, .. } = f;
    drop(root);
    assert_eq!(vfs.unmount().unwrap_err().kind(), ErrorKind::Io);
}
