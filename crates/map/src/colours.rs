//! Colours and letters of kinds.

use blockwright_check::usage::Kind;
use blockwright_plot::Colour;

/// The colour of a kind. Metadata is blue to violet, data green and yellow, what needs attention red, free nearly white.
#[must_use]
pub fn colour(kind: Kind) -> Colour {
    match kind {
        Kind::Superblock => Colour(0x08, 0x30, 0x6b),
        Kind::GroupDescriptors | Kind::Checkpoint => Colour(0x21, 0x71, 0xb5),
        Kind::ReservedDescriptors => Colour(0x9e, 0xca, 0xe1),
        Kind::BlockBitmap | Kind::Sit => Colour(0x54, 0x27, 0x8f),
        Kind::InodeBitmap | Kind::Ssa => Colour(0x9e, 0x9a, 0xc8),
        Kind::InodeTable | Kind::Nat => Colour(0x42, 0x92, 0xc6),
        Kind::Journal => Colour(0x8c, 0x51, 0x0a),
        Kind::SystemFile => Colour(0xbf, 0x81, 0x2d),
        Kind::HotNode => Colour(0x7a, 0x01, 0x77),
        Kind::WarmNode => Colour(0xdd, 0x34, 0x97),
        Kind::ColdNode => Colour(0xfa, 0x9f, 0xb5),
        Kind::HotData => Colour(0xe6, 0x9f, 0x00),
        Kind::WarmData => Colour(0x00, 0x9e, 0x73),
        Kind::ColdData => Colour(0x80, 0xcd, 0xa1),
        Kind::Directory => Colour(0xcc, 0x79, 0xa7),
        Kind::Attributes => Colour(0xf0, 0xe4, 0x42),
        Kind::Mapping => Colour(0x66, 0xc2, 0xc4),
        Kind::File => Colour(0x00, 0x9e, 0x73),
        Kind::FragmentedFile => Colour(0xe6, 0x9f, 0x00),
        Kind::Stale => Colour(0xbd, 0xbd, 0xbd),
        Kind::Unusable => Colour(0x96, 0x96, 0x96),
        Kind::Bad => Colour(0x25, 0x25, 0x25),
        Kind::Unclaimed => Colour(0xd5, 0x5e, 0x00),
        Kind::Free => Colour(0xee, 0xee, 0xee),
        _ => Colour(0xe3, 0x1a, 0x1c),
    }
}

/// The letter of a kind in the map that a terminal shows.
#[must_use]
pub fn letter(kind: Kind) -> char {
    match kind {
        Kind::Superblock => 'S',
        Kind::GroupDescriptors => 'G',
        Kind::ReservedDescriptors => 'g',
        Kind::BlockBitmap => 'B',
        Kind::InodeBitmap => 'I',
        Kind::InodeTable => 'T',
        Kind::Journal => 'J',
        Kind::SystemFile => 'Q',
        Kind::Checkpoint => 'C',
        Kind::Sit => 's',
        Kind::Nat => 'n',
        Kind::Ssa => 'a',
        Kind::HotNode => 'N',
        Kind::WarmNode => 'W',
        Kind::ColdNode => 'K',
        Kind::HotData => 'h',
        Kind::WarmData => 'w',
        Kind::ColdData => 'k',
        Kind::Directory => 'D',
        Kind::Attributes => 'X',
        Kind::Mapping => 'M',
        Kind::File => '#',
        Kind::FragmentedFile => '%',
        Kind::Stale => '~',
        Kind::Unusable => '_',
        Kind::Bad => '!',
        Kind::Unclaimed => 'u',
        Kind::Free => '.',
        _ => '?',
    }
}

/// Between two colours: `share` 0 is the first, 1 the second.
pub fn mix(a: Colour, b: Colour, share: f64) -> Colour {
    let one = |a: u8, b: u8| {
        let value = f64::from(a) + (f64::from(b) - f64::from(a)) * share.clamp(0.0, 1.0);
        value.round() as u8
    };
    Colour(one(a.0, b.0), one(a.1, b.1), one(a.2, b.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_differ() {
        let letters: std::collections::BTreeSet<_> = Kind::ALL.iter().map(|k| letter(*k)).collect();
        assert_eq!(letters.len(), Kind::ALL.len());
    }
}
