//! `shell`: commands on one image, from a prompt or a script.
//!
//! Each line becomes one of the program's own commands, in a process of its own. So a line does exactly what the command
//! does, behind the same sandbox, and an interrupted or failed command does not end the shell. Each command opens the
//! image, and closes it before the next prompt: nothing waits in memory to be written.
//!
//! Not responsible for: reading images, pipes and variables.

mod listing;
mod verbs;
mod words;

use crate::args::ShellArgs;
use crate::exit;
use crate::failure::{At, Failure, Result, print, warn};
use blockwright_fuse::{Event, SignalWatch};
use listing::Listing;
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use verbs::{Part, VERBS, Verb};
use words::{Word, absolute};

/// The longest line of a script, in bytes.
const LINE_MAX: u64 = 1 << 20;

/// What a line did.
enum Done {
    /// The shell goes on.
    Go,
    /// The shell ends with this status.
    Exit(u8),
}

struct Shell {
    listing: Rc<Listing>,
    directory: Rc<RefCell<String>>,
    previous: String,
    write: bool,
    interactive: bool,
    status: u8,
}

/// Runs `shell`.
///
/// # Errors
/// With the status of the command that ended the shell.
pub fn shell(args: &ShellArgs) -> Result<()> {
    let program = std::env::current_exe()?;
    let listing = Listing::new(program, options(), args.image.clone());
    let mut shell = Shell {
        listing: Rc::new(listing),
        directory: Rc::new(RefCell::new("/".to_owned())),
        previous: "/".to_owned(),
        write: args.write,
        interactive: args.commands.is_empty() && std::io::stdin().is_terminal(),
        status: 0,
    };
    // An image that cannot be opened is told at once.
    let mut root = shell.listing.command();
    root.args(["stat", "--json"])
        .arg(shell.listing.operand("/"));
    match shell.wait(root.stdout(Stdio::null()))? {
        0 => {}
        code => return Err(Failure::said(code)),
    }
    let status = if shell.interactive {
        shell.prompt(args)?
    } else if args.commands.is_empty() {
        let stdin = std::io::stdin().lock();
        shell.script(lines(stdin), args.keep_going)?
    } else {
        let commands = args.commands.iter().map(|line| Ok(line.clone()));
        shell.script(commands, args.keep_going)?
    };
    match status {
        0 => Ok(()),
        code => Err(Failure::said(code)),
    }
}

/// What the user told this process about opening images.
fn options() -> Vec<OsString> {
    let mut out: Vec<OsString> = vec![format!("--sandbox={}", crate::wall::mode_name()).into()];
    let mut path = |name: &str, path: &Path| {
        out.push(name.into());
        out.push(path.into());
    };
    for device in crate::devices::more_devices() {
        path("--device", device);
    }
    if let Some(journal) = crate::devices::journal() {
        path("--journal", journal);
    }
    if let Some(overlay) = crate::devices::overlay() {
        path("--overlay", overlay);
    }
    if crate::wall::allow_backing() {
        out.push("--allow-backing".into());
    }
    out
}

/// Lines of a script, none longer than [`LINE_MAX`].
fn lines(mut from: impl BufRead) -> impl Iterator<Item = Result<String>> {
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        let mut limited = std::io::Read::take(&mut from, LINE_MAX);
        match limited.read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(n) if n as u64 == LINE_MAX => Some(Err(Failure::new("the line is too long"))),
            Ok(_) => {
                let line = String::from_utf8(line);
                Some(line.map_err(|_| Failure::new("the line is not UTF-8")))
            }
            Err(e) => Some(Err(e.into())),
        }
    })
}

impl Shell {
    /// Commands of a script. The first that fails ends it, unless `keep_going`.
    fn script(
        &mut self,
        lines: impl Iterator<Item = Result<String>>,
        keep_going: bool,
    ) -> Result<u8> {
        let mut failed = 0;
        for (n, line) in lines.enumerate() {
            let place = format!("line {}", n + 1);
            match line.at(&place).and_then(|line| self.line(&line)) {
                Ok(Done::Go) => {}
                Ok(Done::Exit(status)) => return Ok(status),
                Err(e) => {
                    let code = e.exit_code();
                    if e.is_silent() && !keep_going {
                        warn(format_args!("{place}: the command failed"));
                    }
                    print(&e.at(&place));
                    self.status = code;
                    if !keep_going {
                        return Ok(code);
                    }
                    failed = code;
                }
            }
        }
        Ok(failed)
    }

