//! Many writers until an f2fs volume is full: the room that one's promise becomes is nobody else's in between, or the next checkpoint
//! has more blocks in use than there are for users, and no mount takes it.

mod common;

use blockwright::device::{MemoryDevice, SharedDevice};
use blockwright::{ErrorKind, OpenOptions, Volume, VolumeOptions};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(100);
const WRITERS: u64 = 8;
const ROUNDS: u64 = 12;
/// Of a write: some blocks, so that what is promised and not yet in use is never little.
const WRITE: usize = 48 << 10;

/// Writes until there is no room. Every other writer has its promises kept all the time, and so do those whose writes go past the cache.
fn write_until_full(v: &Volume, writer: u64) {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .direct(writer % 3 == 1)
        .open(v, format!("w{writer}"));
    let file = match file {
        Ok(file) => file,
        Err(e) => return assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}"),
    };
    let bytes = vec![1 + writer as u8; WRITE];
    let mut at = 0;
    loop {
        match file.write_at(&bytes, at) {
            Ok(n) => at += n as u64,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                break;
            }
        }
        if writer.is_multiple_of(2) {
            file.sync_data().expect("accepted and lost");
        }
    }
    file.sync_all().expect("accepted and lost");
}

#[test]
fn a_full_volume_can_be_mounted_again() {
    if !common::have_tool("mkfs.f2fs") {
        return;
    }
    common::guarded("full", LIMIT, || {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("image");
        common::mkfs_f2fs(&image, "", 64 << 20);
        let device: SharedDevice = Arc::new(MemoryDevice::load(&image).expect("loaded"));
        let open = || {
            Volume::open_device(Arc::clone(&device), &VolumeOptions::default())
                .unwrap_or_else(|e| panic!("not mounted: {e}"))
        };
        let v = open();
        let free = v.statfs().expect("statfs").blocks_free;
        v.close().expect("closed");
        for round in 0..ROUNDS {
            let v = open();
            std::thread::scope(|s| {
                for writer in 0..WRITERS {
                    let v = &v;
                    s.spawn(move || write_until_full(v, writer));
                }
            });
            v.close().expect("closed");
            let v = open();
            for writer in 0..WRITERS {
                let name = format!("w{writer}");
                if v.exists(&name).expect("looked up") {
                    let seen = v.read(&name).expect("read");
                    let wrong = seen.iter().any(|b| *b != 1 + writer as u8);
                    assert!(!wrong, "round {round}: {name}");
                    v.remove_file(&name).expect("removed");
                }
            }
            v.sync().expect("synced");
            let now = v.statfs().expect("statfs").blocks_free;
            assert_eq!(now, free, "round {round}: blocks were lost");
            v.close().expect("closed");
        }
    });
}
