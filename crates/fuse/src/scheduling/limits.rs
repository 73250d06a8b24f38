//! Every constant that decides where and how a request is served, in one table, each with its reason.
//!
//! The measurements were made by `blockwright-bench` in pairs, with a constant's variants in turn. The commit that set a
//! constant has the rows.

use std::time::Duration;

// Which requests go to the pool before they begin (`slow_kinds`).

/// A larger WRITE (bytes) counts as slow: it fills the page cache, and may have to clean it first.
pub(crate) const QUICK_WRITE_BYTES_MAX: usize = 128 << 10;
/// The shortest time (ms) for which a kind of request counts as slow after it waited too much. The time grows with the wait, and
/// doubles when the kind is slow again that soon.
pub(crate) const SLOW_MS_MIN: u64 = 20;
/// The longest such time. A kind that waits now and then, for a commit or a checkpoint, is not handed over for most of the time
/// in between: a handover costs every request a wake-up. A kind that always waits is hardly ever tried.
pub(crate) const SLOW_MS_MAX: u64 = 1000;
/// The window (ms) over which waiting is summed.
pub(crate) const SLOW_WINDOW_MS: u64 = 100;
/// Too much waiting (µs) of one kind within the window. A single request that the machine held up for a moment stays below it.
pub(crate) const SLOW_WAITED_US_MAX: u64 = 10_000;

// Whether a request waited, or the machine took the CPU away (`waits`).

/// A request that took longer may have waited.
pub(crate) const MAY_HAVE_WAITED: Duration = Duration::from_millis(1);
/// A request that took longer has waited: no thread is preempted for so long.
pub(crate) const HAS_WAITED: Duration = Duration::from_millis(10);
/// For how long every request is asked about after one took long. Asking costs two system calls.
pub(crate) const ASK_FOR: Duration = Duration::from_secs(1);

// On which CPU a queue's thread runs, and whether it polls (`affinity`).

/// How often the machine's load is read.
pub(crate) const LOAD_INTERVAL: Duration = Duration::from_millis(20);
/// After a longer pause between two requests the thread may have been kept waiting for a CPU.
pub(crate) const PAUSE_SUSPICIOUS: Duration = Duration::from_millis(3);
/// A longer wait (ns) for a CPU within one pause is starvation.
pub(crate) const STARVED_NS: u64 = 2_000_000;
/// How long the thread stays on its own CPU after it starved: the first time, and at most. The time doubles with each starvation,
/// and is the first again after [`POLLED_WELL`].
pub(crate) const STAY_LOCAL: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_secs(64));
/// After this time on another CPU without starving, the cause of the last starvation is taken to be over.
pub(crate) const POLLED_WELL: Duration = Duration::from_millis(100);
/// How many requests' clients are remembered.
pub(crate) const CLIENTS_REMEMBERED: usize = 16;
/// As many different clients among them take turns on a CPU by themselves. With eight writers a queue, a thread on its own CPU served a fifth more
/// (direct appends, 32 jobs).
pub(crate) const CLIENTS_MANY: usize = 4;
/// The thread returns to its CPU after this number of looks in succession that found no CPU free.
pub(crate) const LOOKS_CROWDED: u32 = 2;
/// For how long a polling thread looks for the next request before it sleeps: longer than most programs need between two requests.
pub(crate) const POLL_MAX: Duration = Duration::from_micros(100);
/// Looks at the ring for one look at the clock.
pub(crate) const POLL_SPINS: usize = 16;
/// How often a thread that sleeps on another CPU looks whether to return. Longer than [`LATENCY_TICK`].
pub(crate) const AWAY_TICK: Duration = Duration::from_millis(100);

// Whether direct I/O goes through the queue's own ring (`client_depth`).

