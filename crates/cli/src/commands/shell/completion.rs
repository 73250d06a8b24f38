//! Completion: what the word before the cursor may become.
//!
//! Names come from the image or the host as they are. One with control characters is not offered, because it could fool the terminal.
//!
//! Not responsible for: the terminal, and reading images.

use super::verbs::{self, VERBS, Wanted};
use super::words::{Beginning, beginning};
use crate::text::printable;

/// What a word may become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What is listed.
    pub shown: String,
    /// What takes the place of the word.
    pub word: String,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The name.
    pub name: String,
    /// More of a path can follow.
    pub directory: bool,
}

/// Where names come from. A directory that cannot be listed has none.
pub trait Names {
    /// The names in a directory of the image, which a path names that may be relative; with `only_directories` those that `cd` may take.
    fn of_image(&self, directory: &str, only_directories: bool) -> Vec<Name>;
    /// The names in a directory of the host; the current one if it is empty.
    fn of_host(&self, directory: &str) -> Vec<Name>;
}

/// What may follow in a line up to the cursor: where the word begins in it, in bytes, and what it may become. Commands that write are among it with `write`.
pub fn complete(line: &str, names: &impl Names, write: bool) -> (usize, Vec<Choice>) {
    let none = (line.len(), Vec::new());
    let Some(typed) = beginning(line) else {
        return none;
    };
    if typed.last.pattern.is_some() {
        return none;
    }
    let wanted = match typed.before.split_first() {
        None => Wanted::Verb,
        Some((first, rest)) => match verbs::find(&first.text) {
            Some(verb) if write || !verb.writes => verb.wanted(rest, &typed.last),
            _ => Wanted::Nothing,
        },
    };
    let text = typed.last.text.as_str();
    let split = match wanted {
        Wanted::Verb => 0,
        _ => text.rfind('/').map_or(0, |at| at + 1),
    };
    let (directory, begun) = text.split_at(split);
    let mut found = match wanted {
        Wanted::Verb => commands(write),
        Wanted::Image => names.of_image(directory, false),
        Wanted::Directory => names.of_image(directory, true),
        Wanted::Host => names.of_host(directory),
        Wanted::Either => {
            let mut both = names.of_image(directory, false);
            both.extend(names.of_host(directory));
            both
        }
        Wanted::Nothing => Vec::new(),
    };
    found.retain(|found| {
        let hidden = found.name.starts_with('.') && !begun.starts_with('.');
        found.name.starts_with(begun) && !hidden && printable(&found.name) == found.name
    });
    found.sort();
    found.dedup();
    (typed.start, choices(line, &typed, directory, begun, &found))
}

fn commands(write: bool) -> Vec<Name> {
    let verbs = VERBS.iter().filter(|verb| write || !verb.writes);
    let names = verbs.map(|verb| verb.name).chain(["quit"]);
    let name = |name: &str| Name {
        name: name.to_owned(),
        directory: false,
    };
    names.map(name).collect()
}

fn choices(
    line: &str,
    typed: &Beginning,
    directory: &str,
    begun: &str,
    found: &[Name],
) -> Vec<Choice> {
    let as_typed = &line[typed.start..];
    let word = |name: &str, whole: bool| {
        // It would be an option.
        let here = match directory.is_empty() && name.starts_with('-') {
            true => "./",
            false => "",
        };
        typed
            .quoting
            .write(&format!("{here}{directory}{name}"), whole)
    };
    let shown = |found: &Name| match found.directory {
        true => format!("{}/", found.name),
        false => found.name.clone(),
    };
    if let [found] = found {
        let name = shown(found);
        let mut word = word(&name, !found.directory);
        if !found.directory {
            word.push(' ');
        }
        return vec![Choice { shown: name, word }];
    }
    let common = common_beginning(found);
    if common.len() > begun.len() {
        return vec![Choice {
            shown: common.to_owned(),
            word: word(common, false),
        }];
    }
    // The word stays: what the names have in common is there.
    let choice = |found| Choice {
        shown: shown(found),
        word: as_typed.to_owned(),
    };
    found.iter().map(choice).collect()
}

