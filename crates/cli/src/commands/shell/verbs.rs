//! The shell's commands, and what they are as commands of the program.

use super::words::Word;

/// What the words of a command are that are no options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Paths of the image; at least one.
    Paths,
    /// Paths of the image; without one, the current directory.
    PathsOrHere,
    /// A text, then paths of the image.
    TextAndPaths,
    /// `ln`: a target, which is a text with `-s`, and a path.
    Link,
    /// Paths of the image, then one of the host; a single path is copied to the host's current directory.
    Get,
    /// Paths of the host, then one of the image; a single path is copied to the current directory.
    Put,
    /// The image itself.
    Image,
    /// Done by the shell.
    Own,
}

/// A command.
#[derive(Debug)]
pub struct Verb {
    /// Its name.
    pub name: &'static str,
    /// The program's command, and the options that it always gets.
    pub command: &'static [&'static str],
    /// Whether it changes the image.
    pub writes: bool,
    /// What its words are.
    pub shape: Shape,
    /// Options whose value is the next word.
    pub valued: &'static [&'static str],
    /// Its words, for help.
    pub usage: &'static str,
    /// What it does, for help.
    pub about: &'static str,
}

macro_rules! verbs {
    ($($name:literal $command:expr, $writes:literal, $shape:ident, $valued:expr, $usage:literal, $about:literal;)*) => {
        &[$(Verb {
            name: $name,
            command: &$command,
            writes: $writes,
            shape: Shape::$shape,
            valued: &$valued,
            usage: $usage,
            about: $about,
        }),*]
    };
}

/// All commands, in the order of the help.
pub const VERBS: &[Verb] = verbs! {
    "ls" ["ls"], false, PathsOrHere, [], "[-la…] [PATH…]", "list directories";
    "cd" [], false, Own, [], "[PATH | -]", "change the current directory";
    "pwd" [], false, Own, [], "", "print the current directory";
    "tree" ["tree"], false, PathsOrHere, ["-L", "--depth"], "[-L LEVELS] [PATH]", "list a directory and all below it";
    "find" ["find"], false, PathsOrHere, ["-name", "--name", "-type", "--type", "-maxdepth", "--max-depth"], "[PATH…] [-name PATTERN] [-type f|d|l]", "print the paths of files";
    "cat" ["cat"], false, Paths, [], "PATH…", "print files";
    "stat" ["stat"], false, PathsOrHere, [], "[PATH…]", "show what inodes hold";
    "du" ["du"], false, PathsOrHere, [], "[-sh] [PATH…]", "show the space that files take";
    "df" ["df"], false, Image, [], "", "show how full the volume is";
    "info" ["info"], false, Image, [], "", "show features, sizes and state";
    "get" ["cp", "-r", "--local=to"], false, Get, ["--owner"], "PATH… [LOCAL]", "copy files to the host";
    "put" ["cp", "-r", "--local=from"], true, Put, ["--owner"], "LOCAL… [PATH]", "copy files of the host into the image";
    "edit" [], true, Own, [], "PATH", "edit a file with $VISUAL or $EDITOR";
    "cp" ["cp"], true, Paths, ["--owner"], "[-ra] PATH… PATH", "copy files inside the image";
    "mv" ["mv"], true, Paths, [], "PATH… PATH", "move files";
    "rm" ["rm"], true, Paths, [], "[-rf] PATH…", "remove files";
    "mkdir" ["mkdir"], true, Paths, ["-m", "--mode"], "[-p] PATH…", "make directories";
    "touch" ["touch"], true, Paths, ["-d", "--date"], "PATH…", "make empty files, or set times";
    "ln" ["ln"], true, Link, [], "[-s] TARGET PATH", "make hard or symbolic links";
    "chmod" ["chmod"], true, TextAndPaths, [], "[-R] MODE PATH…", "change permission bits";
    "chown" ["chown"], true, TextAndPaths, [], "[-R] UID:GID PATH…", "change owner and group";
    "help" [], false, Own, [], "[COMMAND]", "list the commands, or explain one";
    "exit" [], false, Own, [], "[STATUS]", "end the shell; also quit, or Ctrl-D";
};

/// The command of this name.
pub fn find(name: &str) -> Option<&'static Verb> {
    let name = if name == "quit" { "exit" } else { name };
    VERBS.iter().find(|verb| verb.name == name)
}

/// A word of a command, as what it is meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Passed on as it is: options, their values, texts.
    Text(String),
    /// A path of the host.
    Local(String),
    /// A path of the image.
    Path(Word),
    /// The current directory.
    Here,
    /// The image.
    Image,
}

/// What a word may be that is being typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// The name of a command.
    Verb,
    /// A path of the image.
    Image,
    /// A path of the image that `cd` takes.
    Directory,
    /// A path of the host.
    Host,
    /// A path of the image or of the host.
    Either,
    /// Nothing that is known.
    Nothing,
}

