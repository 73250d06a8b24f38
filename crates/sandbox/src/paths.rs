//! Landlock: which paths the process can reach, and no way to other processes.

use crate::HostPaths;
use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};
use std::path::PathBuf;

/// The newest that is asked for; older kernels give what they have.
const NEWEST: ABI = ABI::V6;

/// Confines the calling thread, and those that it starts from now on. A sentence when the kernel has no Landlock, or has it switched off.
pub(crate) fn confine(
    host: Option<&HostPaths>,
    starting: &[PathBuf],
) -> Result<Option<String>, RulesetError> {
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    let none = HostPaths::default();
    let host = host.unwrap_or(&none);
    let reading = AccessFs::ReadFile | AccessFs::ReadDir;
    let writing = AccessFs::from_all(NEWEST) & !AccessFs::Execute;
    let status = rules
        .add_rules(path_beneath_rules(&host.read, reading))?
        .add_rules(path_beneath_rules(starting, reading))?
        .add_rules(path_beneath_rules(&host.write, writing))?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::NotEnforced => Some("this kernel has no Landlock".to_owned()),
        _ => None,
    })
}
