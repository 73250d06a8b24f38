//! A progress bar on a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Shows how far a command is, when standard error is a terminal.
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar that ends at `total`, unless `quiet`.
    pub fn new(total: u64, quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        Bar(shown.then(|| {
            let bar = ProgressBar::new(total);
            let style = ProgressStyle::with_template(
                "[{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            );
            if let Ok(style) = style {
                bar.set_style(style.progress_chars("=> "));
            }
            bar
        }))
    }

    /// The command is so far.
    pub fn set(&self, at: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(at);
        }
    }

    /// The command is done.
    pub fn finish(self) {
        if let Some(bar) = self.0 {
            bar.finish_and_clear();
        }
    }
}