/// What a session decides when it starts, for all of its lines: what the image is, what lies over and beside it, and what guards the process that
/// reads it.
const OF_THE_SESSION: &[&str] = &[
    "--local",
    "--device",
    "--journal",
    "--overlay",
    "--allow-backing",
    "--sandbox",
];

impl Verb {
    /// Refuses an option that the session, or the verb itself, has decided. A line with `--overlay` would make a file of the host, and one
    /// with `--local` would take an operand for something else.
    fn refuse_decided(&self, option: &str) -> Result<(), String> {
        let name = option.split('=').next().unwrap_or(option);
        if OF_THE_SESSION.contains(&name) {
            return Err(format!("{name} is given when the shell is started"));
        }
        let own =
            |decided: &&str| decided.starts_with("--") && decided.split('=').next() == Some(name);
        if self.command.iter().any(own) {
            return Err(format!("{} sets {name} itself", self.name));
        }
        Ok(())
    }

    /// What a word may be that follows these, and begins like this.
    pub fn wanted(&self, before: &[Word], last: &Word) -> Wanted {
        let (mut operands, mut only_paths, mut value) = (0, false, false);
        let option = |text: &str| text.len() > 1 && text.starts_with('-');
        for word in before {
            let text = word.text.as_str();
            if std::mem::take(&mut value) {
                continue;
            }
            if !only_paths && text == "--" {
                only_paths = true;
            } else if !only_paths && option(text) && !self.is_mode(operands, text) {
                value = self.valued.contains(&text);
            } else {
                operands += 1;
            }
        }
        if value || !only_paths && last.text.starts_with('-') {
            return Wanted::Nothing;
        }
        match (self.shape, operands) {
            (Shape::Paths | Shape::PathsOrHere | Shape::Link, _) | (Shape::Get, 0) => Wanted::Image,
            (Shape::TextAndPaths, 1..) => Wanted::Image,
            (Shape::Put, 0) => Wanted::Host,
            (Shape::Get | Shape::Put, _) => Wanted::Either,
            (Shape::Own, 0) => match self.name {
                "cd" => Wanted::Directory,
                "edit" => Wanted::Image,
                "help" => Wanted::Verb,
                _ => Wanted::Nothing,
            },
            (Shape::TextAndPaths | Shape::Image | Shape::Own, _) => Wanted::Nothing,
        }
    }

    /// Whether a word is the mode of `chmod`, which may look like an option.
    fn is_mode(&self, operands: usize, text: &str) -> bool {
        self.name == "chmod" && operands == 0 && removes(text)
    }

    /// What each word is.
    ///
    /// # Errors
    /// When words are missing, or there are too many.
    pub fn parts(&self, words: &[Word]) -> Result<Vec<Part>, String> {
        let (mut parts, mut rest) = (Vec::new(), Vec::new());
        let mut words = words.iter();
        let mut symbolic = false;
        while let Some(word) = words.next() {
            let text = word.text.as_str();
            if text == "--" {
                // Paths are absolute, so nothing of them looks like an option.
                rest.extend(words.by_ref().cloned());
            } else if self.is_mode(rest.len(), text) {
                rest.push(word.clone());
            } else if text.len() > 1 && text.starts_with('-') && self.shape != Shape::Image {
                self.refuse_decided(text)?;
                symbolic |= text == "--symbolic" || !text.starts_with("--") && text.contains('s');
                parts.push(Part::Text(text.to_owned()));
                if self.valued.contains(&text) {
                    let value = words
                        .next()
                        .ok_or_else(|| format!("{text} needs a value"))?;
                    parts.push(Part::Text(value.text.clone()));
                }
            } else {
                rest.push(word.clone());
            }
        }
        let text = |word: Word| Part::Text(word.text);
        let few = || Err(format!("usage: {} {}", self.name, self.usage));
        match self.shape {
            Shape::Paths if rest.is_empty() => return few(),
            Shape::PathsOrHere if rest.is_empty() => parts.push(Part::Here),
            Shape::Paths | Shape::PathsOrHere => parts.extend(rest.into_iter().map(Part::Path)),
            Shape::TextAndPaths | Shape::Link => {
                if rest.len() < 2 {
                    return few();
                }
                let raw = self.shape == Shape::TextAndPaths || symbolic;
                let mut rest = rest.into_iter();
                let first = rest.next().unwrap_or_default();
                if raw {
                    parts.push(Part::Text("--".to_owned()));
                }
                parts.push(if raw { text(first) } else { Part::Path(first) });
                parts.extend(rest.map(Part::Path));
            }
            Shape::Get => {
                let to = match rest.len() {
                    0 => return few(),
                    1 => ".".to_owned(),
                    _ => rest.pop().unwrap_or_default().text,
                };
                parts.extend(rest.into_iter().map(Part::Path));
                parts.push(local(to)?);
            }
            Shape::Put => {
                let to = match rest.len() {
                    0 => return few(),
                    1 => Part::Here,
                    _ => Part::Path(rest.pop().unwrap_or_default()),
                };
                for word in rest {
                    parts.push(local(word.text)?);
                }
                parts.push(to);
            }
            Shape::Image if rest.is_empty() => parts.push(Part::Image),
            Shape::Image => return few(),
            Shape::Own => parts.extend(rest.into_iter().map(Part::Path)),
        }
        Ok(parts)
    }
}

