//! Nodes that a checkpoint is writing can be read all the while, however little memory there is for them.

use crate::common::f2fs::{assert_clean, formatted};
use blockwright::{OpenOptions, VolumeOptions};
use blockwright_device::{BlockDevice, Flags, Geometry, MemoryDevice, Op, Request};
use std::sync::{Arc, Condvar, Mutex};

/// Holds back writes of metadata while it is shut.
struct Valve {
    base: Arc<MemoryDevice>,
    /// Whether it is shut, and what it holds back.
    held: Mutex<(bool, Vec<Request>)>,
    changed: Condvar,
}

impl BlockDevice for Valve {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn name(&self) -> String {
        "valve".to_owned()
    }

    fn submit(&self, request: Request) {
        let mut held = self.held.lock().expect("no panic");
        if held.0 && matches!(request.op, Op::Write(_)) && request.flags.contains(Flags::META) {
            held.1.push(request);
            self.changed.notify_all();
            return;
        }
        drop(held);
        self.base.submit(request);
    }
}

impl Valve {
    fn shut(&self) {
        self.held.lock().expect("no panic").0 = true;
    }

    fn wait_for_a_write(&self) {
        let held = self.held.lock().expect("no panic");
        let writes = self.changed.wait_while(held, |held| held.1.is_empty());
        drop(writes.expect("no panic"));
    }

    fn open(&self) {
        let held = {
            let mut held = self.held.lock().expect("no panic");
            held.0 = false;
            std::mem::take(&mut held.1)
        };
        for request in held {
            self.base.submit(request);
        }
    }
}

#[test]
fn nodes_on_their_way_are_not_read_from_where_they_are_not_yet() {
    const FILES: usize = 1500;
    const CHANGED: usize = 100;
    let memory = formatted(256 << 20);
    let mut options = VolumeOptions::default();
    // Room for a few nodes in each shard: what is clean and not looked at goes soon.
    options.parts.f2fs.metadata_cache_bytes = 1 << 20;
    let volume = options.open_device(memory.clone()).expect("opened");
    for n in 0..FILES {
        volume.write(format!("/{n}"), [2; 5000]).expect("written");
    }
    volume.close().expect("closed");

    let valve = Arc::new(Valve {
        base: memory.clone(),
        held: Mutex::default(),
        changed: Condvar::new(),
    });
    let volume = options.open_device(valve.clone()).expect("opened");
    let files: Vec<_> = (0..CHANGED)
        .map(|n| {
            let path = format!("/{n}");
            volume.set_permissions(&path, 0o600).expect("changed");
            let file = OpenOptions::new().read(true).open(&volume, &path);
            file.expect("opened")
        })
        .collect();
    valve.shut();
    std::thread::scope(|s| {
        let sync = s.spawn(|| volume.sync());
        valve.wait_for_a_write();
        // What the checkpoint writes is the least recently used now.
        let others = (CHANGED..FILES).map(|n| volume.metadata(format!("/{n}")));
        let others: Result<Vec<_>, _> = others.collect();
        // Each is mapped by a node that was changed.
        let mapped: Vec<_> = files.iter().map(|f| f.handle().map(0, 4096)).collect();
        valve.open();
        others.expect("looked at");
        for mapping in mapped {
            mapping.expect("the node is in memory, or can be read");
        }
        sync.join().expect("no panic").expect("durable");
    });
    drop(files);
    volume.close().expect("closed");
    assert_clean(&memory);
}
