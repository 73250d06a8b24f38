//! How long operations take on a machine that may stop the whole process meanwhile.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long writes took.
#[derive(Default, Debug)]
pub struct Took {
    pub longest: Duration,
    /// Without what the whole process was stopped for.
    pub longest_running: Duration,
    /// How many took longer than so much, without that.
    pub over_100_ms: u64,
    pub over_500_ms: u64,
    pub over_1_s: u64,
}

impl Took {
    pub fn note(&mut self, time: Duration, missed: impl FnOnce() -> Duration) {
        self.longest = self.longest.max(time);
        if time <= Duration::from_millis(100) {
            self.longest_running = self.longest_running.max(time);
            return;
        }
        let time = time.saturating_sub(missed());
        self.longest_running = self.longest_running.max(time);
        let over = |ms: u64| u64::from(time > Duration::from_millis(ms));
        self.over_100_ms += over(100);
        self.over_500_ms += over(500);
        self.over_1_s += over(1000);
    }
}

/// Notices when the machine, or this process, did not run: a thread that only reads the clock and shares no lock with another
/// one. When it did not run, no write could.
#[derive(Default)]
pub struct Heart {
    gaps: Mutex<Vec<(Instant, Duration)>>,
    stopped: AtomicBool,
}

impl Heart {
    const BEAT: Duration = Duration::from_millis(5);
    /// A loaded machine lets a thread wait so long now and then, but not all of them.
    const GAP: Duration = Duration::from_millis(200);

    pub fn start(heart: &Arc<Heart>) -> std::thread::JoinHandle<()> {
        let heart = Arc::clone(heart);
        std::thread::spawn(move || {
            let mut last = Instant::now();
            while !heart.stopped.load(Ordering::Relaxed) {
                std::thread::sleep(Heart::BEAT);
                let gap = last.elapsed();
                if gap > Heart::GAP {
                    heart.gaps.lock().expect("no panic").push((last, gap));
                }
                last += gap;
            }
        })
    }

    /// How much of a time fell into gaps.
    pub fn missed(&self, began: Instant, time: Duration) -> Duration {
        // A gap is known with the first beat behind it.
        std::thread::sleep(2 * Heart::BEAT);
        let gaps = self.gaps.lock().expect("no panic");
        let inside = gaps.iter().map(|(from, gap)| {
            let end = (*from + *gap).min(began + time);
            end.saturating_duration_since((*from).max(began))
        });
        inside.sum()
    }

    /// How many gaps there were, how long together, and the longest.
    pub fn stop(&self, beating: std::thread::JoinHandle<()>) -> (usize, Duration, Duration) {
        self.stopped.store(true, Ordering::Relaxed);
        beating.join().expect("a thread");
        let gaps = self.gaps.lock().expect("no panic");
        let all = gaps.iter().map(|(_, gap)| *gap);
        (gaps.len(), all.clone().sum(), all.max().unwrap_or_default())
    }
}