    /// Commands from a terminal, until its end. The terminal edits the line.
    fn prompt(&mut self, args: &ShellArgs) -> Result<u8> {
        let name = Path::new(&args.image).file_name().unwrap_or(&args.image);
        let name = name.to_string_lossy().into_owned();
        let end = if self.write { '#' } else { '>' };
        loop {
            let place = format!("{name}:{}{end} ", self.directory.borrow());
            {
                let mut out = std::io::stdout().lock();
                out.write_all(crate::text::printable(&place).as_bytes())?;
                out.flush()?;
            }
            // Not locked for longer: a command may read the terminal.
            let line = lines(std::io::stdin().lock()).next();
            let Some(line) = line else {
                println_end()?;
                return Ok(self.status);
            };
            match line.and_then(|line| self.line(&line)) {
                Ok(Done::Go) => {}
                Ok(Done::Exit(status)) => return Ok(status),
                Err(e) => {
                    self.status = e.exit_code();
                    print(&e);
                }
            }
        }
    }

    fn line(&mut self, line: &str) -> Result<Done> {
        let words = words::split(line.trim_end_matches(['\n', '\r'])).map_err(Failure::usage)?;
        let Some((first, rest)) = words.split_first() else {
            return Ok(Done::Go);
        };
        let verb = verbs::find(&first.text)
            .ok_or_else(|| Failure::usage("no such command; help lists them").at(&first.text))?;
        if verb.writes && !self.write {
            let what = "the image is open for reading; start the shell with -w to change it";
            return Err(Failure::usage(what).at(verb.name));
        }
        let result = self.run(verb, rest);
        self.listing.forget();
        if let Ok(Done::Go) = result {
            self.status = 0;
        }
        result
    }

    fn run(&mut self, verb: &Verb, words: &[Word]) -> Result<Done> {
        match verb.name {
            "exit" => return self.exit(words).map(Done::Exit),
            "pwd" => {
                let mut out = std::io::stdout().lock();
                writeln!(out, "{}", crate::text::printable(&self.directory.borrow()))?;
                return Ok(Done::Go);
            }
            "help" => return self.help(words),
            _ => {}
        }
        let parts = verb.parts(words).map_err(Failure::usage)?;
        match verb.name {
            "cd" => self.change_directory(words)?,
            "edit" => self.edit(words)?,
            _ => {
                let mut command = self.listing.command();
                command.args(verb.command);
                for part in parts {
                    match part {
                        Part::Text(text) => drop(command.arg(text)),
                        Part::Image => drop(command.arg(self.listing.image())),
                        Part::Path(word) => {
                            for path in self.paths(&word)? {
                                command.arg(self.listing.operand(&path));
                            }
                        }
                    }
                }
                self.succeed(&mut command)?;
            }
        }
        Ok(Done::Go)
    }

    /// The paths that a word means.
    fn paths(&self, word: &Word) -> Result<Vec<String>> {
        let directory = self.directory.borrow();
        match &word.pattern {
            Some(pattern) => self.listing.expand(&directory, pattern),
            None => Ok(vec![absolute(&directory, &word.text)]),
        }
    }

    /// The one path that a word means.
    fn path(&self, words: &[Word], verb: &str) -> Result<String> {
        let [word] = words else {
            return Err(Failure::usage("one path is needed").at(verb));
        };
        match self.paths(word)?.as_slice() {
            [path] => Ok(path.clone()),
            _ => Err(Failure::usage("several paths match").at(&word.text)),
        }
    }

    fn exit(&self, words: &[Word]) -> Result<u8> {
        match words {
            [] => Ok(self.status),
            [word] => word
                .text
                .parse()
                .map_err(|_| Failure::usage("a status is a number up to 255").at(&word.text)),
            _ => Err(Failure::usage("one status is enough").at("exit")),
        }
    }

