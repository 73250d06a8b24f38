//! What is no volume, or not all of one.

use crate::{both, common, image};
use blockwright::ErrorKind;
use blockwright_device::sim::rng::SplitMix64;

#[test]
fn truncated_images_are_refused() {
    let image = image::make("orphan_file");
    let len = image.0.len();
    let mut lengths: Vec<usize> = vec![
        0, 1, 511, 512, 1023, 1024, 1500, 2047, 2048, 2560, 3072, 4096,
    ];
    lengths.extend((1..12).map(|m| m << 20));
    lengths.extend([len - 512, len - 1024, len - 1]);
    for length in lengths {
        // An image file that ends within a sector is refused by the device as well; here it is padded.
        let (reading, writing) = both(&format!("{length} bytes"), image.0[..length].to_vec());
        if length.next_multiple_of(512) == len {
            continue;
        }
        for outcome in [reading, writing] {
            let e = outcome.refused.expect("a truncated volume is refused");
            assert!(
                matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::UnsupportedFeature),
                "{length}: {e}"
            );
        }
    }
}

#[test]
fn truncated_files_are_refused() {
    let image = image::make("");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk.img");
    for length in [
        0,
        1,
        100,
        1024,
        1080,
        1082,
        2000,
        2049,
        70_000,
        5_000_001,
        image.0.len() - 1,
    ] {
        std::fs::write(&path, &image.0[..length]).expect("written");
        let at = path.clone();
        let text = common::guarded(
            &format!("a file of {length} bytes"),
            crate::LIMIT,
            move || {
                [
                    blockwright::VolumeOptions::new().read_only(true),
                    Default::default(),
                ]
                .map(|o| o.open(&at).expect_err("truncated").to_string())
            },
        );
        assert!(
            text.iter().all(|t| t.contains("disk.img")),
            "{length}: {text:?}"
        );
        assert!(
            std::fs::read(&path).expect("read") == image.0[..length],
            "changed"
        );
    }
}

#[test]
fn random_bytes_are_refused() {
    let mut rng = SplitMix64::new(common::seed(21));
    for round in 0..20 {
        let mut bytes: Vec<u8> = (0..256 << 10).map(|_| rng.next_u64() as u8).collect();
        let with_magic = round % 2 == 1;
        if with_magic {
            bytes[1024 + 0x38..1024 + 0x3A].copy_from_slice(&[0x53, 0xEF]);
        }
        let (reading, writing) = both(&format!("random bytes, round {round}"), bytes);
        for outcome in [reading, writing] {
            let e = outcome.refused.expect("refused");
            assert!(
                matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::UnsupportedFeature),
                "{e}"
            );
        }
    }
}

#[test]
fn a_wrong_magic_is_named() {
    let mut image = image::make("");
    image.put16(1024 + 0x38, 0x1234);
    let (reading, _) = both("wrong magic", image.0);
    let e = reading.refused.expect("refused");
    assert_eq!(e.kind(), ErrorKind::UnsupportedFeature);
    assert!(e.to_string().contains("magic"), "{e}");
}
