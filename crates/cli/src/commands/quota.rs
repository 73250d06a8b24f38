//! `quota`: what users, groups and projects use and may have.

use crate::args::{QuotaArgs, QuotaOf};
use crate::failure::{At, Failure, Result};
use crate::image::{Access, Image};
use crate::operand::Inside;
use crate::output::{Out, Table, human, time_json, time_short};
use blockwright_vfs::Timestamp;
use blockwright_vfs::quota::{Kind, Limits, Quota};
use serde::Serialize;

#[derive(Serialize)]
struct QuotaJson {
    of: &'static str,
    id: u32,
    bytes: u64,
    soft: u64,
    hard: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    grace_ends: Option<String>,
    inodes: u64,
    inodes_soft: u64,
    inodes_hard: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    inodes_grace_ends: Option<String>,
}

const KINDS: [(QuotaOf, Kind, &str); 3] = [
    (QuotaOf::User, Kind::User, "user"),
    (QuotaOf::Group, Kind::Group, "group"),
    (QuotaOf::Project, Kind::Project, "project"),
];

impl QuotaArgs {
    /// Whether limits are to be set.
    pub fn sets(&self) -> bool {
        let inodes = self.inodes_soft.is_some() || self.inodes_hard.is_some();
        self.soft.is_some() || self.hard.is_some() || inodes
    }
}

/// Runs `quota`.
///
/// # Errors
/// When the volume does not count, or limits cannot be set.
pub fn quota(args: &QuotaArgs) -> Result<()> {
    let path = Inside::parse(&args.image).image;
    let sets = args.sets();
    let image = Image::open(&path, if sets { Access::Write } else { Access::Read })?;
    let place = path.display().to_string();
    let mut found = Vec::new();
    for (of, kind, name) in KINDS {
        if args.of.is_some_and(|wanted| wanted != of) {
            continue;
        }
        match (image.vfs().quotas(kind).at(&place)?, args.of) {
            (Some(quotas), _) => found.push((kind, name, quotas)),
            (None, Some(_)) => return Err(not_counted(name).at(place)),
            (None, None) => {}
        }
    }
    if found.is_empty() {
        return Err(not_counted("user, group or project").at(place));
    }
    if sets && let (Some(id), [(kind, _, quotas)]) = (args.id, &mut found[..]) {
        set(&image, args, *kind, id, quotas)?;
    }
    let shown: Vec<(&'static str, Quota)> = found
        .into_iter()
        .flat_map(|(_, name, quotas)| quotas.into_iter().map(move |quota| (name, quota)))
        .filter(|(_, quota)| args.id.is_none_or(|id| quota.id == id))
        .collect();
    print(args, &shown)?;
    image.close()
}

fn not_counted(name: &str) -> Failure {
    Failure::new(format_args!(
        "the volume does not count by {name} (mkfs -O quota, or quota,project, makes one that does)"
    ))
}

/// Sets the limits that were given and keeps the others.
fn set(
    image: &Image,
    args: &QuotaArgs,
    kind: Kind,
    id: u32,
    quotas: &mut Vec<Quota>,
) -> Result<()> {
    let at = quotas.iter().position(|quota| quota.id == id);
    let before = at.map_or(Limits::default(), |at| quotas[at].limits);
    let limits = Limits {
        space_soft: args.soft.unwrap_or(before.space_soft),
        space_hard: args.hard.unwrap_or(before.space_hard),
        inodes_soft: args.inodes_soft.unwrap_or(before.inodes_soft),
        inodes_hard: args.inodes_hard.unwrap_or(before.inodes_hard),
    };
    let place = image.path().display();
    image
        .vfs()
        .set_quota_limits(kind, id, &limits)
        .at(place.to_string())?;
    *quotas = image.vfs().quotas(kind).at(place)?.unwrap_or_default();
    Ok(())
}

fn print(args: &QuotaArgs, shown: &[(&'static str, Quota)]) -> Result<()> {
    let stamp = |secs: u64| Timestamp {
        secs: i64::try_from(secs).unwrap_or(i64::MAX),
        nanos: 0,
    };
    let mut out = Out::new();
    if args.json {
        let json = |(of, q): &(&'static str, Quota)| QuotaJson {
            of,
            id: q.id,
            bytes: q.bytes,
            soft: q.limits.space_soft,
            hard: q.limits.space_hard,
            grace_ends: q.space_until.map(|secs| time_json(stamp(secs))),
            inodes: q.inodes,
            inodes_soft: q.limits.inodes_soft,
            inodes_hard: q.limits.inodes_hard,
            inodes_grace_ends: q.inodes_until.map(|secs| time_json(stamp(secs))),
        };
        out.json(&shown.iter().map(json).collect::<Vec<_>>())?;
        return out.finish();
    }
    let mut table = Table::new(&[
        "Of",
        ">Id",
        ">Used",
        ">Soft",
        ">Hard",
        "Grace ends",
        ">Inodes",
        ">Soft",
        ">Hard",
        "Grace ends",
    ]);
    let limit = |n: u64, text: String| if n == 0 { "-".to_owned() } else { text };
    let until = |secs: Option<u64>| secs.map_or(String::new(), |secs| time_short(stamp(secs)));
    for (name, q) in shown {
        let l = &q.limits;
        table.row(vec![
            (*name).to_owned(),
            q.id.to_string(),
            human(q.bytes),
            limit(l.space_soft, human(l.space_soft)),
            limit(l.space_hard, human(l.space_hard)),
            until(q.space_until),
            q.inodes.to_string(),
            limit(l.inodes_soft, l.inodes_soft.to_string()),
            limit(l.inodes_hard, l.inodes_hard.to_string()),
            until(q.inodes_until),
        ]);
    }
    table.print(&mut out)?;
    out.finish()
}
