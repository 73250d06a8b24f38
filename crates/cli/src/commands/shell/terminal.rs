//! The prompt: lines that a person types.
//!
//! On a terminal that can move its cursor, a line is edited, earlier ones come back, and Tab completes words. While a line is edited the
//! terminal is in another mode, and a signal that ends the shell gives it the mode of before.
//!
//! Not responsible for: what a line means.

use super::children::{ends_prompt, status_of};
use super::completion::{self, Name, Names};
use super::history::{History, LINE_BYTES_MAX, LINES_MAX};
use super::lines;
use super::listing::Listing;
use super::words::absolute;
use crate::failure::{Failure, Result, print};
use blockwright_fuse::{Event, SignalWatch};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the mode in which the terminal marks what is pasted.
const PASTE_MARKS_OFF: &[u8] = b"\x1b[?2004l";

/// What was typed.
pub enum Typed {
    /// A line.
    Line(String),
    /// A line that cannot be one.
    Wrong(Failure),
    /// Ctrl-C: the line is dropped.
    Dropped,
    /// Ctrl-D, or the end of the terminal.
    End,
    /// A signal that ends the shell.
    Signal(i32),
}

/// Where lines come from.
pub struct Prompt {
    /// `None` on a terminal that cannot move its cursor, which then edits the line itself.
    editor: Option<Editor<Words, MemHistory>>,
    /// Where lines are for later sessions, too.
    history: Option<History>,
    /// Lines that were pasted together with the last one.
    pasted: VecDeque<String>,
}

impl Prompt {
    /// A prompt for commands on an image, in the shell's current directory. `file`: where lines of earlier sessions are.
    ///
    /// # Errors
    /// Those of the terminal, and of the file.
    pub fn new(
        listing: Rc<Listing>,
        directory: Rc<RefCell<String>>,
        write: bool,
        file: Option<&Path>,
    ) -> Result<Self> {
        let mut history = None;
        let editor = match can_edit() {
            false => None,
            true => {
                let config = Config::builder()
                    .completion_type(CompletionType::List)
                    .history_ignore_space(true)
                    .max_history_size(LINES_MAX)
                    .map_err(broken)?
                    .build();
                let lines = MemHistory::with_config(&config);
                let mut editor = Editor::with_history(config, lines).map_err(broken)?;
                if let Some(path) = file {
                    let (opened, lines) = History::open(path)?;
                    for line in lines {
                        editor.add_history_entry(line).map_err(broken)?;
                    }
                    history = Some(opened);
                }
                editor.set_helper(Some(Words {
                    listing,
                    directory,
                    write,
                }));
                Some(editor)
            }
        };
        Ok(Prompt {
            editor,
            history,
            pasted: VecDeque::new(),
        })
    }

    /// The next line.
    ///
    /// # Errors
    /// When the terminal cannot be read or written.
    pub fn line(&mut self, prompt: &str) -> Result<Typed> {
        if let Some(line) = self.pasted.pop_front() {
            return Ok(Typed::Line(line));
        }
        let Some(editor) = &mut self.editor else {
            return plain(prompt);
        };
        let (read, signal) = guarded(|| editor.readline(prompt))?;
        if let Some(signal) = signal {
            return Ok(Typed::Signal(signal));
        }
        match read {
            Ok(text) => {
                let is_short = text.len() <= LINE_BYTES_MAX;
                let is_new = is_short && editor.add_history_entry(&*text).map_err(broken)?;
                if let Some(history) = self.history.take_if(|_| is_new) {
                    match history.add(&text) {
                        Ok(()) => self.history = Some(history),
                        // Told once; the session goes on without the file.
                        Err(e) => print(&e),
                    }
                }
                self.pasted = text.split('\n').map(str::to_owned).collect();
                Ok(Typed::Line(self.pasted.pop_front().unwrap_or_default()))
            }
            Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => Ok(Typed::Dropped),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(ReadlineError::Io(e)) if e.kind() == ErrorKind::InvalidData => {
                Ok(Typed::Wrong(Failure::new("the line is not UTF-8")))
            }
            Err(e) => Err(broken(e)),
        }
    }