/// A path of the host. `cp` is told that it is one; here it only must not look like an option.
fn local(path: String) -> Result<Part, String> {
    match path.as_str() {
        "" => Err("a path of the host is empty".to_owned()),
        "-" => Ok(Part::Local(path)),
        text if text.starts_with('-') => Ok(Part::Local(format!("./{path}"))),
        _ => Ok(Part::Local(path)),
    }
}

/// Whether a word is a mode that takes bits away, as `-x`, and not an option.
fn removes(text: &str) -> bool {
    let mode = text.strip_prefix('-').unwrap_or_default();
    !mode.is_empty() && mode.chars().all(|c| "rwxXstugo,+-=01234567".contains(c))
}

#[cfg(test)]
mod tests {
    use super::super::words::split;
    use super::*;

    fn parts(line: &str) -> Result<Vec<String>, String> {
        let words = split(line)?;
        let verb = find(&words[0].text).ok_or("no such command")?;
        let show = |part: Part| match part {
            Part::Text(text) => text,
            Part::Local(path) => format!("!{path}"),
            Part::Here => "@".to_owned(),
            Part::Path(word) => format!("@{}", word.text),
            Part::Image => "@@".to_owned(),
        };
        Ok(verb.parts(&words[1..])?.into_iter().map(show).collect())
    }

    #[test]
    fn what_is_typed_is_what_the_command_takes() {
        use Wanted::*;
        for (line, expected) in [
            ("ls ", Image),
            ("ls -l a b", Image),
            ("ls -", Nothing),
            ("ls -- -", Image),
            ("cd ", Directory),
            ("cd a b", Nothing),
            ("find -name ", Nothing),
            ("find -name x ", Image),
            ("chmod ", Nothing),
            ("chmod -x ", Image),
            ("chmod -R 644 ", Image),
            ("mkdir -m ", Nothing),
            ("get ", Image),
            ("get a ", Either),
            ("put ", Host),
            ("put a ", Either),
            ("edit ", Image),
            ("help l", Verb),
            ("df ", Nothing),
            ("exit ", Nothing),
        ] {
            let typed = super::super::words::beginning(line).unwrap();
            let (first, rest) = typed.before.split_first().unwrap();
            let verb = find(&first.text).unwrap();
            assert_eq!(verb.wanted(rest, &typed.last), expected, "{line}");
        }
    }

    /// A global option is the session's, unless it only reports more.
    #[test]
    fn no_global_option_is_forgotten() {
        use clap::CommandFactory;
        let program = crate::args::Cli::command();
        let global = program.get_arguments().filter(|a| a.is_global_set());
        let mut names: Vec<_> = global.filter_map(|a| a.get_long()).collect();
        names.retain(|name| *name != "verbose");
        assert!(!names.is_empty());
        for name in names {
            assert!(OF_THE_SESSION.contains(&&*format!("--{name}")), "{name}");
        }
    }

    #[test]
    fn words_are_what_the_command_says() {
        for (line, expected) in [
            ("ls", "@"),
            ("ls -la a b", "-la @a @b"),
            ("rm -- -f", "@-f"),
            ("mkdir -m 700 a", "-m 700 @a"),
            ("chmod 644 a b", "-- 644 @a @b"),
            ("chmod -R u-x a", "-R -- u-x @a"),
            ("chmod -x a", "-- -x @a"),
            ("chmod -R -rx,u+w a", "-R -- -rx,u+w @a"),
            ("ln -s ../x l", "-s -- ../x @l"),
            ("ln x l", "@x @l"),
            ("get a", "@a !."),
            ("get a b /tmp", "@a @b !/tmp"),
            ("get a x:/y", "@a !x:/y"),
            ("put l", "!l @"),
            ("put -- -l /d", "!./-l @/d"),
            ("put l /d", "!l @/d"),
            ("find -name '*.c' -type f /usr", "-name *.c -type f @/usr"),
            ("df", "@@"),
        ] {
            assert_eq!(parts(line).unwrap().join(" "), expected, "{line}");
        }
        for line in [
            "cat",
            "rm -r",
            "chmod 644",
            "ln -s a",
            "put",
            "put '' /d",
            "get a ''",
            "df x",
            "mkdir a -m",
            "ls --overlay=o",
            "ls --overlay o",
            "ls --journal=j",
            "cat --device=d a",
            "ls --sandbox=off",
            "ls --allow-backing",
            "get --local=from a",
            "put --local to l /d",
        ] {
            assert!(parts(line).is_err(), "{line}");
        }
    }
}
