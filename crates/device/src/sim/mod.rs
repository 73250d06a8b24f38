//! Simulated devices: storage in memory, and wrappers that record, fail, or cost time.

pub mod faulty;
pub mod memory;
pub mod modelled;
pub mod paced;
pub mod recording;
pub mod rng;
pub mod turns;
