//! Lists of features as `-O` takes them, read in the same way for both formats.

/// One item of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// `none`: all features go that were named before, or were the default.
    ClearAll,
    /// The feature of this name is cleared.
    Clear(&'a str),
    /// The feature of this name is set.
    Set(&'a str),
}

/// The items of a list, which commas, blanks and tabs separate. A character of `clear` before a name clears the feature; one
/// of `set`, or none, sets it.
pub fn changes<'a>(
    list: &'a str,
    clear: &'a [char],
    set: &'a [char],
) -> impl Iterator<Item = Change<'a>> {
    let items = list.split([',', ' ', '\t']).filter(|item| !item.is_empty());
    items.map(move |item| {
        if item.eq_ignore_ascii_case("none") {
            Change::ClearAll
        } else if let Some(name) = item.strip_prefix(clear) {
            Change::Clear(name)
        } else {
            Change::Set(item.strip_prefix(set).unwrap_or(item))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::Change::{Clear, ClearAll, Set};
    use super::*;

    #[test]
    fn items_say_what_changes() {
        let list = "a,^b \tNONE,,-c,+d,^";
        let ext4: Vec<_> = changes(list, &['^', '-'], &['+']).collect();
        assert_eq!(
            ext4,
            [
                Set("a"),
                Clear("b"),
                ClearAll,
                Clear("c"),
                Set("d"),
                Clear("")
            ]
        );
        let f2fs: Vec<_> = changes("-c,+d", &['^'], &[]).collect();
        assert_eq!(f2fs, [Set("-c"), Set("+d")]);
    }
}
