//! Identity and limits of the process: user, groups, capabilities, limits.

use crate::Plan;
use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use rustix::{io, process, thread};

/// The user and the group that own nothing.
const NOBODY: u32 = 65534;
/// Descriptors that may be open at once, when none is opened by path.
const DESCRIPTORS_MAX: u64 = 1024;

/// Keeps no memory image, and bounds descriptors. Limits are lowered only, so no privilege is needed.
pub(crate) fn limit(plan: &Plan) -> io::Result<()> {
    lower(Resource::Core, 0)?;
    if plan.host.is_none() {
        lower(Resource::Nofile, DESCRIPTORS_MAX)?;
    }
    lower(Resource::Msgqueue, 0)
}

fn lower(what: Resource, most: u64) -> io::Result<()> {
    let now = process::getrlimit(what);
    let least = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    let new = Rlimit {
        current: least(now.current),
        maximum: least(now.maximum),
    };
    process::setrlimit(what, new)
}

/// Root becomes the user who called the program, or `nobody`. With files of the host to be made with their owners root stays,
/// and keeps the capabilities that this takes.
pub(crate) fn give_up_root(plan: &Plan) -> io::Result<()> {
    if !process::geteuid().is_root() {
        return Ok(());
    }
    if plan.host.is_some() {
        return only(files());
    }
    let or_nobody = |id: u32| if id == 0 { NOBODY } else { id };
    let group = process::Gid::from_raw(or_nobody(process::getgid().as_raw()));
    let user = process::Uid::from_raw(or_nobody(process::getuid().as_raw()));
    thread::set_thread_groups(&[])?;
    thread::set_thread_res_gid(group, group, group)?;
    // The capabilities go with root.
    thread::set_thread_res_uid(user, user, user)?;
    only(CapabilitySet::empty())
}

/// What it takes to read, make and describe any file.
fn files() -> CapabilitySet {
    CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::MKNOD
        | CapabilitySet::SETFCAP
        | CapabilitySet::LINUX_IMMUTABLE
        // Attributes of the space `trusted`. Nothing else that it permits is in the filter.
        | CapabilitySet::SYS_ADMIN
}

fn only(wanted: CapabilitySet) -> io::Result<()> {
    let now = thread::capabilities(None)?;
    thread::set_capabilities(
        None,
        CapabilitySets {
            effective: now.effective & wanted,
            permitted: now.permitted & wanted,
            inheritable: CapabilitySet::empty(),
        },
    )
}
