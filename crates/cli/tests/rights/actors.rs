//! Threads that act with other credentials. Linux keeps credentials per thread, so each is a user of its own.

use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use std::sync::mpsc::{Sender, channel};

/// Owner and group of every file in the table.
pub const OWNER: u32 = 1001;
pub const GROUP: u32 = 2001;
const STRANGER: u32 = 1003;
const STRANGERS: u32 = 2003;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    Root,
    Owner,
    /// Owns the file, but is not in its group.
    OwnerElsewhere,
    Member,
    Other,
}

impl Who {
    pub const ALL: [Who; 5] = [
        Who::Root,
        Who::Owner,
        Who::OwnerElsewhere,
        Who::Member,
        Who::Other,
    ];

    pub fn ids(self) -> (u32, u32) {
        match self {
            Who::Root => (0, 0),
            Who::Owner => (OWNER, GROUP),
            Who::OwnerElsewhere => (OWNER, STRANGERS),
            Who::Member => (STRANGER, GROUP),
            Who::Other => (STRANGER, STRANGERS),
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// One thread for each [`Who`].
pub struct Actors(Vec<(Who, Sender<Job>)>);

impl Actors {
    pub fn new() -> Self {
        let start = |who: Who| {
            let (jobs, todo) = channel::<Job>();
            std::thread::spawn(move || {
                let (uid, gid) = who.ids();
                if uid != 0 {
                    set_thread_groups(&[]).expect("groups");
                    set_thread_gid(rustix::fs::Gid::from_raw(gid)).expect("a group");
                    set_thread_uid(rustix::fs::Uid::from_raw(uid)).expect("a user");
                }
                for job in todo {
                    job();
                }
            });
            (who, jobs)
        };
        Actors(Who::ALL.into_iter().map(start).collect())
    }

    /// Runs a command as a given user, and waits for it.
    pub fn run<T: Send + 'static>(&self, who: Who, what: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = channel();
        let (_, jobs) = self.0.iter().find(|(w, _)| *w == who).expect("an actor");
        let job = move || {
            let _ = tell.send(what());
        };
        jobs.send(Box::new(job)).expect("the actor lives");
        told.recv().expect("the actor answers")
    }
}