    /// Drops the rest of what was pasted.
    pub fn drop_pasted(&mut self) {
        self.pasted.clear();
    }
}

fn can_edit() -> bool {
    let moves = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    moves && std::io::stdout().is_terminal()
}

/// A line that the terminal edits.
fn plain(prompt: &str) -> Result<Typed> {
    {
        let mut out = std::io::stdout().lock();
        out.write_all(prompt.as_bytes())?;
        out.flush()?;
    }
    // Not locked for longer: a command may read the terminal.
    match lines::next(&mut std::io::stdin().lock())? {
        Some(Ok(line)) => Ok(Typed::Line(line)),
        Some(Err(e)) => Ok(Typed::Wrong(e)),
        None => {
            let mut out = std::io::stdout().lock();
            out.write_all(b"\n")?;
            out.flush()?;
            Ok(Typed::End)
        }
    }
}

fn broken(e: ReadlineError) -> Failure {
    match e {
        ReadlineError::Io(e) => e.into(),
        e => Failure::new(e),
    }
}

/// Ends the thread that waits for signals.
struct Over<'a>(&'a AtomicBool, &'a Event);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.wake();
    }
}

/// Calls `read`, which changes the terminal's mode. A signal that ends the shell meanwhile ends the process, after the mode was put back; one that
/// comes at the end of `read` is returned.
fn guarded<T>(read: impl FnOnce() -> T) -> Result<(T, Option<i32>)> {
    let stdin = std::io::stdin();
    let mode = tcgetattr(&stdin).map_err(std::io::Error::from)?;
    let event = Event::new().map_err(Failure::new)?;
    let watch = SignalWatch::new(&event).map_err(Failure::new)?;
    let over = AtomicBool::new(false);
    let came = || watch.take_signal().filter(|signal| ends_prompt(*signal));
    let out = std::thread::scope(|scope| {
        std::thread::Builder::new().spawn_scoped(scope, || {
            while !over.load(Ordering::Acquire) {
                if let Some(signal) = came() {
                    // The shell ends in any case.
                    let _ = tcsetattr(&stdin, OptionalActions::Now, &mode);
                    let _ = rustix::io::write(std::io::stdout(), PASTE_MARKS_OFF);
                    std::process::exit(status_of(signal).into());
                }
                event.wait(None);
            }
        })?;
        // Also when `read` panics: the scope waits for the thread.
        let _over = Over(&over, &event);
        std::io::Result::Ok(read())
    })?;
    Ok((out, came()))
}

/// What completes words.
struct Words {
    listing: Rc<Listing>,
    directory: Rc<RefCell<String>>,
    write: bool,
}

impl Names for Words {
    fn of_image(&self, directory: &str, only_directories: bool) -> Vec<Name> {
        let path = absolute(&self.directory.borrow(), directory);
        let directories = self.listing.glance(&path, Some("d"));
        let others = match only_directories {
            // A link may lead to a directory.
            true => self.listing.glance(&path, Some("l")),
            false => self.listing.glance(&path, None),
        };
        let is_directory = |name: &String| directories.contains(name);
        let others: Vec<_> = others.into_iter().filter(|n| !is_directory(n)).collect();
        let name = |directory| move |name| Name { name, directory };
        let others = others.into_iter().map(name(false));
        directories
            .into_iter()
            .map(name(true))
            .chain(others)
            .collect()
    }

    fn of_host(&self, directory: &str) -> Vec<Name> {
        let path = match directory {
            "" => Path::new("."),
            path => Path::new(path),
        };
        let entries = path.read_dir().into_iter().flatten().flatten();
        let name = |entry: std::fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            let directory = entry.path().is_dir();
            Some(Name { name, directory })
        };
        entries.filter_map(name).collect()
    }
}

impl Completer for Words {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (start, choices) = completion::complete(&line[..pos], self, self.write);
        let pair = |choice: completion::Choice| Pair {
            display: choice.shown,
            replacement: choice.word,
        };
        Ok((start, choices.into_iter().map(pair).collect()))
    }
}

impl Helper for Words {}
impl Highlighter for Words {}
impl Validator for Words {}
impl Hinter for Words {
    type Hint = String;
}
