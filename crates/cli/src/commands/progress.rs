//! Progress on a terminal: how far a command is, and how long it will still take.

use crate::failure::Result;
use crate::interrupt::Interrupts;
use blockwright::reshape;
use blockwright_check::{Phase, ProgressFn};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

/// The bar that is on the terminal.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn remember(bar: Option<ProgressBar>) {
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Writes a message while no bar is on the terminal.
pub fn aside(write: impl FnOnce()) {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match shown {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// A bar on standard error, if that is a terminal.
fn shown(quiet: bool, total: Option<u64>, template: &str) -> Option<ProgressBar> {
    if quiet || !std::io::stderr().is_terminal() {
        return None;
    }
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    remember(Some(bar.clone()));
    Some(bar)
}

/// Shows how many bytes of all a command has done.
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar that ends at `total`, unless `quiet`.
    pub fn new(total: u64, quiet: bool) -> Self {
        let template = "[{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        Bar(shown(quiet, Some(total), template))
    }

    /// The command is so far.
    pub fn set(&self, at: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(at);
        }
    }

    /// Whether it is on a terminal: only then is it worth while to find out how much there is.
    pub fn is_shown(&self) -> bool {
        self.0.is_some()
    }

    /// There is so much more to do.
    pub fn expect(&self, more: u64) {
        if let Some(bar) = &self.0 {
            bar.inc_length(more);
        }
    }

    /// So much more is done.
    pub fn add(&self, more: u64) {
        if let Some(bar) = &self.0 {
            bar.inc(more);
        }
    }

    /// The command is done.
    pub fn finish(self) {
        drop(self);
    }
}

/// On a way out that is an error, too, nothing of it stays on the terminal.
impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
            remember(None);
        }
    }
}

/// Watches a change of a volume: a bar on a terminal, and a stop when a signal comes.
pub struct Change {
    bar: Option<ProgressBar>,
    interrupts: Arc<Interrupts>,
}

impl Change {
    /// Notes signals from now on.
    ///
    /// # Errors
    /// The host's.
    pub fn begin() -> Result<Self> {
        let template = "{msg:9} [{bar:40}] {percent}% {eta}";
        Ok(Change {
            bar: shown(false, None, template),
            interrupts: Arc::new(Interrupts::note()?),
        })
    }

    /// What the change calls.
    pub fn watch(&self) -> reshape::Watch {
        let (bar, interrupts) = (self.bar.clone(), Arc::clone(&self.interrupts));
        reshape::Watch::new(move |progress| {
            if let Some(bar) = &bar {
                let phase = match progress.phase {
                    reshape::Phase::Inodes => "inodes",
                    reshape::Phase::Numbers => "numbers",
                    reshape::Phase::Data => "data",
                    _ => "metadata",
                };
                if bar.message() != phase || progress.done < bar.position() {
                    // The time that is left is that of this phase.
                    bar.reset();
                    bar.set_message(phase);
                }
                bar.set_length(progress.total);
                bar.set_position(progress.done);
            }
            match interrupts.came() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
            remember(None);
        }
    }
}

/// Shows which phase of a walk over a volume a command is in, and how far that phase is.
pub struct PhaseBar(Option<ProgressBar>);

impl PhaseBar {
    /// A bar that begins with `verb`, unless `quiet`.
    pub fn new(verb: &str, quiet: bool) -> Self {
        let template = format!("{verb} {{msg:11}} [{{bar:40}}] {{percent}}% {{eta}}");
        PhaseBar(shown(quiet, None, &template))
    }

    /// What the walk calls.
    pub fn progress(&self) -> Option<ProgressFn> {
        let bar = self.0.clone()?;
        Some(Arc::new(move |progress| {
            let phase = match progress.phase {
                Phase::Volume => "volume",
                Phase::Inodes => "inodes",
                Phase::Directories => "directories",
                Phase::Links => "links",
                Phase::Bitmaps => "bitmaps",
            };
            if bar.message() != phase {
                // The time that is left is that of this phase.
                bar.reset();
                bar.set_message(phase);
            }
            bar.set_length(progress.total);
            bar.set_position(progress.done);
        }))
    }

    /// The walk has ended.
    pub fn finish(self) {
        if let Some(bar) = self.0 {
            bar.finish_and_clear();
            remember(None);
        }
    }
}
