//! Which CPUs there are. The kernel wants a queue for every possible CPU.
//!
//! CPUs that do not run get queues all the same; the threads of those that run serve them by turns.

use std::io;

/// Queue numbers are 16 bits on the wire.
const CPUS_MAX: usize = 1 << 16;

/// What the thread of one running CPU serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) cpu: u16,
    /// Its own queue, and by turns those of CPUs that do not run.
    pub(crate) queues: Vec<u16>,
    /// The running CPU whose thread it helps when that has many requests at once.
    pub(crate) neighbour: Option<u16>,
}

/// The possible CPUs and those that run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cpus {
    /// How many queues the kernel expects: one more than the highest possible number.
    pub(crate) possible: u16,
    /// The numbers of those that run, ascending; never empty.
    pub(crate) online: Vec<u16>,
}

impl Cpus {
    /// Asks sysfs.
    ///
    /// # Errors
    /// When the kernel gives no answer, or an invalid one.
    pub(crate) fn read() -> io::Result<Self> {
        let list = |name: &str| {
            let path = format!("/sys/devices/system/cpu/{name}");
            parse(std::fs::read_to_string(&path)?.trim())
                .ok_or_else(|| io::Error::other(format!("{path} is not a list of CPUs")))
        };
        let possible = list("possible")?;
        let last = *possible
            .last()
            .ok_or_else(|| io::Error::other("there are no CPUs"))?;
        let mut online = list("online")?;
        online.retain(|cpu| *cpu <= last);
        if online.is_empty() {
            online.push(0);
        }
        // The kernel counts the possible ones; with gaps in their numbers it would not serve the highest
        // either, and we are told so at registration.
        Ok(Cpus {
            possible: last.saturating_add(1),
            online,
        })
    }

    /// What the thread of every running CPU serves.
    pub(crate) fn share_out(&self) -> Vec<Share> {
        let next = self.online.iter().cycle().skip(1);
        let shares = self.online.iter().zip(next).map(|(&cpu, &next)| Share {
            cpu,
            queues: vec![cpu],
            neighbour: (next != cpu).then_some(next),
        });
        let mut shares: Vec<Share> = shares.collect();
        let idle = (0..self.possible).filter(|cpu| !self.online.contains(cpu));
        for (n, cpu) in idle.enumerate() {
            let at = n % shares.len();
            shares[at].queues.push(cpu);
        }
        shares
    }
}

/// Numbers and ranges, as in `0-3,8`.
fn parse(text: &str) -> Option<Vec<u16>> {
    let mut cpus = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || cpus.len() + usize::from(last - first) >= CPUS_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse("5"), Some(vec![5]));
        assert_eq!(parse(""), Some(vec![]));
        for bad in ["x", "3-1", "1-", "99999"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_possible_cpu_is_served_by_one_that_runs() {
        let cpus = Cpus {
            possible: 6,
            online: vec![0, 2],
        };
        let share = |cpu, queues: [u16; 3], neighbour| Share {
            cpu,
            queues: queues.to_vec(),
            neighbour: Some(neighbour),
        };
        let wanted = [share(0, [0, 1, 4], 2), share(2, [2, 3, 5], 0)];
        assert_eq!(cpus.share_out(), wanted, "each queue once");
        let alone = Cpus {
            possible: 1,
            online: vec![0],
        };
        assert_eq!(alone.share_out()[0].neighbour, None);
        let here = Cpus::read().unwrap();
        let mut all: Vec<u16> = here
            .share_out()
            .into_iter()
            .flat_map(|s| s.queues)
            .collect();
        all.sort_unstable();
        assert_eq!(all, (0..here.possible).collect::<Vec<_>>());
    }
}
