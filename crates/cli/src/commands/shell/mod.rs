//! `shell`: commands on one image, from a prompt or a script.
//!
//! Each line becomes one of the program's own commands, in a process of its own. So a line does exactly what the command
//! does, behind the same sandbox, and an interrupted or failed command does not end the shell. Each command opens the
//! image, and closes it before the next prompt: nothing waits in memory to be written.
//!
//! Not responsible for: reading images, pipes and variables.

mod children;
mod completion;
mod edit;
mod history;
mod lines;
mod listing;
mod terminal;
mod verbs;
mod words;

use crate::args::ShellArgs;
use crate::failure::{At, Failure, Result, print, warn};
use children::{Children, ends_prompt, status_of};
use listing::Listing;
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use terminal::{Prompt, Typed};
use verbs::{Part, VERBS, Verb};
use words::{Word, absolute, normalised};

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
    children: Rc<Children>,
    status: u8,
}

/// Runs `shell`.
///
/// # Errors
/// With the status of the command that ended the shell.
pub fn shell(args: &ShellArgs) -> Result<()> {
    let program = std::env::current_exe()?;
    let interactive = args.commands.is_empty() && std::io::stdin().is_terminal();
    let children = Rc::new(Children::new(args.commands.is_empty() && !interactive));
    let listing = Listing::new(
        program,
        options(),
        args.image.clone(),
        crate::devices::overlay().map(Path::to_owned),
        args.write,
        children.clone(),
    );
    let mut shell = Shell {
        listing: Rc::new(listing),
        directory: Rc::new(RefCell::new("/".to_owned())),
        previous: "/".to_owned(),
        write: args.write,
        children,
        status: 0,
    };
    // An image that cannot be opened is told at once.
    let mut root = shell.listing.reader();
    root.args(["stat", "--json"])
        .arg(shell.listing.operand("/"));
    shell.children.succeed(root.stdout(Stdio::null()))?;
    let status = if interactive {
        shell.prompt(args)?
    } else if args.commands.is_empty() {
        let mut stdin = std::io::stdin().lock();
        shell.script(|| lines::next(&mut stdin), args.keep_going)?
    } else {
        let mut commands = args.commands.iter().map(|line| Ok(line.clone()));
        shell.script(|| Ok(commands.next()), args.keep_going)?
    };
    match status {
        0 => Ok(()),
        code => Err(Failure::said(code)),
    }
}

/// What the user told this process about opening images, without the overlay.
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
    if crate::wall::allow_backing() {
        out.push("--allow-backing".into());
    }
    out
}

impl Shell {
    /// Commands of a script. The first that fails ends it, unless `keep_going`; so does a signal that came during a command.
    fn script(
        &mut self,
        mut next: impl FnMut() -> Result<Option<Result<String>>>,
        keep_going: bool,
    ) -> Result<u8> {
        let mut failed = 0;
        for n in 1.. {
            let place = format!("line {n}");
            let Some(line) = next().at(&place)? else {
                break;
            };
            let result = line.at(&place).and_then(|line| self.line(&line));
            if let Some(signal) = self.children.take_signal() {
                if let Err(e) = result {
                    print(&e.at(&place));
                }
                return Ok(status_of(signal));
            }
            match result {
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

    /// Commands from a terminal, until its end.
    fn prompt(&mut self, args: &ShellArgs) -> Result<u8> {
        let name = Path::new(&args.image).file_name().unwrap_or(&args.image);
        let name = name.to_string_lossy().into_owned();
        let end = if self.write { '#' } else { '>' };
        let mut prompt = Prompt::new(
            self.listing.clone(),
            self.directory.clone(),
            self.write,
            args.history.as_deref(),
        )?;
        loop {
            let place = format!("{name}:{}{end} ", self.directory.borrow());
            let result = match prompt.line(&crate::text::printable(&place))? {
                Typed::Line(line) => self.line(&line),
                Typed::Wrong(e) => Err(e),
                Typed::Dropped => Ok(Done::Go),
                Typed::End => return Ok(self.status),
                Typed::Signal(signal) => return Ok(status_of(signal)),
            };
            let signal = self.children.take_signal();
            if let Some(signal) = signal.filter(|s| ends_prompt(*s)) {
                if let Err(e) = result {
                    print(&e);
                }
                return Ok(status_of(signal));
            }
            if signal.is_some() {
                prompt.drop_pasted();
            }
            match result {
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
            "edit" => edit::edit(&self.listing, &self.children, &self.path(words, "edit")?)?,
            _ => {
                let mut command = match verb.writes {
                    true => self.listing.writer(),
                    false => self.listing.reader(),
                };
                command.args(verb.command);
                for part in parts {
                    match part {
                        Part::Text(text) => drop(command.arg(text)),
                        Part::Local(path) => {
                            if verb.name == "put" && path == "-" && self.children.input_is_script()
                            {
                                let what =
                                    "standard input holds the commands; with -c it can be copied";
                                return Err(Failure::usage(what).at("put -"));
                            }
                            command.arg(path);
                        }
                        Part::Here => {
                            command.arg(self.listing.operand(&self.directory.borrow()));
                        }
                        Part::Image => drop(command.arg(self.listing.image())),
                        Part::Path(word) => {
                            for path in self.paths(&word)? {
                                command.arg(self.listing.operand(&path));
                            }
                        }
                    }
                }
                self.children.succeed(&mut command)?;
            }
        }
        Ok(Done::Go)
    }

    /// The paths that a word means.
    fn paths(&self, word: &Word) -> Result<Vec<String>> {
        if word.text.is_empty() {
            return Err(Failure::usage("a path is empty"));
        }
        let directory = self.directory.borrow();
        let Some(pattern) = &word.pattern else {
            return Ok(vec![absolute(&directory, &word.text)]);
        };
        let paths = self.listing.expand(&directory, pattern);
        // Some directories were not listed.
        if self.children.is_interrupted() {
            return Err(Failure::interrupted());
        }
        paths
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
        // The path as it was given must be one, and so must what it is by text.
        let directory = normalised(&path);
        let mut command = self.listing.reader();
        command.args(["stat", "--json"]).stdout(Stdio::null());
        let twice = path.trim_end_matches('/') == directory.trim_end_matches('/');
        for path in [path.as_str(), &directory].iter().skip(usize::from(twice)) {
            // A path that ends with a slash must be that of a directory.
            let path = format!("{}/", path.trim_end_matches('/'));
            command.arg(self.listing.operand(&path));
        }
        self.children.succeed(&mut command)?;
        self.previous = self.directory.replace(directory);
        Ok(())
    }
}
