//! Storage hardware that this machine does not have, in real time, behind a host's I/O scheduler.
//!
//! Where [`ModelledDevice`] works out what a sequence of requests would take, this one takes that
//! time: requests complete when the modelled hardware would have completed them, so threads meet and wait as they would. It
//! is slow, and needs a machine that is not too busy to wake a thread in time; both sides of a comparison suffer alike.
//!
//! # The scheduler
//! The hardware is given as many requests as it has units; the rest waits in queues, one per priority level for data, and one for
//! metadata and flushes, because schedulers keep requests with a waiting caller apart from bulk data. Queues share the hardware by weight
//! (start-time fair queueing: P. Goyal, H. Vin, H. Cheng, 1996); a level's weight is 8 less the level, which is how Linux's BFQ turns
//! I/O priorities into weights. An idle queue keeps no claim.

use super::memory::MemoryDevice;
use super::modelled::{Model, ModelledDevice};
use crate::{BlockDevice, Flags, Geometry, Op, Request};
use parking_lot::{Condvar, Mutex};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEVELS: usize = 8;

#[derive(Default)]
struct Queue {
    /// Start tags and requests, in order.
    waiting: VecDeque<(u64, Request)>,
    /// Finish tag of the last that came.
    finish: u64,
}

struct State {
    /// Data of each level, then metadata of each.
    queues: [Queue; 2 * LEVELS],
    virtual_time: u64,
    /// Requests that the hardware works on: the time of completion, and the request.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    running: HashMap<u64, (Request, crate::Result<()>)>,
    next: u64,
    closed: bool,
}

struct Shared {
    hardware: ModelledDevice,
    began: Instant,
    state: Mutex<State>,
    work: Condvar,
}

/// A device with the timing of some hardware, in real time. See the module's head.
pub struct PacedDevice {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl PacedDevice {
    /// A device with these contents and this timing.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(storage: MemoryDevice, model: Model) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            hardware: ModelledDevice::new(storage, model),
            began: Instant::now(),
            state: Mutex::new(State {
                queues: Default::default(),
                virtual_time: 0,
                ends: BinaryHeap::new(),
                running: HashMap::new(),
                next: 0,
                closed: false,
            }),
            work: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("paced-device".to_owned())
            .spawn(move || theirs.serve())?;
        Ok(PacedDevice {
            shared,
            thread: Some(thread),
        })
    }

    /// The bytes.
    #[must_use]
    pub fn storage(&self) -> &MemoryDevice {
        self.shared.hardware.storage()
    }
}

impl State {
    /// The queue whose turn it is.
    fn pick(&mut self) -> Option<Request> {
        let heads = self.queues.iter().enumerate();
        let first = heads
            .filter_map(|(n, q)| q.waiting.front().map(|(start, _)| (*start, Reverse(n))))
            .min()?;
        let (start, request) = self.queues[first.1.0].waiting.pop_front()?;
        self.virtual_time = self.virtual_time.max(start);
        Some(request)
    }
}

impl Shared {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn serve(&self) {
        let units = self.hardware.model().units.max(1);
        let mut state = self.state.lock();
        loop {
            let now = self.now_ns();
            if let Some(Reverse((end, id))) = state.ends.peek().copied()
                && end <= now
            {
                state.ends.pop();
                let done = state.running.remove(&id);
                drop(state);
                if let Some((request, result)) = done {
                    request.complete(result);
                }
                state = self.state.lock();
                continue;
            }
            if state.running.len() < units
                && let Some(mut request) = state.pick()
            {
                let result = self.hardware.storage().perform(&mut request);
                let end = match &result {
                    Ok(()) => self.hardware.finish_of(&request, now),
                    Err(_) => now,
                };
                let id = state.next;
                state.next += 1;
                state.ends.push(Reverse((end, id)));
                state.running.insert(id, (request, result));
                continue;
            }
            match state.ends.peek().copied() {
                Some(Reverse((end, _))) => {
                    let left = Duration::from_nanos(end.saturating_sub(now));
                    self.work.wait_for(&mut state, left);
                }
                None if state.closed => return,
                None => self.work.wait(&mut state),
            }
        }
    }
}

impl BlockDevice for PacedDevice {
    fn geometry(&self) -> Geometry {
        self.shared.hardware.geometry()
    }

    fn submit(&self, request: Request) {
        let level = usize::from(request.priority.0).min(LEVELS - 1);
        let waited_for = request.flags.contains(Flags::META) || matches!(request.op, Op::Flush);
        let queue = level + if waited_for { LEVELS } else { 0 };
        let cost = self.shared.hardware.cost_of(&request);
        let mut state = self.shared.state.lock();
        let virtual_time = state.virtual_time;
        let queue = &mut state.queues[queue];
        let start = virtual_time.max(queue.finish);
        queue.finish = start + cost / (LEVELS - level) as u64;
        queue.waiting.push_back((start, request));
        drop(state);
        self.shared.work.notify_one();
    }

    fn name(&self) -> String {
        format!("paced {}", self.shared.hardware.model().name)
    }
}

impl Drop for PacedDevice {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_one();
        // The last reference may be dropped by a completion, on that thread.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _panicked = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuf, DevOffset, IoPriority, SharedDevice, conformance};
    use std::sync::mpsc;

    fn write(at: u64, level: u8, done: mpsc::Sender<(u8, u64)>) -> Request {
        let op = Op::Write(vec![AlignedBuf::zeroed(128 << 10).into()]);
        let mut request = Request::new(op, DevOffset(at), move |finished| {
            finished.result.unwrap();
            done.send((level, at)).unwrap();
        });
        request.priority = IoPriority(level);
        request
    }

    #[test]
    fn conforms() {
        let storage = MemoryDevice::new(conformance::BYTES_MIN);
        let device = PacedDevice::new(storage, Model::nvme()).unwrap();
        conformance::run(&(Arc::new(device) as SharedDevice), 8);
    }

    #[test]
    fn takes_the_time_that_the_hardware_would() {
        let device = PacedDevice::new(MemoryDevice::new(1 << 30), Model::emmc()).unwrap();
        let before = Instant::now();
        for _ in 0..5 {
            device.flush().unwrap();
        }
        assert!(before.elapsed() >= 5 * Model::emmc().flush);
    }

    #[test]
    fn queues_share_by_weight() {
        let device = PacedDevice::new(MemoryDevice::new(1 << 30), Model::emmc()).unwrap();
        let (tell, told) = mpsc::channel();
        // So many at once that the order is the scheduler's: the device is still at the first.
        for n in 0..100 {
            device.submit(write(n << 17, 7, tell.clone()));
            device.submit(write((n + 1000) << 17, 3, tell.clone()));
        }
        let order: Vec<(u8, u64)> = (0..200).map(|_| told.recv().unwrap()).collect();
        let light = order[..100].iter().filter(|(level, _)| *level == 7).count();
        // A sixth of a hundred, and requests that began before the others came.
        assert!(
            (10..=40).contains(&light),
            "{light} of 100 were of the light queue"
        );
        for level in [3, 7] {
            let of: Vec<u64> = order.iter().filter(|o| o.0 == level).map(|o| o.1).collect();
            assert!(of.is_sorted(), "each queue keeps its order");
        }
    }
}
