//! Directories of very many entries: made, looked up, listed from saved positions while they change,
//! emptied; and indexes of three levels, as e2fsck sees them.
//!
//! `BLOCKWRIGHT_HUGE_DIR=1000000` sets the number of entries of the first two tests (`cargo xtask big`
//! runs them so, and prints what each step took).

use blockwright_test_support as common;

use blockwright::{Format, OpenOptions, Volume, VolumeBuilder, VolumeOptions};
use blockwright_device::{CountingDevice, MemoryDevice, SharedDevice};
use common::testing::{have, run_ok};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ENTRIES: u64 = 60_000;
/// f2fs inodes take a block each: this many entries share one.
const LINKS: u64 = 8;

fn entries() -> u64 {
    std::env::var("BLOCKWRIGHT_HUGE_DIR").map_or(ENTRIES, |n| n.parse().expect("a number"))
}

struct Case {
    memory: Arc<MemoryDevice>,
    volume: Volume,
}

impl Case {
    fn new(builder: VolumeBuilder, bytes: u64) -> Self {
        let memory = Arc::new(MemoryDevice::new(bytes));
        let shared = Arc::clone(&memory) as SharedDevice;
        builder.size(bytes).create_on(&shared).expect("made");
        let volume = Volume::open_device(shared).expect("opens");
        Case { memory, volume }
    }

    fn make(&self, path: &str) {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&self.volume, path)
            .unwrap_or_else(|e| panic!("{path}: {e}"));
    }

    /// Up to `count` entries behind a position: their names, and the position behind the last.
    fn list(&self, dir: &str, cookie: u64, count: usize) -> (Vec<String>, u64) {
        let v = &self.volume;
        let inode = v
            .vfs()
            .resolve(v.cred(), dir.as_bytes(), true)
            .expect("there");
        let mut names = Vec::new();
        let mut at = cookie;
        v.vfs()
            .readdir(v.cred(), &inode, cookie, &mut |e| {
                if names.len() == count {
                    return ControlFlow::Break(());
                }
                at = e.cookie;
                if e.name != b"." && e.name != b".." {
                    names.push(String::from_utf8(e.name.to_vec()).expect("text"));
                }
                ControlFlow::Continue(())
            })
            .expect("read");
        (names, at)
    }

    fn check(self, what: &str) -> Arc<MemoryDevice> {
        let Case { memory, volume } = self;
        let format = volume.format();
        volume.close().expect("closed");
        if format == Format::F2fs {
            let report = blockwright_check::f2fs::check(
                Arc::clone(&memory) as SharedDevice,
                &blockwright_check::f2fs::CheckOptions::default(),
            )
            .expect("checked");
            assert!(report.is_clean(), "{what}: {:?}", report.issues);
            if have("fsck.f2fs") {
                let dir = tempfile::tempdir().expect("a directory");
                let path = dir.path().join("image");
                memory.save(&path).expect("saved");
                common::assert_fsck_f2fs_clean(&path);
            }
            return memory;
        }
        let report = blockwright_check::ext4::check(
            Arc::clone(&memory) as SharedDevice,
            &blockwright_check::ext4::CheckOptions::default(),
        )
        .expect("checked");
        assert!(report.is_clean(), "{what}: {:?}", report.issues);
        if have("e2fsck") {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("image");
            memory.save(&path).expect("saved");
            run_ok("e2fsck", &["-fn", &path.display().to_string()]);
        }
        memory
    }
}

fn name(n: u64) -> String {
    format!("entry-{n:07}")
}

/// Tells what each step took: by the clock, and of the processors (which other programs do not slow down).
struct Clock {
    count: u64,
    wall: Instant,
    cpu: Duration,
}

fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

impl Clock {
    fn new(count: u64) -> Self {
        let (wall, cpu) = (Instant::now(), cpu_time());
        Clock { count, wall, cpu }
    }

    fn told(&mut self, what: &str) {
        let now = Clock::new(self.count);
        eprintln!(
            "{} entries {what} in {:.1} s, {:.1} s of the processors",
            self.count,
            (now.wall - self.wall).as_secs_f64(),
            (now.cpu - self.cpu).as_secs_f64()
        );
        *self = now;
    }
}

#[test]
fn ext4_made_looked_up_listed_and_emptied() {
    let count = entries();
    let builder = VolumeBuilder::new().inodes(count + count / 4 + 5000);
    huge(builder, (count * 8192).max(1 << 30), 1);
}

#[test]
fn f2fs_made_looked_up_listed_and_emptied() {
    let builder = VolumeBuilder::new().format(Format::F2fs);
    huge(builder, (entries() * 8192).max(1 << 30), LINKS);
}

