//! Each feature of the superblock, set where it is not and taken away where it is. Features decide how everything else is read.

use blockwright_ondisk::ext4::{Compat, Features, Incompat, RoCompat};

use crate::common::volume::Volume;
use crate::common::{Lab, repair, show, tools, verify};
use crate::judge::{judge, listing};
use blockwright_check::Mode;
use blockwright_check::ext4::IssueKind;

/// How many bits of a word are features.
const BITS: u32 = 20;

fn flipped(mut features: Features, word: usize, bit: u32) -> Features {
    match word {
        0 => features.compat ^= Compat::from_bits_retain(1 << bit),
        1 => features.incompat ^= Incompat::from_bits_retain(1 << bit),
        _ => features.ro_compat ^= RoCompat::from_bits_retain(1 << bit),
    }
    features
}

/// e2fsck's verdict counts what it would change, too.
fn clean(lab: &Lab, image: &[u8]) -> (bool, String) {
    let (code, text) = lab.e2fsck(image);
    (code == 0 && !text.contains("? no"), text)
}

#[test]
fn no_feature_s_bit_loses_anything() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut wrong = Vec::new();
    let mut refused = 0;
    for args in [
        "-t ext4 -b 1024 -g 2048",
        "-t ext2 -b 1024 -g 2048",
        "-t ext4 -b 1024 -g 2048 -O ^metadata_csum,^64bit,^flex_bg,^has_journal",
        "-t ext4 -b 1024 -g 2048 -O orphan_file,quota,metadata_csum_seed",
    ] {
        let list: Vec<&str> = args.split(' ').collect();
        let clean_volume = Volume::new(lab.make("8M", &list).unwrap());
        let before = listing(&lab, &clean_volume.image);
        for word in 0..3 {
            for bit in 0..BITS {
                let mut v = clean_volume.clone();
                v.edit_sb(|sb| sb.set_features(flipped(sb.features(), word, bit)));
                let name = match word {
                    0 => format!("compatible {bit}"),
                    1 => format!("incompatible {bit}"),
                    _ => format!("read-only compatible {bit}"),
                };
                let what = format!("{args}: {name}");
                let (theirs_clean, said) = clean(&lab, &v.image);
                let report = match verify(&v.image) {
                    Ok(report) => report,
                    Err(error) => {
                        // Refused by name, and left as it is.
                        assert!(error.to_string().len() > 20, "{what}: {error}");
                        let (report, after) = repair(&v.image, Mode::Yes);
                        if report.is_ok() || after != v.image {
                            wrong.push(format!("{what}: refused, and changed"));
                        }
                        refused += 1;
                        continue;
                    }
                };
                if report.is_clean() && !theirs_clean {
                    wrong.push(format!("{what}: clean to us alone; e2fsck: {said}"));
                }
                // Linux does not mount this one.
                let no_room = |k: &IssueKind| matches!(k, IssueKind::FeatureContradiction { what } if what.starts_with("fast_commit"));
                let differs = report.issues.iter().any(|i| no_room(&i.kind));
                if !report.is_clean() && theirs_clean && !differs {
                    wrong.push(format!("{what}: clean to e2fsck alone: {}", show(&report)));
                }
                if report.is_clean() {
                    continue;
                }
                let (mut found, ours) = judge(&lab, &what, &v.image);
                wrong.append(&mut found);
                if listing(&lab, &ours) != before {
                    wrong.push(format!("{what}: paths or bytes differ: {}", show(&report)));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused > 10, "{refused}");
}
