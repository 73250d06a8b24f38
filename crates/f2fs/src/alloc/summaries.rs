//! The summaries of a segment that no log fills.
//!
//! A chain of fsynced nodes can name one block in each of a million segments that were never used. Of those only the entries that it names are kept: all entries
//! take 4 KiB, and an address of the chain four bytes.

use super::BLOCKS_PER_SEG;
use blockwright_ondisk::f2fs::summary::Summary;

/// More entries than this are kept as all are.
const FEW_MAX: usize = 64;

/// See the module's head.
#[derive(Clone)]
pub(crate) enum Summaries {
    All(Vec<Summary>),
    /// By position, ascending; the others have no owner.
    Few(Vec<(u16, Summary)>),
}

impl Summaries {
    /// Of a segment in which nothing is in use.
    pub(crate) fn none() -> Self {
        Summaries::Few(Vec::new())
    }

    /// The entry at a position of the segment.
    pub(crate) fn get(&self, at: u16) -> Option<Summary> {
        match self {
            Summaries::All(entries) => entries.get(usize::from(at)).copied(),
            Summaries::Few(few) => {
                let found = few.binary_search_by_key(&at, |(at, _)| *at);
                let summary = found.map_or(Summary::default(), |n| few[n].1);
                (u32::from(at) < BLOCKS_PER_SEG).then_some(summary)
            }
        }
    }

    /// Changes the entry at a position; nothing past the last.
    pub(crate) fn set(&mut self, at: u16, summary: Summary) {
        if let Summaries::Few(few) = self {
            match few.binary_search_by_key(&at, |(at, _)| *at) {
                Ok(n) => return few[n].1 = summary,
                Err(n) if few.len() < FEW_MAX => return few.insert(n, (at, summary)),
                Err(_) => {}
            }
        }
        if let Some(entry) = self.all_mut().get_mut(usize::from(at)) {
            *entry = summary;
        }
    }

    /// All entries, to be changed.
    pub(crate) fn all_mut(&mut self) -> &mut Vec<Summary> {
        if let Summaries::Few(few) = self {
            *self = Summaries::All(Self::fill(few));
        }
        match self {
            Summaries::All(entries) => entries,
            Summaries::Few(_) => unreachable!("just replaced"),
        }
    }

    /// All entries.
    pub(crate) fn into_all(self) -> Vec<Summary> {
        match self {
            Summaries::All(entries) => entries,
            Summaries::Few(few) => Self::fill(&few),
        }
    }

    fn fill(few: &[(u16, Summary)]) -> Vec<Summary> {
        let mut entries = vec![Summary::default(); BLOCKS_PER_SEG as usize];
        for (at, summary) in few {
            if let Some(entry) = entries.get_mut(usize::from(*at)) {
                *entry = *summary;
            }
        }
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_ondisk::f2fs::Nid;

    #[test]
    fn few_are_what_all_would_be() {
        let mut few = Summaries::none();
        let mut all = Summaries::All(vec![Summary::default(); BLOCKS_PER_SEG as usize]);
        let mut x = 7u64;
        for n in 0..300 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            let at = (x >> 40) as u16 % BLOCKS_PER_SEG as u16;
            let summary = Summary {
                nid: Nid(n),
                version: n as u8,
                offset: at,
            };
            few.set(at, summary);
            all.set(at, summary);
            assert!(n > 60 || matches!(few, Summaries::Few(_)));
            for at in 0..=BLOCKS_PER_SEG as u16 {
                assert_eq!(few.get(at), all.get(at), "{n}: {at}");
            }
            assert_eq!(few.clone().into_all(), all.clone().into_all());
        }
        assert!(matches!(few, Summaries::All(_)));
    }
}
