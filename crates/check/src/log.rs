//! The issues that a check found, and what is to be done about them.

use std::collections::HashSet;
use std::hash::Hash;

use crate::report::{Issue, Outcome, Report, Severity};
use crate::{Mode, Stats};

/// What the log must know about a kind of issue.
pub(crate) trait Kind: Clone + Eq + Hash {
    /// How bad it is.
    fn severity(&self) -> Severity;
    /// Whether it is repaired without asking a human.
    fn preen_safe(&self) -> bool;
    /// Whether no mode repairs it.
    fn unrepairable(&self) -> bool;
}

/// Of an issue: it is repaired without asking a human ([`Mode::Preen`]). The repair loses nothing, and everything that it needs is known from elsewhere.
pub(crate) const PREEN: u8 = 1;
/// Of an issue: no mode repairs it.
pub(crate) const NEVER: u8 = 2;

/// The enum of a format's issues, as a table: `Variant { field: Type } [Severity FLAGS] "message {field}" (arguments),`. The type's `judged` may say
/// otherwise than a row.
macro_rules! issues {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($variant:ident $({ $($field:ident: $type:ty),* })? [$severity:ident $($flag:ident)*] $message:literal $(($argument:expr))?,)*
    }) => {
        $(#[$meta])*
        pub enum $name {
            $($variant $({ $($field: $type),* })?),*
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$variant $({ $($field),* })? => write!(f, $message $(, $argument)?)),*
                }
            }
        }

        impl std::error::Error for $name {}

        impl $name {
            /// The row's severity and flags.
            fn listed(&self) -> (Severity, u8) {
                match self {
                    $(Self::$variant { .. } => (Severity::$severity, 0 $(| $crate::log::$flag)*)),*
                }
            }

            /// How bad it is.
            #[must_use]
            pub fn severity(&self) -> Severity {
                self.judged().0
            }

            /// Whether it is repaired without asking a human ([`crate::Mode::Preen`]): everything needed is known from elsewhere, and
            /// nothing is lost.
            #[must_use]
            pub fn preen_safe(&self) -> bool {
                self.judged().1 & $crate::log::PREEN != 0
            }

            /// Whether no mode repairs it.
            #[must_use]
            pub fn unrepairable(&self) -> bool {
                self.judged().1 & $crate::log::NEVER != 0
            }
        }

        impl $crate::log::Kind for $name {
            fn severity(&self) -> Severity {
                Self::severity(self)
            }

            fn preen_safe(&self) -> bool {
                Self::preen_safe(self)
            }

            fn unrepairable(&self) -> bool {
                Self::unrepairable(self)
            }
        }
    };
}
pub(crate) use issues;

/// Issues found so far.
pub(crate) struct Log<K> {
    pub mode: Mode,
    max: usize,
    /// Issues that are kept whatever the limit is.
    beyond: usize,
    /// Issues in the order found; `true` for those that were dealt with before the first round.
    pub issues: Vec<(K, bool)>,
    known: HashSet<K>,
    /// Issues of this round.
    pub round: HashSet<K>,
    pub suppressed: u64,
    unsafe_found: bool,
    before_rounds: bool,
}

impl<K: Kind> Log<K> {
    pub fn new(mode: Mode, max: usize) -> Self {
        Self {
            mode,
            max,
            beyond: 0,
            issues: Vec::new(),
            known: HashSet::new(),
            round: HashSet::new(),
            suppressed: 0,
            unsafe_found: false,
            before_rounds: true,
        }
    }

    /// Records an issue. Whether the caller is to repair it.
    pub fn problem(&mut self, kind: K) -> bool {
        let safe = kind.preen_safe();
        self.problem_judged(kind, safe)
    }

    /// Records an issue of which the volume itself tells whether it is repaired without asking a human. Whether the caller is to repair it.
    pub fn problem_judged(&mut self, kind: K, preen_safe: bool) -> bool {
        let repair = match self.mode {
            Mode::ReadOnly => false,
            Mode::Preen => preen_safe,
            Mode::Yes => true,
        } && !kind.unrepairable();
        if self.mode == Mode::Preen && !preen_safe && kind.severity() > Severity::Note {
            self.unsafe_found = true;
        }
        if self.known.contains(&kind) {
            self.round.insert(kind);
        } else if self.issues.len() - self.beyond < self.max {
            self.known.insert(kind.clone());
            if !self.before_rounds {
                self.round.insert(kind.clone());
            }
            self.issues.push((kind, self.before_rounds && repair));
        } else {
            self.suppressed += 1;
            // One of them stands for all: enough to know that something was left.
            if self.round.len() <= self.max {
                self.round.insert(kind);
            }
        }
        repair
    }

