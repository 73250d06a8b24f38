//! Blocks that a rehearsal has written, in memory, over a device that is not written.
//!
//! Memory follows the metadata that changes. A node that moves keeps most of its bytes, and addresses that change mostly follow each other. So such a node is kept as the
//! place that it has on the device, and runs of the words that differ. A summary that is copied is kept as its place.

use std::collections::BTreeMap;

use blockwright_ondisk::f2fs::BLOCK_SIZE;

/// Bytes of a word.
const WORD: usize = 4;
/// Most runs of one block: more take as much memory as the block.
const RUNS_MAX: usize = BLOCK_SIZE / size_of::<Run>() / 2;

/// Words that count up by one, as neighbouring addresses do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// The first word.
    at: u16,
    /// Words.
    len: u16,
    /// The first word's value.
    first: u32,
}

/// A block as the rehearsal has written it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Image {
    Zero,
    Whole(Box<[u8]>),
    /// A block of the device, in which these words differ.
    Edited {
        of: u32,
        runs: Box<[Run]>,
    },
}

/// The blocks that a rehearsal has written.
#[derive(Default, Debug)]
pub(super) struct Trial(BTreeMap<u64, Image>);

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; WORD];
    word.copy_from_slice(&bytes[at * WORD..][..WORD]);
    u32::from_le_bytes(word)
}

/// The words of `new` that differ from `old`. `None` when they are in many runs.
fn runs(old: &[u8], new: &[u8]) -> Option<Box<[Run]>> {
    let mut runs: Vec<Run> = Vec::new();
    for at in 0..BLOCK_SIZE / WORD {
        let value = word(new, at);
        if word(old, at) == value {
            continue;
        }
        if let Some(last) = runs.last_mut()
            && usize::from(last.at + last.len) == at
            && last.first.wrapping_add(u32::from(last.len)) == value
        {
            last.len += 1;
            continue;
        }
        if runs.len() == RUNS_MAX {
            return None;
        }
        runs.push(Run {
            at: at as u16,
            len: 1,
            first: value,
        });
    }
    Some(runs.into())
}

impl Image {
    /// The image of a block with these bytes.
    pub fn whole(bytes: &[u8]) -> Self {
        match bytes.iter().all(|byte| *byte == 0) {
            true => Self::Zero,
            false => Self::Whole(bytes.into()),
        }
    }

    /// The image of a block with these bytes, which differ little from those of the device's block `of`.
    pub fn edited(of: u32, old: &[u8], new: &[u8]) -> Self {
        match runs(old, new) {
            Some(runs) => Self::Edited { of, runs },
            None => Self::whole(new),
        }
    }

    /// The image of a block that is as the device's block `of`.
    pub fn of_device(of: u32) -> Self {
        Self::Edited {
            of,
            runs: Box::default(),
        }
    }

    /// Makes the block's bytes. Those of the device's block, where the image needs one, are there already.
    fn apply(&self, bytes: &mut [u8]) {
        match self {
            Self::Zero => bytes.fill(0),
            Self::Whole(whole) => bytes.copy_from_slice(whole),
            Self::Edited { runs, .. } => {
                for run in runs {
                    for n in 0..run.len {
                        let at = usize::from(run.at + n) * WORD;
                        let value = run.first.wrapping_add(u32::from(n));
                        bytes[at..at + WORD].copy_from_slice(&value.to_le_bytes());
                    }
                }
            }
        }
    }
}

impl Trial {
    /// A block's image, if it was written.
    pub fn get(&self, block: u64) -> Option<&Image> {
        self.0.get(&block)
    }

    /// Keeps a block's image.
    pub fn keep(&mut self, block: u64, image: Image) {
        self.0.insert(block, image);
    }

    /// Lays what was written over blocks from `first` on that the device has. `read` reads one block of the device.
    pub fn patch<E>(
        &self,
        first: u64,
        bytes: &mut [u8],
        read: impl Fn(u32) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        let end = first + (bytes.len() / BLOCK_SIZE) as u64;
        for (block, image) in self.0.range(first..end) {
            let bytes = &mut bytes[(block - first) as usize * BLOCK_SIZE..][..BLOCK_SIZE];
            if let Image::Edited { of, .. } = image {
                bytes.copy_from_slice(&read(*of)?);
            }
            image.apply(bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn read_back(trial: &Trial, first: u64, blocks: usize) -> Vec<u8> {
        let mut bytes = vec![9; blocks * BLOCK_SIZE];
        let read = |block: u32| Ok::<_, Infallible>(vec![block as u8; BLOCK_SIZE]);
        trial.patch(first, &mut bytes, read).expect("read");
        bytes
    }

    #[test]
    fn a_node_that_moves_takes_little_memory() {
        let old = vec![5; BLOCK_SIZE];
        let mut new = old.clone();
        for n in 0..900usize {
            let address = 70_000 + n as u32;
            new[400 + n * WORD..][..WORD].copy_from_slice(&address.to_le_bytes());
        }
        let image = Image::edited(5, &old, &new);
        let Image::Edited { of: 5, runs } = &image else {
            panic!("{image:?}");
        };
        assert_eq!(runs.len(), 1);
        let mut trial = Trial::default();
        trial.keep(11, image);
        let read = read_back(&trial, 10, 3);
        assert!(read[BLOCK_SIZE..2 * BLOCK_SIZE] == new);
        assert!(read[..BLOCK_SIZE].iter().all(|byte| *byte == 9));
    }

    #[test]
    fn other_blocks_are_kept_whole() {
        let old = vec![5; BLOCK_SIZE];
        let new: Vec<u8> = (0..BLOCK_SIZE).map(|n| (n * n / 7) as u8).collect();
        let mut trial = Trial::default();
        trial.keep(0, Image::edited(5, &old, &new));
        trial.keep(1, Image::whole(&[0; BLOCK_SIZE]));
        assert!(matches!(trial.get(0), Some(Image::Whole(_))));
        assert_eq!(trial.get(1), Some(&Image::Zero));
        let read = read_back(&trial, 0, 2);
        assert!(read[..BLOCK_SIZE] == new);
        assert!(read[BLOCK_SIZE..].iter().all(|byte| *byte == 0));
    }
}
