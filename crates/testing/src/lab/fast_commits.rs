//! Fast commits in their greatest number: an area that is full of records.

use blockwright_ondisk::ext4::Ino;
use blockwright_ondisk::ext4::fast_commit::{running_checksum, tag};
use blockwright_ondisk::ext4::jbd2::{JournalIncompat, RawJournalSuperblock};
use zerocopy::{FromBytes, IntoBytes};

use super::Lab;
use super::volume::Volume;

/// Blocks of 4096 bytes with fast commits in them.
const AREA: u32 = 6144;

/// One record after another: the `n`th one, for this file and this block of the volume.
pub type Record = fn(Ino, u64, u32) -> (u16, Vec<u32>);

/// Blocks leave a file.
pub fn removed_range(ino: Ino, _: u64, n: u32) -> (u16, Vec<u32>) {
    (tag::DEL_RANGE, vec![ino.0, 1000 + n, 1])
}

/// A file gets one more extent.
pub fn added_range(ino: Ino, block: u64, n: u32) -> (u16, Vec<u32>) {
    (tag::ADD_RANGE, vec![ino.0, 2 * n, 1, block as u32])
}

/// A file gets one more name.
pub fn new_name(ino: Ino, _: u64, n: u32) -> (u16, Vec<u32>) {
    (tag::LINK, vec![Ino::ROOT.0, ino.0, 0x2020_2020 + n])
}

/// A volume whose log has one transaction, with an area of fast commits that is full of records. How many of them are to be redone, where the one that ends a
/// fast commit is there.
pub fn full_of_records(lab: &Lab, complete: bool, of: Record) -> (Volume, u64) {
    let args = "-t ext4 -b 4096 -O fast_commit -J size=32";
    let list: Vec<&str> = args.split(' ').collect();
    let clean = Volume::new(lab.make("80M", &list).unwrap());
    let ino = clean.lookup("dir/small");
    let target = clean.blocks(clean.lookup("dir/big"))[0];
    let data = lab.dir.path().join("data");
    std::fs::write(&data, [7; 4096]).unwrap();
    let write = format!("jw -b {target} {}", data.display());
    let mut v = Volume::new(lab.debugfs(&clean.image, &["jo -c", &write, "jc"]));
    let places = v.blocks(Ino::JOURNAL);
    let head = v.block(places[0]);
    let (mut raw, _) = RawJournalSuperblock::read_from_prefix(head).unwrap();
    let flag = raw.feature_incompat.get() | JournalIncompat::FAST_COMMIT.bits();
    raw.feature_incompat.set(flag);
    raw.num_fc_blks.set(AREA);
    raw.set_checksum();
    head[..1024].copy_from_slice(raw.as_bytes());
    let (len, tid) = (raw.maxlen.get(), raw.sequence.get() + 1);
    let record = |tag: u16, value: &[u32]| -> Vec<u8> {
        let head = [tag.to_le_bytes(), (4 * value.len() as u16).to_le_bytes()].concat();
        let value = value.iter().flat_map(|word| word.to_le_bytes());
        head.into_iter().chain(value).collect()
    };
    let (mut sum, mut records) = (0, 0);
    for at in len - AREA + 1..len {
        let mut bytes = Vec::new();
        if at == len - AREA + 1 {
            bytes.extend(record(tag::HEAD, &[0, tid]));
        }
        // Room for a tail is left, and nothing but a pad is in it.
        while bytes.len() + 20 + 12 + 4 <= 4096 {
            records += 1;
            let (tag, value) = of(ino, target.0, records as u32);
            bytes.extend(record(tag, &value));
        }
        if complete && at == len - 1 {
            bytes.extend(record(tag::TAIL, &[tid]));
            // Its second word is the sum.
            let tail = bytes.len() - 8;
            bytes[tail + 2] = 8;
            sum = running_checksum(sum, &bytes);
            bytes.extend(sum.to_le_bytes());
        } else {
            let pad = 4096 - bytes.len() - 4;
            bytes.extend(tag::PAD.to_le_bytes());
            bytes.extend((pad as u16).to_le_bytes());
            bytes.resize(4096, 0);
            sum = running_checksum(sum, &bytes);
        }
        v.block(places[at as usize])[..bytes.len()].copy_from_slice(&bytes);
    }
    (v, records)
}
