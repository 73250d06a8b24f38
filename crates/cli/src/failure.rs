//! What a command reports when it fails: one sentence with its place, and the exit code.

use crate::exit;
use std::fmt;
use std::io;
use std::path::Path;

/// Shorthand for results of commands.
pub type Result<T> = std::result::Result<T, Failure>;

/// A failure for people.
#[derive(Debug)]
pub struct Failure {
    place: Option<String>,
    what: String,
    code: u8,
    /// Nothing is to be printed: it was said already, or the reader of our output has gone.
    silent: bool,
    /// The rest of the command's work fails, too.
    hopeless: bool,
}

impl Failure {
    /// A failure with a sentence.
    pub fn new(what: impl fmt::Display) -> Self {
        Failure {
            place: None,
            what: without_number(&what.to_string()),
            code: exit::FAILURE,
            silent: false,
            hopeless: false,
        }
    }

    /// Arguments that contradict each other or are invalid.
    pub fn usage(what: impl fmt::Display) -> Self {
        Failure {
            code: exit::USAGE,
            ..Failure::new(what)
        }
    }

    /// A signal ends the command. What it leaves was said.
    pub fn interrupted() -> Self {
        Failure {
            hopeless: true,
            ..Failure::said(exit::INTERRUPTED)
        }
    }

    /// Whether a signal ends the command.
    pub fn is_interrupted(&self) -> bool {
        self.hopeless && self.silent
    }

    /// Everything was said already.
    pub fn said(code: u8) -> Self {
        Failure {
            code,
            silent: true,
            ..Failure::new("")
        }
    }

    /// Names the file concerned, unless that was done closer to the cause.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.place.get_or_insert_with(|| place.to_string());
        self
    }

    /// Says in which image the place is, if it is a path of one.
    #[must_use]
    pub fn within(mut self, image: &Path) -> Self {
        if let Some(place) = self.place.as_mut().filter(|place| place.starts_with('/')) {
            *place = format!("{}:{place}", image.display());
        }
        self
    }

    /// And this.
    #[must_use]
    pub fn and(mut self, more: &str) -> Self {
        self.what = format!("{}; {more}", self.what);
        self
    }

    /// With this exit code.
    #[must_use]
    pub fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// The exit code.
    pub fn exit_code(&self) -> u8 {
        self.code
    }

    /// Whether there is nothing to print, and no point in going on.
    pub fn is_silent(&self) -> bool {
        self.silent
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// Errors of the host, and of writing to standard output. When the reader of standard output has gone, nothing is printed.
impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        if e.kind() == io::ErrorKind::BrokenPipe {
            return Failure::said(exit::BROKEN_PIPE);
        }
        Failure::new(lower_first(e.to_string()))
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(e: rustix::io::Errno) -> Self {
        io::Error::from(e).into()
    }
}

/// Errors of a volume. Where the operation and the inode say nothing that the place does not, only the
/// reason is given.
impl From<blockwright_vfs::Error> for Failure {
    fn from(e: blockwright_vfs::Error) -> Self {
        use blockwright_vfs::ErrorKind as K;
        match e.kind() {
            kind @ (K::NotFound
            | K::Exists
            | K::NotDirectory
            | K::IsDirectory
            | K::NotEmpty
            | K::NoSpace
            | K::NameTooLong
            | K::TooManyLinks
            | K::NoAttribute
            | K::TooManySymlinks) => Failure::new(kind),
            kind => {
                let hopeless = kind == K::Poisoned;
                let full = "the host's disk is full, and the image cannot grow";
                let told = match e.host_is_full() {
                    true => Failure::new(format_args!("{full} ({e})")),
                    false => Failure::new(e),
                };
                Failure { hopeless, ..told }
            }
        }
    }
}

/// Errors of the library name their path themselves when they know it.
impl From<blockwright::Error> for Failure {
    fn from(e: blockwright::Error) -> Self {
        let host = std::error::Error::source(&e).and_then(|s| s.downcast_ref::<io::Error>());
        if host.is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
            return Failure::said(exit::BROKEN_PIPE);
        }
        let path = e.path().map(|path| path.display().to_string());
        let failure = match e.as_volume() {
            Some(volume) => Failure::from(volume.clone()),
            None => {
                let text = e.to_string();
                let prefix = path
                    .as_ref()
                    .map_or(String::new(), |path| format!("{path}: "));
                let what = text.strip_prefix(&prefix).unwrap_or(&text);
                let what = what.trim_start_matches("device open: ");
                Failure::new(lower_first(what.to_owned()))
            }
        };
        match path {
            Some(path) => failure.at(path),
            None => failure,
        }
    }
}