/// What all names begin with.
fn common_beginning(found: &[Name]) -> &str {
    let mut names = found.iter().map(|found| found.name.as_str());
    let Some(first) = names.next() else {
        return "";
    };
    names.fold(first, |common, name| {
        let same = common.char_indices().zip(name.chars());
        let end = same.take_while(|((_, a), b)| a == b).last();
        &common[..end.map_or(0, |((at, c), _)| at + c.len_utf8())]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    fn listed(names: &[&str]) -> Vec<Name> {
        let name = |text: &&str| Name {
            name: text.trim_end_matches('/').to_owned(),
            directory: text.ends_with('/'),
        };
        names.iter().map(name).collect()
    }

    impl Names for Fixed {
        fn of_image(&self, directory: &str, only_directories: bool) -> Vec<Name> {
            let mut all = match directory {
                "" | "/" => listed(&[
                    "two words/",
                    "etc/",
                    "file",
                    "filter",
                    ".hidden",
                    "-dash",
                    "x y",
                    "x*y",
                    "ümlaut",
                    "übung",
                    "bad\u{1b}[31m",
                    "it's",
                ]),
                "two words/" => listed(&["one"]),
                _ => Vec::new(),
            };
            all.retain(|name| name.directory || !only_directories);
            all
        }

        fn of_host(&self, directory: &str) -> Vec<Name> {
            match directory {
                "" => listed(&["host file", "home/"]),
                _ => Vec::new(),
            }
        }
    }

    fn words(line: &str) -> Vec<String> {
        let (start, choices) = complete(line, &Fixed, true);
        let whole = |choice: Choice| format!("{}{}", &line[..start], choice.word);
        choices.into_iter().map(whole).collect()
    }

    #[test]
    fn one_name_is_written_so_that_it_is_one_word() {
        for (line, expected) in [
            ("hel", "help "),
            ("ls tw", "ls two\\ words/"),
            ("ls two\\ words/", "ls two\\ words/one "),
            ("ls 'tw", "ls 'two words/"),
            ("ls \"two words/", "ls \"two words/one\" "),
            ("ls /et", "ls /etc/"),
            ("ls .", "ls .hidden "),
            ("ls i", "ls it\\'s "),
            ("ls 'i", "ls it\\'s "),
            ("ls -- -d", "ls -- ./-dash "),
            ("cd e", "cd etc/"),
            ("put hos", "put host\\ file "),
            ("get file hos", "get file host\\ file "),
            ("put x et", "put x etc/"),
        ] {
            assert_eq!(words(line), [expected], "{line}");
        }
    }

    #[test]
    fn several_names_give_what_they_have_in_common() {
        assert_eq!(words("ls f"), ["ls fil"]);
        let (_, choices) = complete("ls fil", &Fixed, true);
        let shown: Vec<_> = choices.iter().map(|choice| choice.shown.as_str()).collect();
        assert_eq!(shown, ["file", "filter"]);
        // Not half of an escape, nor half of a character.
        assert_eq!(words("ls x"), ["ls x", "ls x"]);
        assert_eq!(words("ls ü"), ["ls ü", "ls ü"]);
        // Without a beginning, hidden names are left out, and names for the terminal always.
        let (_, choices) = complete("ls ", &Fixed, true);
        assert_eq!(choices.len(), 10);
        assert!(choices.iter().all(|choice| choice.word.is_empty()));
    }

    #[test]
    fn nothing_is_offered_that_the_line_cannot_take() {
        for line in [
            "ls f*",
            "ls -",
            "df ",
            "nonsense f",
            "ls # f",
            "chmod ",
            "ls bad",
        ] {
            assert_eq!(complete(line, &Fixed, true).1, [], "{line}");
        }
        assert_eq!(complete("rm f", &Fixed, false).1, []);
        assert_eq!(complete("mkd", &Fixed, false).1, []);
        assert_eq!(words("mkd"), ["mkdir "]);
        assert_eq!(words("cd f"), Vec::<String>::new());
    }
}
