//! What recovery of many small fsynced files asks of the device: few large requests, rather than some for each file.

use blockwright::{Format, OpenOptions, VolumeBuilder, VolumeOptions};
use blockwright_device::{
    BlockDevice, DevOffset, Geometry, MemoryDevice, Op, Request, SharedDevice,
};
use blockwright_ondisk::f2fs::BlockAddr;
use blockwright_test_support::lab::f2fs::F2Volume;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const FILES: u64 = 4000;
const EACH: usize = 52 << 10;

/// Notes what is asked of it.
struct Noting {
    base: Arc<MemoryDevice>,
    asked: Mutex<Vec<(&'static str, DevOffset, u64)>>,
}

impl BlockDevice for Noting {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn name(&self) -> String {
        "noting".to_owned()
    }

    fn submit(&self, request: Request) {
        let what = match &request.op {
            Op::Read(buf) => ("read", buf.len() as u64),
            Op::Write(slices) => ("write", slices.iter().map(|s| s.len() as u64).sum()),
            _ => ("other", 0),
        };
        let mut asked = self.asked.lock().expect("no panic");
        asked.push((what.0, request.offset, what.1));
        drop(asked);
        self.base.submit(request);
    }
}

#[test]
fn recovery_of_small_files_asks_for_little() {
    let memory = Arc::new(MemoryDevice::new(1 << 30));
    let device: SharedDevice = memory.clone();
    VolumeBuilder::new()
        .format(Format::F2fs)
        .size(1 << 30)
        .create_on(&device)
        .expect("made");
    let mut options = VolumeOptions::default();
    options.parts.f2fs.commit_interval = std::time::Duration::from_secs(3600);
    let volume = options.open_device(device).expect("opens");
    for n in 0..FILES {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .open(&volume, format!("/file{n}"))
            .expect("a new file");
        file.write_all_at(&vec![n as u8; EACH], 0).expect("written");
        file.sync_all().expect("synced");
    }
    // As in a crash.
    let after = Arc::new(memory.snapshot());
    drop(volume);
    let noting = Arc::new(Noting {
        base: after,
        asked: Mutex::default(),
    });
    let began = std::time::Instant::now();
    let volume = options.open_device(noting.clone()).expect("opens");
    let took = began.elapsed();
    let asked = std::mem::take(&mut *noting.asked.lock().expect("no panic"));
    let recovered = volume.vfs().stats().get("recovered_files");
    // The first fsync wrote a checkpoint.
    assert_eq!(recovered, Some(FILES - 1));
    for n in [0, 1, FILES / 2, FILES - 1] {
        let read = volume.read(format!("/file{n}")).expect("read");
        assert_eq!(read, vec![n as u8; EACH], "file {n}");
    }
    let mut kinds: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for (what, _, bytes) in &asked {
        *kinds.entry((what, *bytes)).or_default() += 1;
    }
    println!("{took:?}, {} requests: {kinds:?}", asked.len());
    // The chain, one block a file, is followed once and applied once.
    let bytes = |op| -> u64 {
        let of = asked.iter().filter(|(what, ..)| *what == op);
        of.map(|(.., bytes)| bytes).sum()
    };
    let chain = FILES << 12;
    assert!(bytes("read") < 2 * chain + (12 << 20), "{}", bytes("read"));
    assert!(bytes("write") < chain + (4 << 20), "{}", bytes("write"));
    assert!(asked.len() < 128, "{} requests", asked.len());
    volume.close().expect("closed");
}

/// A chain whose blocks are just behind all that was read ahead each time: what is read follows the chain, and not the volume that it is spread over.
#[test]
fn a_chain_of_jumps_is_not_read_ahead() {
    const NODES: usize = 800;
    let memory = Arc::new(MemoryDevice::new(4 << 30));
    let device: SharedDevice = memory.clone();
    VolumeBuilder::new()
        .format(Format::F2fs)
        .create_on(&device)
        .expect("made");
    let volume = VolumeOptions::default().open_device(device).expect("opens");
    volume.write("/file", [1; 5000]).expect("written");
    volume.close().expect("closed");
    let image = F2Volume::new(memory.snapshot());
    let file = image.lookup("/file");
    let jumps = (0..NODES).scan((image.chain_start().0, 1), |(at, jump), _| {
        let here = BlockAddr(*at);
        (*at, *jump) = (*at + *jump, (*jump * 2).min(512));
        Some((here, Vec::new()))
    });
    let chain: Vec<_> = jumps.collect();
    image.put_chain(file, &chain);
    let noting = Arc::new(Noting {
        base: Arc::new(image.device.snapshot()),
        asked: Mutex::default(),
    });
    let volume = VolumeOptions::default()
        .read_only(true)
        .open_device(noting.clone())
        .expect("opens");
    let recovered = volume.vfs().stats().get("recovered_nodes");
    assert_eq!(recovered, Some(NODES as u64));
    let asked = std::mem::take(&mut *noting.asked.lock().expect("no panic"));
    let read: u64 = asked.iter().map(|(.., bytes)| bytes).sum();
    // Each node is read twice, with one that follows it.
    let most = (4 * NODES as u64) << 12;
    assert!(read < most + (8 << 20), "{read} bytes read");
    assert!(asked.len() < 3 * NODES, "{} requests", asked.len());
}
