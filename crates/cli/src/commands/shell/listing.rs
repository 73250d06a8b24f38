//! Names in directories of the image, for patterns. They come from `ls`, in a process of its
//! own, so the shell itself never reads the image.

use super::words::absolute;
use crate::commands::find::patterns;
use crate::failure::{Failure, Result};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

/// Directories that are remembered.
const CACHED_MAX: usize = 64;
/// Paths that a pattern becomes at most.
const EXPANDED_MAX: usize = 100_000;

/// The image, as other processes of this program see it.
pub struct Listing {
    program: PathBuf,
    /// Options that every command gets.
    options: Vec<OsString>,
    image: OsString,
    cache: RefCell<HashMap<String, Rc<Vec<String>>>>,
}

impl Listing {
    /// An image that `program` opens with `options`.
    pub fn new(program: PathBuf, options: Vec<OsString>, image: OsString) -> Self {
        Listing {
            program,
            options,
            image,
            cache: RefCell::default(),
        }
    }

    /// The program with the options that every command gets.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.options);
        command
    }

    /// The image.
    pub fn image(&self) -> &OsStr {
        &self.image
    }

    /// A path of the image as an operand.
    pub fn operand(&self, path: &str) -> OsString {
        let mut operand = self.image.clone();
        operand.push(":");
        operand.push(path);
        operand
    }

    /// Something may have changed.
    pub fn forget(&self) {
        self.cache.borrow_mut().clear();
    }

    /// The names in a directory that are UTF-8, without `.` and `..`.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn names(&self, directory: &str) -> Result<Rc<Vec<String>>> {
        if let Some(names) = self.cache.borrow().get(directory) {
            return Ok(names.clone());
        }
        let slash = if directory.ends_with('/') { "" } else { "/" };
        let listed = self
            .command()
            .args(["ls", "-a"])
            .arg(self.operand(&format!("{directory}{slash}")))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()?;
        if !listed.status.success() {
            return Err(Failure::new("cannot be listed").at(directory));
        }
        let names = listed.stdout.split(|b| *b == b'\n');
        let names = names.filter_map(|name| String::from_utf8(name.to_vec()).ok());
        let names = names.filter(|name| !matches!(name.as_str(), "" | "." | ".."));
        let names = Rc::new(names.collect::<Vec<_>>());
        let mut cache = self.cache.borrow_mut();
        if cache.len() >= CACHED_MAX {
            cache.clear();
        }
        cache.insert(directory.to_owned(), names.clone());
        Ok(names)
    }

    /// The paths that a pattern means, sorted.
    ///
    /// # Errors
    /// A pattern that is none, that matches nothing, or very much.
    pub fn expand(&self, directory: &str, pattern: &str) -> Result<Vec<String>> {
        let start = if pattern.starts_with('/') {
            "/"
        } else {
            directory
        };
        let mut paths = vec![absolute(start, "")];
        for part in pattern.split('/').filter(|part| !part.is_empty()) {
            let literal = unescaped(part);
            let mut next = Vec::new();
            for path in paths {
                match &literal {
                    // The path need not exist: the command says so.
                    Some(name) => next.push(absolute(&path, name)),
                    None => {
                        let glob = patterns(&[part.to_owned()])?;
                        let hidden = part.starts_with('.');
                        // Where there is no directory, nothing matches.
                        let names = self.names(&path).unwrap_or_default();
                        let matching = (names.iter())
                            .filter(|n| hidden || !n.starts_with('.'))
                            .filter(|n| glob.is_match(Path::new(n)));
                        next.extend(matching.map(|name| absolute(&path, name)));
                    }
                }
                if next.len() > EXPANDED_MAX {
                    let what = format!("matches more than {EXPANDED_MAX} paths");
                    return Err(Failure::new(what).at(pattern));
                }
            }
            paths = next;
        }
        if paths.is_empty() {
            return Err(Failure::new("nothing matches").at(pattern));
        }
        paths.sort();
        Ok(paths)
    }
}

/// A part of a pattern without wildcards, as a name.
fn unescaped(pattern: &str) -> Option<String> {
    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend(chars.next()),
            '*' | '?' | '[' => return None,
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_without_wildcards_are_names() {
        assert_eq!(unescaped(r"a\*b").as_deref(), Some("a*b"));
        assert_eq!(unescaped(".."), Some("..".to_owned()));
        assert_eq!(unescaped("a*"), None);
    }
}
