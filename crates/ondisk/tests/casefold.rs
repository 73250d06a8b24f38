//! Names as Linux's f2fs folds them: `data/casefold-by-linux.txt` has hashes that Linux 6.1 stored in a case-insensitive
//! directory (`mkfs.f2fs -O casefold -C utf8`, `noinline_dentry`), each with its name in hexadecimal. The names are characters
//! of all kinds, 25 at a time, and random rows of letters, marks, ignorable characters, and bytes that are not UTF-8.

use blockwright_ondisk::f2fs::hash::{casefold_hash, fold_name, name_hash};

const BY_LINUX: &str = include_str!("data/casefold-by-linux.txt");

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(byte).collect()
}

#[test]
fn names_are_folded_as_linux_folds_them() {
    let mut wrong = Vec::new();
    let (mut not_text, mut raw, mut all) = (0, 0, 0);
    for line in BY_LINUX.lines() {
        let (hash, name) = line.split_once(' ').expect("a hash and a name");
        let hash = u32::from_str_radix(hash, 16).expect("a hash");
        let name = bytes(name);
        let folded = fold_name(&name);
        if casefold_hash(&name, Some(&folded)) != hash {
            let kind = if name_hash(&name) == hash {
                "raw"
            } else {
                "folded"
            };
            wrong.push(format!(
                "Linux: {kind}, {} to {} bytes: {}",
                name.len(),
                folded.len(),
                name.escape_ascii()
            ));
        }
        all += 1;
        not_text += u32::from(std::str::from_utf8(&name).is_err());
        raw += u32::from(name_hash(&name) == hash);
    }
    assert!(
        wrong.is_empty(),
        "{} of {all}: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(30)]
    );
    assert!(
        not_text > 100 && raw > 50 && raw < all / 2,
        "{not_text} {raw} {all}"
    );
}
