//! Where and how a request is served: policy, apart from the transports that carry it out.
//!
//! A transport asks before it acts. The answers come from eight questions, one a file:
//!
//! | question | file |
//! |---|---|
//! | Is this request expected to wait, so that a thread of the pool serves it? | `slow_kinds` |
//! | Did a request that took long wait, or was the CPU taken away? | `waits` |
//! | Does a queue's thread share its client's CPU, or poll on another? | `affinity` |
//! | Does direct I/O go through the queue's own ring, or to the device's thread? | `client_depth` |
//! | Are idle CPUs kept awake? | `cpu_latency` |
//! | How soon does a thread run after it wakes on a busy CPU? | `slice` |
//! | Which files will be read after a directory was listed? | `listed_files` |
//! | Which CPUs and queues are there? | `cpus` |
//!
//! [`limits`] has every constant. [`QueuePolicy`] puts the answers for one queue of io_uring together.
//!
//! Not responsible for: rings, replies, what a request means. Nothing here does I/O on an image, and a wrong answer costs
//! time, never correctness.

pub(crate) mod affinity;
pub(crate) mod client_depth;
pub(crate) mod cpu_latency;
pub(crate) mod cpus;
pub(crate) mod limits;
pub(crate) mod listed_files;
mod queue;
mod slice;
pub(crate) mod slow_kinds;
pub(crate) mod waits;

pub(crate) use queue::{QueuePolicy, helper_entries};
pub use slice::request_short_slices;