fn huge(builder: VolumeBuilder, bytes: u64, links: u64) {
    let count = entries();
    // For a loaded machine of two cores.
    let limit = Duration::from_secs(60 + count / 2000);
    common::guarded("a huge directory", limit, move || {
        let case = Case::new(builder, bytes);
        let v = &case.volume;
        v.create_dir("/huge").expect("made");
        let mut clock = Clock::new(count);
        for n in 0..count {
            let path = format!("/huge/{}", name(n));
            if n % links == 0 {
                case.make(&path);
            } else {
                let of = format!("/huge/{}", name(n - n % links));
                v.hard_link(of, path).expect("linked");
            }
        }
        clock.told("made");
        v.sync().expect("synced");
        clock.told("synced");
        v.vfs().drop_caches();
        for n in (0..count).step_by(7) {
            assert!(v.exists(format!("/huge/{}", name(n))).expect("looked up"));
        }
        assert!(!v.exists("/huge/absent").expect("looked up"));
        clock.told("looked up, one of seven,");

        // Positions stay what they are while entries before and behind them come and go.
        let mut seen = HashSet::new();
        let (mut at, mut saved) = (0, Vec::new());
        let mut step = 0u64;
        loop {
            let (names, next) = case.list("/huge", at, 5000);
            if names.is_empty() {
                break;
            }
            saved.push((at, names[0].clone()));
            for n in &names {
                assert!(seen.insert(n.clone()), "{n} came twice");
            }
            at = next;
            // One of three hundred goes, others come.
            for n in (step..count).step_by((count as usize / 100).max(1)) {
                if n % 3 == 0 {
                    let _ = v.remove_file(format!("/huge/{}", name(n)));
                }
                case.make(&format!("/huge/new-{step}-{n}"));
            }
            step += 1;
        }
        let stable = (0..count).filter(|n| n % 3 != 0);
        for n in stable {
            assert!(seen.contains(&name(n)), "{} was not listed", name(n));
        }
        clock.told("listed while changed");
        // From a saved position the same entry follows, if it is still there.
        let mut same = 0;
        for (at, first) in &saved {
            let (names, _) = case.list("/huge", *at, 2000);
            if v.exists(format!("/huge/{first}")).expect("looked up") {
                assert!(names.contains(first), "{first} is not behind {at}");
                same += 1;
            }
        }
        assert!(same > 0);
        let left: Vec<String> = v
            .read_dir("/huge")
            .expect("opened")
            .map(|e| e.expect("read").file_name().to_string_lossy().into_owned())
            .collect();
        clock.told("listed");
        for n in &left {
            v.remove_file(format!("/huge/{n}")).expect("removed");
        }
        clock.told("removed");
        assert!(case.list("/huge", 0, 10).0.is_empty());
        v.remove_dir("/huge").expect("removed");
        v.sync().expect("synced");
        clock.told("gone");
        case.check("emptied");
    });
}

#[test]
fn indexes_of_three_levels() {
    common::guarded("three levels", Duration::from_secs(120), || {
        // 1 KiB blocks hold four long names: 50 000 of them are more leaves than two levels reach.
        let builder = VolumeBuilder::new()
            .block_size(1024)
            .features("large_dir")
            .inodes(4000);
        let case = Case::new(builder, 256 << 20);
        let v = &case.volume;
        v.create_dir("/d").expect("made");
        v.write("/file", b"x").expect("made");
        let long = "n".repeat(230);
        let total: u64 = 66_000;
        // A file has at most 65 000 links.
        v.write("/other", b"x").expect("made");
        for n in 0..total {
            let from = if n % 2 == 0 { "/file" } else { "/other" };
            v.hard_link(from, format!("/d/{long}{n}")).expect("linked");
        }
        v.sync().expect("synced");
        v.vfs().drop_caches();
        for n in (0..total).step_by(97) {
            assert!(v.exists(format!("/d/{long}{n}")).expect("looked up"));
        }
        let listed: HashSet<_> = v
            .read_dir("/d")
            .expect("opened")
            .map(|e| e.expect("read").file_name().to_owned())
            .collect();
        assert_eq!(listed.len() as u64, total);
        let memory = case.check("three levels");
        // The root of the index says how many levels it has.
        let options = VolumeOptions::default();
        let v = options
            .open_device(Arc::clone(&memory) as SharedDevice)
            .expect("opens");
        let dir = v.vfs().resolve(v.cred(), b"/d", true).expect("there");
        let blocks = dir.attr().size / 1024;
        assert!(blocks > 124 * 127, "{blocks} blocks need two levels only");
        drop(dir);
        for n in 0..total {
            v.remove_file(format!("/d/{long}{n}")).expect("removed");
        }
        v.remove_dir("/d").expect("removed");
        let case = Case { memory, volume: v };
        case.check("emptied");
    });
}

/// A name that is added to a large directory of f2fs passes full buckets on its way. They must not be written again.
#[test]
fn one_name_changes_few_blocks() {
    common::guarded("one name", Duration::from_secs(120), || {
        let memory = Arc::new(MemoryDevice::new(256 << 20));
        let shared = Arc::clone(&memory) as SharedDevice;
        let builder = VolumeBuilder::new().format(Format::F2fs).size(256 << 20);
        builder.create_on(&shared).expect("made");
        let counted = Arc::new(CountingDevice::new(shared));
        let device = Arc::clone(&counted) as SharedDevice;
        let volume = Volume::open_device(device).expect("opens");
        let v = &volume;
        v.write("/file", b"x").expect("made");
        for dir in ["/small", "/large"] {
            v.create_dir(dir).expect("made");
        }
        for n in 0..20_000 {
            v.hard_link("/file", format!("/large/{}", name(n)))
                .expect("linked");
        }
        let cost = |dir: &str| {
            v.sync().expect("synced");
            let before = counted.stats();
            v.hard_link("/file", format!("{dir}/one more"))
                .expect("linked");
            assert!(v.exists(format!("{dir}/one more")).expect("looked up"));
            v.sync().expect("synced");
            counted.stats().since(&before).writes.bytes
        };
        let (small, large) = (cost("/small"), cost("/large"));
        // A new block of names, its node, and the directory's inode.
        assert!(
            large <= small + (4 << 12),
            "{small} bytes written for a name in a small directory, {large} in a large one"
        );
        v.remove_file("/large/one more").expect("removed");
        assert!(!v.exists("/large/one more").expect("looked up"));
        Case { memory, volume }.check("one name");
    });
}
