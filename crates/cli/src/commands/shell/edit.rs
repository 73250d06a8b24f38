//! `edit`: a copy of a file on the host, which replaces the file's contents if it was changed.
//!
//! Nothing that was written is lost: the copy is kept when it cannot be put back, and it is not put back over a change that came meanwhile.

use super::children::Children;
use super::listing::Listing;
use crate::failure::{At, Failure, Result, warn};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A file of the image that is edited.
struct Edited<'a> {
    listing: &'a Listing,
    children: &'a Children,
    path: &'a str,
    operand: OsString,
}

/// Edits the file at an absolute path.
///
/// # Errors
/// When the file cannot be read, when the editor fails, and when the result cannot be put back.
pub fn edit(listing: &Listing, children: &Children, path: &str) -> Result<()> {
    let name = match path.rsplit('/').next() {
        None | Some("" | "." | "..") => {
            return Err(Failure::usage("a file is needed").at("edit"));
        }
        Some(name) => name,
    };
    let file = Edited {
        listing,
        children,
        path,
        operand: listing.operand(path),
    };
    // The editor sees one folder, and what was in the image before is in the other.
    let (scratch, taken) = (folder()?, folder()?);
    let copy = scratch.path().join(name);
    let before = taken.path().join("before");
    let is_new = file.is_absent()?;
    if is_new {
        File::create(&before).at(before.display())?;
    } else {
        file.get(&before)?;
    }
    std::fs::copy(&before, &copy).at(copy.display())?;
    if children.wait(&mut editor(&copy))? != 0 {
        if children.is_interrupted() {
            keep(scratch, name);
        }
        return Err(Failure::new("the editor failed; nothing was changed").at(path));
    }
    if same(&copy, &before)? {
        warn(format_args!("{path}: not changed"));
        return Ok(());
    }
    let put = file
        .unchanged(is_new, &before, &taken.path().join("now"))
        .and_then(|()| file.put(&copy));
    if put.is_err() {
        keep(scratch, name);
    }
    put
}

fn folder() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("blockwright-").tempdir()?)
}

/// Leaves the edited file on the host.
fn keep(scratch: TempDir, name: &str) {
    let kept: PathBuf = scratch.keep().join(name);
    warn(format_args!("the edited file is {}", kept.display()));
}

fn editor(copy: &Path) -> Command {
    let editor = ["VISUAL", "EDITOR"].iter().find_map(std::env::var_os);
    let mut script = editor.unwrap_or_else(|| "vi".into());
    script.push(" \"$1\"");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg("edit").arg(copy);
    command
}

/// Whether two files hold the same.
fn same(left: &Path, right: &Path) -> Result<bool> {
    let open = |path: &Path| File::open(path).map(BufReader::new).at(path.display());
    let (mut a, mut b) = (open(left)?, open(right)?);
    loop {
        let (x, y) = (
            a.fill_buf().at(left.display())?,
            b.fill_buf().at(right.display())?,
        );
        let both = x.len().min(y.len());
        if both == 0 {
            return Ok(x.len() == y.len());
        }
        if x[..both] != y[..both] {
            return Ok(false);
        }
        a.consume(both);
        b.consume(both);
    }
}

impl Edited<'_> {
    fn stat(&self) -> Command {
        let mut stat = self.listing.reader();
        stat.args(["stat", "--json"]).arg(&self.operand);
        stat.stdout(Stdio::null());
        stat
    }

    /// Whether there is no such file. Only the names in its directory tell: `stat` fails for other reasons, too, and the file is not new then.
    fn is_absent(&self) -> Result<bool> {
        if self.children.wait(self.stat().stderr(Stdio::null()))? == 0 {
            return Ok(false);
        }
        let (parent, name) = self.path.rsplit_once('/').unwrap_or(("", self.path));
        let parent = if parent.is_empty() { "/" } else { parent };
        self.listing.forget();
        if let Ok(names) = self.listing.names(parent)
            && !names.iter().any(|listed| listed == name)
        {
            return Ok(true);
        }
        // This time it says why.
        self.children.succeed(&mut self.stat())?;
        Ok(false)
    }

    fn get(&self, to: &Path) -> Result<()> {
        let mut cp = self.listing.reader();
        cp.args(["cp", "--local=to"]).arg(&self.operand).arg(to);
        self.children.succeed(&mut cp)
    }

    fn put(&self, from: &Path) -> Result<()> {
        let mut cp = self.listing.writer();
        cp.args(["cp", "--local=from"]).arg(from).arg(&self.operand);
        self.children.succeed(&mut cp)
    }

    /// Refuses a file that is no longer what was taken.
    fn unchanged(&self, was_new: bool, before: &Path, now: &Path) -> Result<()> {
        let changed = || Err(Failure::new("it was changed in the image meanwhile").at(self.path));
        if self.is_absent()? != was_new {
            return changed();
        }
        if !was_new {
            self.get(now)?;
            if !same(before, now)? {
                return changed();
            }
        }
        Ok(())
    }
}