    /// Records an issue that does not count against the limit: the report would not say otherwise what a repair gave up.
    /// Whether the caller is to repair it.
    pub fn problem_beyond(&mut self, kind: K) -> bool {
        let max = std::mem::replace(&mut self.max, usize::MAX);
        let before = self.issues.len();
        let repair = self.problem(kind);
        self.beyond += self.issues.len() - before;
        self.max = max;
        repair
    }

    pub fn unsafe_in_round(&self) -> bool {
        self.unsafe_found
    }

    /// Whether something that is not repaired without asking a human was found, of these kinds. Where the limit of issues hides what it was, it was.
    pub fn has_unsafe(&self, of: impl Fn(&K) -> bool) -> bool {
        let left = |(kind, _): &&(K, bool)| !kind.preen_safe() && kind.severity() > Severity::Note;
        let mut found = self.issues.iter().filter(left);
        self.unsafe_found && (self.suppressed > 0 || found.any(|(kind, _)| of(kind)))
    }

    pub fn begin_round(&mut self, round: usize) {
        self.before_rounds = false;
        if round > 0 {
            self.round.clear();
        } else {
            // Issues that were found before the rounds began and were not repaired stay.
            self.round = self
                .issues
                .iter()
                .filter(|(_, early)| !early)
                .map(|(kind, _)| kind.clone())
                .collect();
        }
    }

    /// What became of each issue. `all_left`: nothing that rounds found was repaired, and of what was found before them only
    /// what was written at once, which `changed` says.
    pub fn into_report(self, stats: Stats, changed: bool, all_left: bool) -> Report<K> {
        let (mode, last) = (self.mode, self.round);
        let outcome = |kind: &K, early: bool| {
            if kind.unrepairable() {
                Outcome::Unrepairable
            } else if mode == Mode::ReadOnly || (all_left && !(early && changed)) {
                Outcome::Left
            } else if !last.contains(kind) || early {
                Outcome::Repaired
            } else {
                Outcome::Unrepairable
            }
        };
        let issues: Vec<Issue<K>> = self
            .issues
            .into_iter()
            .map(|(kind, early)| Issue {
                severity: kind.severity(),
                outcome: outcome(&kind, early),
                kind,
            })
            .collect();
        let suppressed_left = self.suppressed > 0
            && (mode == Mode::ReadOnly
                || all_left
                || last.iter().any(|k| k.severity() > Severity::Note));
        Report {
            issues,
            suppressed: self.suppressed,
            suppressed_left,
            stats,
            changed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, PartialEq, Eq, Hash)]
    enum Sample {
        Repairable,
        Lasting,
    }

    impl Kind for Sample {
        fn severity(&self) -> Severity {
            Severity::Minor
        }

        fn preen_safe(&self) -> bool {
            true
        }

        fn unrepairable(&self) -> bool {
            matches!(self, Sample::Lasting)
        }
    }

    /// What becomes of issues that were found before the rounds: of one that is repaired, and one that no mode repairs.
    fn outcomes(changed: bool, all_left: bool) -> Vec<Outcome> {
        let mut log = Log::new(Mode::Yes, 10);
        assert!(log.problem(Sample::Repairable));
        assert!(!log.problem(Sample::Lasting));
        log.begin_round(0);
        let report = log.into_report(Stats::default(), changed, all_left);
        report.issues.iter().map(|issue| issue.outcome).collect()
    }

    #[test]
    fn nothing_is_called_repaired_that_was_not_written() {
        use Outcome::{Left, Repaired, Unrepairable};
        assert_eq!(outcomes(false, true), [Left, Unrepairable]);
        // Written before the rounds, as a journal is.
        assert_eq!(outcomes(true, true), [Repaired, Unrepairable]);
        assert_eq!(outcomes(true, false), [Repaired, Unrepairable]);
    }
}