/// A text without the "(os error 2)" that Rust puts behind the system's sentences. Those begin with a capital; ours follow a colon and do not.
fn without_number(text: &str) -> String {
    const MARK: &str = " (os error ";
    let mut rest = text;
    let mut clean = String::with_capacity(text.len());
    while let Some(at) = rest.find(MARK) {
        let (before, sentence) = match rest[..at].rfind(": ") {
            Some(colon) => rest[..at].split_at(colon + 2),
            None => ("", &rest[..at]),
        };
        clean.push_str(before);
        clean.push_str(&lower_first(sentence.to_owned()));
        let tail = &rest[at + MARK.len()..];
        rest = tail.split_once(')').map_or("", |(_, after)| after);
    }
    clean.push_str(rest);
    clean
}

impl From<blockwright_device::DeviceError> for Failure {
    fn from(e: blockwright_device::DeviceError) -> Self {
        match e.kind {
            blockwright_device::DeviceErrorKind::Os(errno) if e.op == "open" => {
                io::Error::from_raw_os_error(errno).into()
            }
            blockwright_device::DeviceErrorKind::Unsupported if e.op == "open" => {
                Failure::new("neither a regular file nor a block device")
            }
            _ => Failure::new(e.to_string().trim_start_matches("device open: ")),
        }
    }
}

fn lower_first(mut text: String) -> String {
    let mut chars = text.chars();
    // An abbreviation (RPC, I/O) stays.
    if let (Some(first), Some(second)) = (chars.next(), chars.next())
        && first.is_ascii_uppercase()
        && second.is_ascii_lowercase()
    {
        text[..1].make_ascii_lowercase();
    }
    text
}

/// Names the place of an error.
pub trait At<T> {
    /// The result with its error placed.
    fn at(self, place: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<Failure>> At<T> for std::result::Result<T, E> {
    fn at(self, place: impl fmt::Display) -> Result<T> {
        self.map_err(|e| e.into().at(place))
    }
}

/// Collects the failures of a command that continues with its other operands, as coreutils do.
#[derive(Default)]
pub struct Tally {
    failed: bool,
}

impl Tally {
    /// Prints a failure and remembers that there was one.
    ///
    /// # Errors
    /// Failures after which the command cannot continue.
    pub fn note<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(e) if e.hopeless || e.is_silent() && e.exit_code() == exit::BROKEN_PIPE => Err(e),
            Err(e) => {
                self.failed = true;
                print(&e);
                Ok(None)
            }
        }
    }

    /// The command's result.
    ///
    /// # Errors
    /// When anything failed.
    pub fn finish(self) -> Result<()> {
        if self.failed {
            Err(Failure::said(exit::FAILURE))
        } else {
            Ok(())
        }
    }
}

/// Prints a failure to standard error.
pub fn print(failure: &Failure) {
    if !failure.is_silent() {
        warn(failure);
    }
}

/// Prints a message to standard error. Nothing can be done when that fails.
pub fn warn(what: impl fmt::Display) {
    use io::{IsTerminal, Write};
    let mut text = what.to_string();
    if io::stderr().is_terminal() && text.contains(|c: char| c.is_control() && c != '\n') {
        // Names come from images, and could fool a terminal.
        text = text
            .split('\n')
            .map(crate::text::printable)
            .collect::<Vec<_>>()
            .join("\n");
    }
    // A bar is drawn again below the message.
    crate::commands::progress::aside(|| {
        let _ = writeln!(io::stderr().lock(), "blockwright: {text}");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_of_the_system_are_ours() {
        let said = |text: &str| Failure::new(text).to_string();
        assert_eq!(
            said("cannot unmount: Device or resource busy (os error 16)"),
            "cannot unmount: device or resource busy"
        );
        assert_eq!(said("a: I/O error (os error 5); b"), "a: I/O error; b");
        assert_eq!(said("Kept: as it is (really)"), "Kept: as it is (really)");
    }
}