    fn help(&self, words: &[Word]) -> Result<Done> {
        let mut out = std::io::stdout().lock();
        let Some(word) = words.first() else {
            for verb in VERBS {
                let left = format!("{} {}", verb.name, verb.usage);
                writeln!(out, "  {left:<44} {}", verb.about)?;
            }
            writeln!(
                out,
                "\nPaths of the image may have *, ? and [a-z]. Quotes and \\ take characters as they are."
            )?;
            return Ok(Done::Go);
        };
        let verb = verbs::find(&word.text)
            .ok_or_else(|| Failure::usage("no such command").at(&word.text))?;
        writeln!(out, "{} {}\n  {}", verb.name, verb.usage, verb.about)?;
        if let Some(command) = verb.command.first() {
            writeln!(out, "  Options: blockwright help {command}")?;
        }
        Ok(Done::Go)
    }

    fn change_directory(&mut self, words: &[Word]) -> Result<()> {
        let path = match words {
            [] => "/".to_owned(),
            [word] if word.text == "-" => self.previous.clone(),
            _ => self.path(words, "cd")?,
        };
        let path = match path.trim_end_matches('/') {
            "" => "/".to_owned(),
            path => path.to_owned(),
        };
        let mut command = self.listing.command();
        // A path that ends with a slash must be that of a directory.
        let slash = if path == "/" { "" } else { "/" };
        command
            .args(["stat", "--json"])
            .arg(self.listing.operand(&format!("{path}{slash}")))
            .stdout(Stdio::null());
        self.succeed(&mut command)?;
        self.previous = self.directory.replace(path);
        Ok(())
    }

    /// Edits a file: a copy of it on the host, which replaces its contents if it was changed.
    fn edit(&self, words: &[Word]) -> Result<()> {
        let path = self.path(words, "edit")?;
        let Some(name) = path.rsplit('/').next().filter(|name| !name.is_empty()) else {
            return Err(Failure::usage("a file is needed").at("edit"));
        };
        let operand = self.listing.operand(&path);
        let scratch = tempfile::Builder::new().prefix("blockwright-").tempdir()?;
        let copy = scratch.path().join(name);
        let exists = {
            let mut stat = self.listing.command();
            stat.args(["stat", "--json"]).arg(&operand);
            self.wait(stat.stdout(Stdio::null()).stderr(Stdio::null()))? == 0
        };
        if exists {
            let mut get = self.listing.command();
            self.succeed(get.arg("cp").arg(&operand).arg(&copy))?;
        } else {
            std::fs::write(&copy, b"").at(copy.display())?;
        }
        let before = std::fs::read(&copy).at(copy.display())?;
        let editor = ["VISUAL", "EDITOR"].iter().find_map(std::env::var_os);
        let mut script = editor.unwrap_or_else(|| "vi".into());
        script.push(" \"$1\"");
        let mut editor = Command::new("sh");
        editor.arg("-c").arg(script).arg("edit").arg(&copy);
        if self.wait(&mut editor)? != 0 {
            return Err(Failure::new("the editor failed; nothing was changed").at(&path));
        }
        let after = std::fs::read(&copy).at(copy.display())?;
        if after == before && (exists || after.is_empty()) {
            warn(format_args!("{path}: not changed"));
            return Ok(());
        }
        let mut put = self.listing.command();
        let put = self.succeed(put.arg("cp").arg(&copy).arg(&operand));
        if put.is_err() {
            // What was written there must not be lost.
            let kept = scratch.keep().join(name);
            warn(format_args!("the edited file is {}", kept.display()));
        }
        put
    }

    /// Runs a command to its end. A signal of the terminal is for it, not for the shell.
    fn wait(&self, command: &mut Command) -> Result<u8> {
        let event = Event::new().map_err(Failure::new)?;
        let _watch = SignalWatch::new(&event).map_err(Failure::new)?;
        if !self.interactive {
            // Standard input is the script.
            command.stdin(Stdio::null());
        }
        std::io::stdout().flush()?;
        let program = Path::new(command.get_program()).display().to_string();
        let status = command.status().at(program)?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(code.unwrap_or(exit::FAILURE))
    }

    /// Runs a command, whose failure it has told itself.
    fn succeed(&self, command: &mut Command) -> Result<()> {
        match self.wait(command)? {
            0 => Ok(()),
            code => Err(Failure::said(code)),
        }
    }
}

/// The user's shell goes on in a line of its own.
fn println_end() -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}
