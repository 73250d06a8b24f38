//! Runs the shell's commands to their end, each as a process of its own.
//!
//! While one runs, signals do not end the shell. SIGTERM and SIGHUP are passed on to it; SIGINT comes from the terminal, which sends it to the command
//! as well. Afterwards the shell asks which signal came ([`Children::take_signal`]).

use crate::exit;
use crate::failure::{At, Failure, Result};
use blockwright_fuse::{Event, SignalWatch};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a status above this means: ended by a signal.
const BY_SIGNAL: i32 = 128;
/// How long a command may take that the user did not ask for.
const GLANCE_MAX: Duration = Duration::from_secs(3);

/// How commands are run.
pub struct Children {
    /// Standard input is the script, so commands get none.
    input_is_script: bool,
    signal: Cell<Option<i32>>,
}

impl Children {
    /// With or without the shell's standard input.
    pub fn new(input_is_script: bool) -> Self {
        Children {
            input_is_script,
            signal: Cell::new(None),
        }
    }

    /// Whether standard input is the script.
    pub fn input_is_script(&self) -> bool {
        self.input_is_script
    }

    /// The signal that came while commands ran since this was last asked.
    pub fn take_signal(&self) -> Option<i32> {
        self.signal.take()
    }

    /// Whether a signal came that the shell has not acted on.
    pub fn is_interrupted(&self) -> bool {
        self.signal.get().is_some()
    }

    /// Runs a command to its end. The result is its exit code.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn wait(&self, command: &mut Command) -> Result<u8> {
        let event = Event::new().map_err(Failure::new)?;
        let watch = SignalWatch::new(&event).map_err(Failure::new)?;
        if self.input_is_script {
            command.stdin(Stdio::null());
        }
        std::io::stdout().flush()?;
        let program = Path::new(command.get_program()).display().to_string();
        let mut child = command.spawn().at(&program)?;
        let status = self.end(&mut child, &event, Some(&watch), None);
        let status = status.at(&program)?;
        let code = status.code().or(status.signal().map(|s| BY_SIGNAL + s));
        let code = code.and_then(|code| u8::try_from(code).ok());
        Ok(code.unwrap_or(exit::FAILURE))
    }

    /// What a command prints, which gets no input. Its messages are not shown.
    ///
    /// # Errors
    /// When it cannot be started, or fails.
    pub fn output(&self, command: &mut Command) -> Result<Vec<u8>> {
        let event = Event::new().map_err(Failure::new)?;
        let watch = SignalWatch::new(&event).map_err(Failure::new)?;
        self.collect(command, &event, Some(&watch), None)
    }

    /// As [`output`](Self::output), while a prompt waits, which watches signals itself. The command is ended when it takes long.
    ///
    /// # Errors
    /// As `output`.
    pub fn glance(&self, command: &mut Command) -> Result<Vec<u8>> {
        let event = Event::new().map_err(Failure::new)?;
        self.collect(
            command,
            &event,
            None,
            Instant::now().checked_add(GLANCE_MAX),
        )
    }

    fn collect(
        &self,
        command: &mut Command,
        event: &Event,
        watch: Option<&SignalWatch>,
        until: Option<Instant>,
    ) -> Result<Vec<u8>> {
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let pipe = child.stdout.take();
        let (status, printed) = std::thread::scope(|scope| {
            let reader = std::thread::Builder::new().spawn_scoped(scope, || {
                let mut printed = Vec::new();
                let read = pipe.map(|mut pipe| pipe.read_to_end(&mut printed));
                read.transpose().map(|_| printed)
            });
            let status = self.end(&mut child, event, watch, until);
            let printed = reader?.join();
            let printed = printed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            std::io::Result::Ok((status?, printed?))
        })?;
        match status.success() {
            true => Ok(printed),
            false => Err(Failure::said(exit::FAILURE)),
        }
    }

    /// Waits for a command, passes signals on to it, and ends it when it takes too long.
    fn end(
        &self,
        child: &mut Child,
        event: &Event,
        watch: Option<&SignalWatch>,
        until: Option<Instant>,
    ) -> std::io::Result<ExitStatus> {
        let pid = Pid::from_child(child);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, || {
                // It is not reaped here: its number stays its own while signals are passed on.
                let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                while matches!(waitid(WaitId::Pid(pid), how), Err(Errno::INTR)) {}
                ended.store(true, Ordering::Release);
                event.wake();
            });
            if let Err(e) = thread {
                child.kill()?;
                child.wait()?;
                return Err(e);
            }
            loop {
                let over = ended.load(Ordering::Acquire);
                if let Some(number) = watch.and_then(SignalWatch::take_signal) {
                    let signal = Signal::from_named_raw(number);
                    if let Some(signal) = signal.filter(|signal| *signal != Signal::INT) {
                        // It fails only for a process with other rights, which stays as it is.
                        let _ = kill_process(pid, signal);
                    }
                    // One that ends the shell is not forgotten for one that may not.
                    let before = self.signal.get().filter(|s| *s != Signal::INT.as_raw());
                    self.signal.set(before.or(Some(number)));
                }
                if over {
                    return child.wait();
                }
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                match left {
                    Some(Duration::ZERO) => {
                        child.kill()?;
                        event.wait(None);
                    }
                    left => event.wait(left),
                }
            }
        })
    }

    /// Runs a command, whose failure it has told itself.
    ///
    /// # Errors
    /// With the command's exit code.
    pub fn succeed(&self, command: &mut Command) -> Result<()> {
        match self.wait(command)? {
            0 => Ok(()),
            code => Err(Failure::said(code)),
        }
    }
}

/// The status of a shell that a signal ended, as sh has it.
pub fn status_of(signal: i32) -> u8 {
    u8::try_from(BY_SIGNAL + signal).unwrap_or(exit::FAILURE)
}

/// Whether a signal ends a prompt as well: SIGINT ends the command only.
pub fn ends_prompt(signal: i32) -> bool {
    signal != Signal::INT.as_raw()
}
