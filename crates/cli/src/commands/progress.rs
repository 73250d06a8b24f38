//! Progress on a terminal: how far a command is, and how long it will still take.

use blockwright_check::ProgressFn;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

/// Whether what is going on shall stop.
pub type Stops = Box<dyn Fn() -> bool + Send + Sync>;

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

/// Shows which phase of a walk over a volume a command is in, and how far that phase is.
#[derive(Clone)]
pub struct PhaseBar(Option<ProgressBar>);

impl PhaseBar {
    /// A bar that begins with `verb`, unless `quiet`.
    pub fn new(verb: &str, quiet: bool) -> Self {
        let template = format!("{verb} {{msg:11}} [{{bar:40}}] {{percent}}% {{eta}}");
        PhaseBar(shown(quiet, None, &template))
    }

    /// Shows a phase and how far it is. The time that is left is that of the phase, which may come again.
    pub fn show(&self, phase: &'static str, done: u64, total: u64) {
        let Some(bar) = &self.0 else { return };
        if bar.message() != phase || done < bar.position() {
            bar.reset();
            bar.set_message(phase);
        }
        bar.set_length(total);
        bar.set_position(done);
    }

    /// What a check calls. It is stopped when `stops` says so.
    pub fn progress(&self, stops: Option<Stops>) -> Option<ProgressFn> {
        if self.0.is_none() && stops.is_none() {
            return None;
        }
        let bar = self.clone();
        Some(Arc::new(move |progress| {
            bar.show(progress.phase.name(), progress.done, progress.total);
            match stops.as_ref().is_some_and(|stops| stops()) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
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
