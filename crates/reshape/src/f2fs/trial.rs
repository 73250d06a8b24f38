//! Blocks that a rehearsal has written, in memory, over a device that is not written.
//!
//! Memory follows the metadata that changes. A node that moves keeps most of its bytes, and addresses that change mostly follow each other. So such a node is kept as the
//! place that it has on the device, and runs of the words that differ. A summary that is copied is kept as its place. Neighbours that are zero, or copies of
//! neighbours, are kept as one run: the areas of a layout are as long as the volume is large.

use std::borrow::Cow;
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

/// Blocks that follow each other.
#[derive(Debug)]
struct Blocks {
    len: u64,
    /// The image of the first. The others follow from it, see [`Image::after`].
    image: Image,
}

/// The blocks that a rehearsal has written, by the first of each run. Runs do not overlap.
#[derive(Default, Debug)]
pub(super) struct Trial(BTreeMap<u64, Blocks>);

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

    /// The image of the block `n` behind one with this image, in a run.
    fn after(&self, n: u64) -> Cow<'_, Self> {
        match self {
            Self::Edited { of, runs } if runs.is_empty() => {
                Cow::Owned(Self::of_device(of + n as u32))
            }
            other => Cow::Borrowed(other),
        }
    }

    /// Whether a block with this image continues a run of `len` blocks that begins with `first`.
    fn continues(&self, first: &Self, len: u64) -> bool {
        match (first, self) {
            (Self::Zero, Self::Zero) => true,
            (Self::Edited { of, runs }, Self::Edited { of: to, runs: more }) => {
                let next = u64::from(*of) + len;
                runs.is_empty() && more.is_empty() && next == u64::from(*to)
            }
            _ => false,
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
    pub fn get(&self, block: u64) -> Option<Cow<'_, Image>> {
        let (first, blocks) = self.0.range(..=block).next_back()?;
        let n = block - first;
        (n < blocks.len).then(|| blocks.image.after(n))
    }

    /// Keeps a block's image.
    pub fn keep(&mut self, block: u64, image: Image) {
        self.keep_run(block, 1, image);
    }

    /// Keeps blocks as zeroes.
    pub fn zero(&mut self, first: u64, len: u64) {
        if len > 0 {
            self.keep_run(first, len, Image::Zero);
        }
    }

    /// Ends a run in front of this block, and begins another one with it.
    fn split(&mut self, at: u64) {
        let Some((first, blocks)) = self.0.range_mut(..at).next_back() else {
            return;
        };
        let n = at - first;
        if n < blocks.len {
            let image = blocks.image.after(n).into_owned();
            let len = std::mem::replace(&mut blocks.len, n) - n;
            self.0.insert(at, Blocks { len, image });
        }
    }

    fn keep_run(&mut self, first: u64, mut len: u64, image: Image) {
        let end = first + len;
        self.split(first);
        self.split(end);
        while let Some((at, _)) = self.0.range(first..end).next() {
            let at = *at;
            self.0.remove(&at);
        }
        if let Some(next) = self.0.get(&end)
            && next.image.continues(&image, len)
        {
            len += next.len;
            self.0.remove(&end);
        }
        if let Some((at, before)) = self.0.range_mut(..first).next_back()
            && at + before.len == first
            && image.continues(&before.image, before.len)
        {
            before.len += len;
            return;
        }
        self.0.insert(first, Blocks { len, image });
    }

    /// Lays what was written over blocks from `first` on that the device has. `read` reads one block of the device.
    pub fn patch<E>(
        &self,
        first: u64,
        bytes: &mut [u8],
        read: impl Fn(u32) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        let end = first + (bytes.len() / BLOCK_SIZE) as u64;
        let before = self.0.range(..first).next_back();
        for (at, blocks) in before.into_iter().chain(self.0.range(first..end)) {
            for block in (*at).max(first)..(at + blocks.len).min(end) {
                let bytes = &mut bytes[(block - first) as usize * BLOCK_SIZE..][..BLOCK_SIZE];
                let image = blocks.image.after(block - at);
                if let Image::Edited { of, .. } = *image {
                    bytes.copy_from_slice(&read(of)?);
                }
                image.apply(bytes);
            }
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
        assert!(matches!(trial.get(0).as_deref(), Some(Image::Whole(_))));
        assert_eq!(trial.get(1).as_deref(), Some(&Image::Zero));
        let read = read_back(&trial, 0, 2);
        assert!(read[..BLOCK_SIZE] == new);
        assert!(read[BLOCK_SIZE..].iter().all(|byte| *byte == 0));
    }

    /// Areas of a layout of 16 TiB, zeroed and then copied a segment's part at a time.
    #[test]
    fn areas_take_no_memory_by_their_length() {
        let mut trial = Trial::default();
        trial.zero(1000, 1 << 23);
        for n in 0..200_000 {
            trial.keep(1000 + n, Image::of_device(70 + n as u32));
        }
        assert_eq!(trial.0.len(), 2);
        assert_eq!(
            trial.get(1000 + 77).as_deref(),
            Some(&Image::of_device(147))
        );
        assert_eq!(trial.get(999), None);
        assert_eq!(
            trial.get(1000 + (1 << 23) - 1).as_deref(),
            Some(&Image::Zero)
        );
        assert_eq!(trial.get(1000 + (1 << 23)), None);
    }

    /// Runs are cut and joined: each block has what was written to it last.
    #[test]
    fn runs_hold_what_was_written_last() {
        let mut rng = blockwright_device::sim::rng::SplitMix64::new(5);
        let mut below = move |n: u64| rng.next_u64() % n;
        let (mut trial, mut model) = (Trial::default(), BTreeMap::new());
        for _ in 0..20_000 {
            let (first, len) = (below(200), 1 + below(20));
            let source = below(50) as u32;
            let kind = below(4);
            for n in 0..len {
                let image = match kind {
                    0 | 1 => Image::Zero,
                    2 => Image::of_device(source + n as u32),
                    _ => Image::whole(&[source as u8 + 1; BLOCK_SIZE]),
                };
                if kind != 0 {
                    trial.keep(first + n, image.clone());
                }
                model.insert(first + n, image);
            }
            if kind == 0 {
                trial.zero(first, len);
            }
            let block = below(230);
            assert_eq!(trial.get(block).as_deref(), model.get(&block));
            let runs: Vec<_> = trial.0.iter().collect();
            for pair in runs.windows(2) {
                let [(at, blocks), (next, after)] = [pair[0], pair[1]];
                assert!(at + blocks.len <= *next, "{pair:?}");
                let joined =
                    at + blocks.len == *next && after.image.continues(&blocks.image, blocks.len);
                assert!(!joined, "{pair:?}");
            }
        }
        let mut expected = vec![9; 230 * BLOCK_SIZE];
        for (block, image) in &model {
            let bytes = &mut expected[*block as usize * BLOCK_SIZE..][..BLOCK_SIZE];
            if let Image::Edited { of, .. } = image {
                bytes.fill(*of as u8);
            }
            image.apply(bytes);
        }
        assert!(read_back(&trial, 0, 230) == expected);
        // Also from the middle of a run on.
        for first in 80..130 {
            let end = first + 50;
            let read = read_back(&trial, first as u64, 50);
            assert!(read == expected[first * BLOCK_SIZE..end * BLOCK_SIZE]);
        }
    }
}
