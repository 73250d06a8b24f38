//! A wall around a process that reads an untrusted image.
//!
//! A parser that a hostile image has taken over can do what its process can. So a process gives up everything that it will not need, after
//! it has opened what it will need and **before it reads the first byte of the image**. In this order:
//!
//! 1. [`Wall::begin`], while the process has one thread, because ids, capabilities and Landlock belong to threads: no new privileges, no
//!    core dumps, few descriptors; root becomes `nobody`; Landlock takes away all paths but those of the [`Plan`]; the process is not
//!    dumpable, so no other process of the user traces it.
//! 2. The caller starts its threads and makes its rings. They inherit all that.
//! 3. [`Wall::seal`]: a seccomp filter on all threads. It lists the system calls that serving needs. Without paths in the plan
//!    no call that takes a path is among them, nor `socket`, `execve`, `ptrace`, `kill`, `io_uring_setup`, or a mapping that can be executed.
//!
//! Not responsible for rings: the code that makes one restricts it (`blockwright_device::host::restrict_ring`), since their operations pass the filter by.
//! After step 3 no further ring can be made.
//!
//! References: landlock(7), seccomp(2), capabilities(7), io_uring_register(2).

#![forbid(unsafe_code)]

mod calls;
mod filter;
mod ids;
mod paths;

use std::fmt;
use std::path::PathBuf;

/// What the user asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// As much as the kernel has.
    #[default]
    Auto,
    /// Nothing.
    Off,
    /// Everything, or an error.
    Require,
}

/// The resources that the process needs after it is confined.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// It serves a mount, and talks over sockets that it has.
    pub serves: bool,
    /// Read while its threads start, with all beneath. The filter closes these with all other paths.
    pub starting: Vec<PathBuf>,
    /// It works on the host's files beneath these paths. `None`: it opens nothing any more.
    pub host: Option<HostPaths>,
}

/// Files of the host that a confined process may reach.
#[derive(Clone, Debug, Default)]
pub struct HostPaths {
    /// Read, with all beneath.
    pub read: Vec<PathBuf>,
    /// Read, written, made and removed, with all beneath.
    pub write: Vec<PathBuf>,
}

/// Why a required wall does not stand.
#[derive(Debug)]
pub struct Missing {
    /// One sentence for each part.
    pub parts: Vec<String>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the sandbox is not complete: {}", self.parts.join("; "))
    }
}

impl std::error::Error for Missing {}

/// A wall that is being raised. See the crate's head.
#[derive(Debug)]
pub struct Wall {
    mode: Mode,
    plan: Plan,
    missing: Vec<String>,
    notes: Vec<String>,
}

impl Wall {
    /// The first part, for which the process must have one thread. `None` when no wall is wanted.
    ///
    /// # Errors
    /// What the host lacks, when all is required.
    pub fn begin(mode: Mode, plan: Plan) -> Result<Option<Self>, Missing> {
        if mode == Mode::Off {
            return Ok(None);
        }
        let mut wall = Wall {
            mode,
            plan,
            missing: Vec::new(),
            notes: Vec::new(),
        };
        // First what the rest depends on: without it neither Landlock nor seccomp is for users who are not root.
        let result = rustix::thread::set_no_new_privs(true);
        wall.note("no_new_privs", result);
        let result = ids::limit(&wall.plan);
        wall.note("limits", result);
        let result = ids::give_up_root(&wall.plan);
        wall.note("other ids", result);
        match paths::confine(wall.plan.host.as_ref(), &wall.plan.starting) {
            Ok(None) => {}
            Ok(Some(why)) if wall.plan.host.is_some() => wall.missing.push(why),
            // Nothing that takes a path is left in the filter: Landlock would be a second lock on the same door.
            Ok(Some(why)) => wall.notes.push(format!(
                "{why}; paths are closed by the list of system calls alone"
            )),
            Err(e) => wall.missing.push(format!("Landlock: {e}")),
        }
        // After the ids, whose change sets it, too.
        let undumpable = rustix::process::DumpableBehavior::NotDumpable;
        let result = rustix::process::set_dumpable_behavior(undumpable);
        wall.note("not dumpable", result);
        wall.complete()
    }

    /// The second part: the filter on all threads.
    ///
    /// # Errors
    /// What the host lacks, when all is required.
    pub fn seal(mut self) -> Result<Standing, Missing> {
        if let Err(e) = filter::apply(&self.plan) {
            self.missing.push(format!("seccomp: {e}"));
        }
        let wall = self.complete()?;
        Ok(wall.map_or_else(Standing::default, |wall| Standing {
            missing: wall.missing,
            notes: wall.notes,
        }))
    }

    fn note<E: fmt::Display>(&mut self, part: &str, result: Result<(), E>) {
        if let Err(e) = result {
            self.missing.push(format!("{part}: {e}"));
        }
    }

    fn complete(self) -> Result<Option<Self>, Missing> {
        if self.mode == Mode::Require && !self.missing.is_empty() {
            return Err(Missing {
                parts: self.missing,
            });
        }
        Ok(Some(self))
    }
}

/// A wall that stands.
#[derive(Debug, Default)]
pub struct Standing {
    /// What it lacks, one sentence each.
    pub missing: Vec<String>,
    /// What the kernel lacks, and what stands in for it.
    pub notes: Vec<String>,
}
