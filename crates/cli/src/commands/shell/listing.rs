//! Names in directories of the image, for patterns and for completion. They come from `find`, in a process of its
//! own, so the shell itself never reads the image.

use super::children::Children;
use super::words::absolute;
use crate::commands::find::patterns;
use crate::failure::{Failure, Result};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
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
    /// The file of changes.
    overlay: Option<PathBuf>,
    /// There are no changes yet: the first command that writes makes the file for them.
    unchanged: Cell<bool>,
    children: Rc<Children>,
    cache: RefCell<HashMap<String, Rc<Vec<String>>>>,
}

impl Listing {
    /// An image that `program` opens with `options`, and with the file of changes. For writing, that file need not be there.
    pub fn new(
        program: PathBuf,
        options: Vec<OsString>,
        image: OsString,
        overlay: Option<PathBuf>,
        write: bool,
        children: Rc<Children>,
    ) -> Self {
        let missing = |path: &PathBuf| path.symlink_metadata().is_err();
        Listing {
            program,
            options,
            image,
            unchanged: Cell::new(write && overlay.as_ref().is_some_and(missing)),
            overlay,
            children,
            cache: RefCell::default(),
        }
    }

    /// The program with the options that every command gets, for a command that only reads.
    pub fn reader(&self) -> Command {
        let there = |path: &PathBuf| path.symlink_metadata().is_ok();
        if self.unchanged.get() && self.overlay.as_ref().is_some_and(there) {
            self.unchanged.set(false);
        }
        if self.unchanged.get() {
            return self.bare();
        }
        self.writer()
    }

    /// The program with the options that every command gets, for a command that may write.
    pub fn writer(&self) -> Command {
        let mut command = self.bare();
        if let Some(overlay) = &self.overlay {
            command.arg("--overlay").arg(overlay);
        }
        command
    }

    fn bare(&self) -> Command {
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
        let (mut command, within) = self.find(directory);
        let listed = self.children.output(&mut command);
        let listed = listed.map_err(|_| Failure::new("cannot be listed").at(directory))?;
        let names = Rc::new(names_in(&listed, &within));
        let mut cache = self.cache.borrow_mut();
        if cache.len() >= CACHED_MAX {
            cache.clear();
        }
        cache.insert(directory.to_owned(), names.clone());
        Ok(names)
    }

    /// The names in a directory of files of this type (all without one), for a prompt that waits: none where they cannot be had soon.
    pub fn glance(&self, directory: &str, of_type: Option<&str>) -> Vec<String> {
        let (mut command, within) = self.find(directory);
        command.args(of_type.map(|letter| format!("--type={letter}")));
        let listed = self.children.glance(&mut command).unwrap_or_default();
        names_in(&listed, &within)
    }

    /// A command that prints what is in a directory, and what the paths begin with.
    fn find(&self, directory: &str) -> (Command, String) {
        let within = format!("{}/", directory.trim_end_matches('/'));
        let mut command = self.reader();
        command.args(["find", "--print0", "--max-depth=1"]);
        command.arg(self.operand(&within));
        (command, within)
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

/// The names in paths that end with NUL bytes and begin with `within`. The directory itself is one of the paths.
fn names_in(paths: &[u8], within: &str) -> Vec<String> {
    let paths = paths.split(|byte| *byte == 0);
    let names = paths.filter_map(|path| path.strip_prefix(within.as_bytes()));
    let names = names.filter(|name| !name.is_empty());
    names
        .filter_map(|name| String::from_utf8(name.to_vec()).ok())
        .collect()
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
    fn names_are_what_follows_the_directory() {
        let printed = b"/a/\0/a/b c\0/a/line\nend\0/a/\xff\0";
        assert_eq!(names_in(printed, "/a/"), ["b c", "line\nend"]);
        assert_eq!(names_in(b"/\0/x\0", "/"), ["x"]);
    }

    #[test]
    fn parts_without_wildcards_are_names() {
        assert_eq!(unescaped(r"a\*b").as_deref(), Some("a*b"));
        assert_eq!(unescaped(".."), Some("..".to_owned()));
        assert_eq!(unescaped("a*"), None);
    }
}