/// The device's thread needs a CPU beside the client's and the queue thread's. Direct overwrites, 4 KiB, depth 64: on two CPUs the
/// ring served 129 000 a second and the device's thread 94 000 (image in memory, median of three); on four the device's thread 0.97 of the
/// kernel's ext4, the ring 0.79.
pub(crate) const DEEP_CPUS_MIN: usize = 3;
/// More requests in progress than this are many: such a client keeps the device's thread awake anyway.
pub(crate) const DEEP: usize = 4;
/// Larger requests (bytes) always use the ring: most of their cost is moving the data.
pub(crate) const DEEP_BYTES_MAX: usize = 32 << 10;
/// After this number of requests that came alone, the client is taken to have changed what it does.
pub(crate) const DEEP_ALONE: u32 = 64;
/// How often the number of clients is counted, in requests.
pub(crate) const DEEP_LOOK_EVERY: u32 = 16;
/// The part of a queue's entries that the thread of the next CPU has, where no device's thread takes part: one in this many. The kernel
/// uses them when the others are taken, or were given back later. Direct overwrites, 4 KiB, depth 64, on two CPUs came to 0.89
/// of the kernel's ext4 (0.86–0.91) instead of 0.77 (0.75–0.79, virtio disk, five rounds in turn). A quarter, or an eighth, for the own thread gave less.
pub(crate) const HELPED_PART: usize = 2;
/// With more requests in progress than this, a queue's thread stays on its CPU: its neighbour helps, and needs the other one.
pub(crate) const HELPED_MIN: usize = 16;
/// Device requests that are submitted together. The kernel hands a batch to the device only after it has prepared all of it.
pub(crate) const DEVICE_BATCH: usize = 2;
/// The same with more than [`HELPED_MIN`] requests in progress: the device has enough to do meanwhile. Direct overwrites, 4 KiB, depth 64, came to 1.02
/// to 1.03 of what batches of two gave, and to 0.95 at depths of 4 and 16 (five pairs each).
pub(crate) const DEVICE_BATCH_MANY: usize = 8;
/// Parts of device requests that a queue's ring takes, beside its commands.
pub(crate) const DIRECT_PARTS_MAX: usize = 128;

// Whether idle CPUs are kept awake (`cpu_latency`).

/// Requests for each look at the clock.
pub(crate) const LATENCY_GROUP: u64 = 16;
/// [`LATENCY_GROUP`] requests within this time keep CPUs awake.
pub(crate) const LATENCY_GROUP_MAX: Duration = Duration::from_millis(4);
/// How often the rate is looked at while CPUs are kept awake. Longer than the pause that a large file makes between two small ones.
pub(crate) const LATENCY_TICK: Duration = Duration::from_millis(50);
/// Fewer requests between two looks let CPUs sleep again.
pub(crate) const LATENCY_FEW: u64 = 32;

// How soon a thread runs after it wakes (`slice`).

/// The shortest slice that Linux gives. pgbench with 8 clients on two CPUs that are busy with other programs came to 2.8 times the
/// transactions over `/dev/fuse`, and 3.7 times over io_uring (four pairs). With 500 µs it came to 0.95 and 0.78 of that (three pairs).
pub(crate) const SLICE: Duration = Duration::from_micros(100);

// Which files are read ahead (`listed_files`).

/// Files of one listing that are read ahead together: what one look at the device finds side by side.
pub(crate) const AHEAD_FILES: usize = 32;
/// The most of one file (bytes) that is read ahead. The rest is left to readahead within the file.
pub(crate) const AHEAD_FILE_BYTES_MAX: u64 = 256 << 10;
/// Bytes that are ahead in one listing: about what the device reads during a few of its latencies.
pub(crate) const AHEAD_WINDOW_BYTES: u64 = 4 << 20;
/// Bytes that are ahead in all listings, and the share of the volume's cache: one part in this many.
pub(crate) const AHEAD_BYTES_MAX: u64 = 32 << 20;
pub(crate) const AHEAD_CACHE_PART: u64 = 8;
/// Reads of listed files after which a listing is taken to be followed by reads, and the most that are remembered.
pub(crate) const AHEAD_TRUST_MIN: u32 = 2;
pub(crate) const AHEAD_TRUST_MAX: u32 = 64;
/// The reduction for a file that was read ahead in vain.
pub(crate) const AHEAD_VAIN_COST: u32 = 2;
/// Listed files that are remembered (40 bytes each), and those of one listing.
pub(crate) const LISTED_FILES_MAX: usize = 32 << 10;
pub(crate) const LISTING_FILES_MAX: usize = 4 << 10;

// Threads.

/// How long a thread that need not be kept waits for work.
pub(crate) const THREAD_IDLE_MAX: Duration = Duration::from_secs(5);
/// How often the watch looks at the workers of `/dev/fuse`.
pub(crate) const WATCH_TICK: Duration = Duration::from_millis(2);
/// Ticks without a request after which the watch sleeps.
pub(crate) const WATCH_QUIET_TICKS: u32 = 50;
/// Ticks without queued requests after which a worker's place is taken back.
pub(crate) const WATCH_CALM_TICKS: u32 = 50;

const _: () = assert!(AWAY_TICK.as_millis() > LATENCY_TICK.as_millis());
const _: () = assert!(SLOW_MS_MIN < SLOW_MS_MAX && DEVICE_BATCH_MANY < DIRECT_PARTS_MAX);
