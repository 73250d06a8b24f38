//! The seccomp filter, compiled from the list of calls.

use crate::Plan;
use crate::calls::{BASE, BASE_MORE, PATHS, PATHS_MORE, SERVING, When};
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};
use std::collections::BTreeMap;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Result<T> = std::result::Result<T, Error>;

/// Puts the filter on all threads. There is no way back.
pub(crate) fn apply(plan: &Plan) -> Result<()> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    // Of two filters that match the stricter answer holds; the list permits `clone3`, and this one says that there is none.
    let unknown = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
        arch,
    )?;
    let listed = SeccompFilter::new(
        rules(plan)?,
        SeccompAction::Errno(libc::EPERM.cast_unsigned()),
        SeccompAction::Allow,
        arch,
    )?;
    let (unknown, listed) = (
        BpfProgram::try_from(unknown)?,
        BpfProgram::try_from(listed)?,
    );
    seccompiler::apply_filter_all_threads(&unknown)?;
    seccompiler::apply_filter_all_threads(&listed)
}

fn rules(plan: &Plan) -> Result<Rules> {
    let mut lists = vec![BASE, BASE_MORE];
    if plan.serves {
        lists.push(SERVING);
    }
    if plan.host.is_some() {
        lists.extend([PATHS, PATHS_MORE]);
    }
    let mut rules = Rules::new();
    let mut always = Vec::new();
    for (call, when) in lists.into_iter().flatten() {
        let alternatives = alternatives(when)?;
        if alternatives.is_empty() {
            always.push(*call);
        }
        rules.entry(*call).or_default().extend(alternatives);
    }
    // No condition at all means always.
    for call in always {
        rules.insert(call, Vec::new());
    }
    Ok(rules)
}

fn alternatives(when: &When) -> Result<Vec<SeccompRule>> {
    let rule = |argument, op, value: u32| {
        let word = SeccompCmpArgLen::Dword;
        let condition = SeccompCondition::new(argument, word, op, value.into())?;
        Ok(SeccompRule::new(vec![condition])?)
    };
    match when {
        When::Always => Ok(Vec::new()),
        When::OneOf(argument, values) => values
            .iter()
            .map(|value| rule(*argument, SeccompCmpOp::Eq, *value))
            .collect(),
        When::Bits(argument, mask, value) => {
            let op = SeccompCmpOp::MaskedEq(u64::from(*mask));
            Ok(vec![rule(*argument, op, *value)?])
        }
        When::Own => {
            let me = std::process::id();
            Ok(vec![
                rule(0, SeccompCmpOp::Eq, me)?,
                rule(0, SeccompCmpOp::Eq, 0)?,
            ])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostPaths;

    fn has(plan: &Plan, call: libc::c_long) -> bool {
        rules(plan).expect("rules").contains_key(&call)
    }

    /// No list has a call that leads out of the process.
    #[test]
    fn ways_out_are_in_no_list() {
        let host = Plan {
            host: Some(HostPaths::default()),
            ..Plan::default()
        };
        let serves = Plan {
            serves: true,
            ..Plan::default()
        };
        for plan in [&Plan::default(), &serves, &host] {
            for call in [
                libc::SYS_execve,
                libc::SYS_execveat,
                libc::SYS_ptrace,
                libc::SYS_process_vm_readv,
                libc::SYS_process_vm_writev,
                libc::SYS_pidfd_open,
                libc::SYS_pidfd_getfd,
                libc::SYS_kill,
                libc::SYS_socket,
                libc::SYS_connect,
                libc::SYS_bind,
                libc::SYS_io_uring_setup,
                libc::SYS_io_uring_register,
                libc::SYS_mount,
                libc::SYS_umount2,
                libc::SYS_unshare,
                libc::SYS_setns,
                libc::SYS_chroot,
                libc::SYS_setuid,
                libc::SYS_setresuid,
                libc::SYS_capset,
                libc::SYS_bpf,
                libc::SYS_perf_event_open,
                libc::SYS_userfaultfd,
                libc::SYS_keyctl,
                libc::SYS_seccomp,
                libc::SYS_memfd_create,
                libc::SYS_open_by_handle_at,
                libc::SYS_init_module,
                libc::SYS_syslog,
            ] {
                assert!(!has(plan, call), "{plan:?}: {call}");
            }
        }
        for call in [libc::SYS_openat, libc::SYS_openat2, libc::SYS_unlinkat] {
            assert!(!has(&serves, call) && has(&host, call), "{call}");
        }
    }

    /// An unconditional entry wins over a conditional one of the same call.
    #[test]
    fn lists_add_up() {
        let host = Plan {
            host: Some(HostPaths::default()),
            ..Plan::default()
        };
        assert!(rules(&host).expect("rules")[&libc::SYS_statx].is_empty());
        assert!(!rules(&Plan::default()).expect("rules")[&libc::SYS_statx].is_empty());
    }
}
