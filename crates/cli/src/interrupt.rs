//! SIGINT, SIGTERM and SIGHUP during a command that makes something: no half of it stays under its final name, or the command says which.
//!
//! A command that works in steps asks between them ([`Interrupts::check`]). Where the library does all in one call, a thread removes the new file and ends
//! the process ([`remove_output`]).
//!
//! One watch of signals exists in a process: a command uses one of the two.

use crate::failure::{Failure, Result, warn};
use blockwright_fuse::{Event, SignalWatch};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Signals that are noted, and acted on where the command asks. The same signal again ends the process at once.
#[derive(Default)]
pub struct Interrupts {
    watch: Mutex<Option<SignalWatch>>,
    came: AtomicBool,
}

impl Interrupts {
    /// Notes signals from now on.
    ///
    /// # Errors
    /// The host's.
    pub fn note() -> Result<Self> {
        let interrupts = Interrupts::default();
        interrupts.resume()?;
        Ok(interrupts)
    }

    fn watch(&self) -> MutexGuard<'_, Option<SignalWatch>> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a signal came.
    pub fn came(&self) -> bool {
        let now = self.watch().as_ref().is_some_and(SignalWatch::take);
        self.came.fetch_or(now, Ordering::Relaxed) || now
    }

    /// Lets the command go on.
    ///
    /// # Errors
    /// When a signal came: with the exit code, and nothing to print.
    pub fn check(&self) -> Result<()> {
        match self.came() {
            true => Err(Failure::interrupted()),
            false => Ok(()),
        }
    }

    /// Signals end the process at once from now on: the command waits for what may never come. Returns whether they were noted before.
    pub fn pause(&self) -> bool {
        let Some(watch) = self.watch().take() else {
            return false;
        };
        self.came.fetch_or(watch.end(), Ordering::Relaxed);
        true
    }

    /// Ends a pause.
    ///
    /// # Errors
    /// The host's.
    pub fn resume(&self) -> Result<()> {
        let event = Event::new().map_err(Failure::new)?;
        let watch = SignalWatch::first_only(&event).map_err(Failure::new)?;
        *self.watch() = Some(watch);
        Ok(())
    }
}

/// A new file that is removed when a signal ends the program, so that nothing is left that looks like a whole one.
#[derive(Default)]
pub struct NewOutput {
    /// Set by whichever is first: the command, which keeps the file, or the thread, which removes it.
    decided: Option<Arc<AtomicBool>>,
}

impl NewOutput {
    /// Whether a signal would remove the file.
    pub fn is_new(&self) -> bool {
        self.decided.is_some()
    }

    /// From now on the file stays: it is whole, or the command has dealt with its error.
    pub fn keep(self) {
        let Some(decided) = self.decided else { return };
        // Where the other thread was first, it ends the process in a moment.
        while decided.swap(true, Ordering::AcqRel) {
            std::thread::park();
        }
    }
}

/// Removes a new file when a signal ends the program, until it is [kept](NewOutput::keep).
///
/// # Errors
/// The host's.
pub fn remove_output(path: &Path) -> Result<NewOutput> {
    let decided = Arc::new(AtomicBool::new(false));
    let theirs = decided.clone();
    let event = Event::new().map_err(Failure::new)?;
    let watch = SignalWatch::new(&event).map_err(Failure::new)?;
    let path = path.to_owned();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            while !watch.take() {
                event.wait(None);
            }
            if !theirs.swap(true, Ordering::AcqRel) {
                let _ = std::fs::remove_file(&path);
                warn(format_args!(
                    "{}: interrupted; it was removed",
                    path.display()
                ));
            }
            std::process::exit(crate::exit::INTERRUPTED.into());
        })?;
    Ok(NewOutput {
        decided: Some(decided),
    })
}

/// As [`remove_output`], unless there is something at the path already: that is not this command's.
///
/// # Errors
/// The host's.
pub fn remove_new_output(path: &Path) -> Result<NewOutput> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(NewOutput::default()),
        Err(_) => remove_output(path),
    }
}

/// Whether writing to this path may wait for ever: a pipe or a device of the host.
pub fn may_wait(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
}
