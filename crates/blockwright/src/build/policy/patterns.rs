//! Patterns of paths, as `--exclude` and `--fsverity` take them.

use crate::{Error, ErrorKind, Result};
use blockwright_device::os_name;
use globset::{GlobBuilder, GlobMatcher};
use std::path::Path;

/// The longest pattern.
const PATTERN_BYTES_MAX: usize = 4096;

/// Patterns, any of which may match.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patterns(Vec<Pattern>);

#[derive(Clone, Debug)]
struct Pattern {
    glob: GlobMatcher,
    /// Compared with a path from the root, not with a name.
    whole: bool,
    /// Means directories only.
    directories: bool,
}

impl Patterns {
    /// Adds a pattern.
    ///
    /// # Errors
    /// `Invalid` for one that is invalid.
    pub fn add(&mut self, text: &str) -> Result<()> {
        let invalid = |what: &str| {
            let shown: String = text.chars().take(80).collect();
            Error::new(ErrorKind::Invalid, format!("the pattern `{shown}`: {what}"))
        };
        if text.len() > PATTERN_BYTES_MAX {
            return Err(invalid("longer than 4096 bytes"));
        }
        let directories = text.ends_with('/');
        let body = text.trim_end_matches('/');
        let whole = body.contains('/');
        let body = body.trim_start_matches('/');
        if body.is_empty() {
            return Err(invalid("names nothing"));
        }
        let glob = GlobBuilder::new(body)
            .literal_separator(true)
            .backslash_escape(true)
            .build()
            .map_err(|e| invalid(&e.kind().to_string()))?;
        self.0.push(Pattern {
            glob: glob.compile_matcher(),
            whole,
            directories,
        });
        Ok(())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one matches this path from the root, which has no slash in front.
    pub fn matches(&self, path: &[u8], is_directory: bool) -> bool {
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
        self.0.iter().any(|pattern| {
            let what = if pattern.whole { path } else { name };
            (is_directory || !pattern.directories)
                && pattern.glob.is_match(Path::new(&*os_name::of(what)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_told_apart() {
        for (pattern, path, directory, matches) in [
            ("*.o", "a.o", false, true),
            ("*.o", "dir/sub/a.o", false, true),
            ("*.o", "a.o/x", false, false),
            ("/*.o", "dir/a.o", false, false),
            ("/*.o", "a.o", false, true),
            ("dir/*.o", "dir/a.o", false, true),
            ("dir/*.o", "x/dir/a.o", false, false),
            ("dir/*.o", "dir/sub/a.o", false, false),
            ("dir/**/*.o", "dir/sub/sub/a.o", false, true),
            ("**/cache/*", "var/cache/x", true, true),
            ("cache/", "var/cache", true, true),
            ("cache/", "var/cache", false, false),
            ("a[0-9]", "x/a7", false, true),
            ("{a,b}?", "b1", false, true),
            (r"\*", "*", false, true),
            (r"\*", "a", false, false),
        ] {
            let mut patterns = Patterns::default();
            patterns.add(pattern).expect("a pattern");
            let found = patterns.matches(path.as_bytes(), directory);
            assert_eq!(found, matches, "{pattern} {path}");
        }
        let mut any = Patterns::default();
        any.add("?").expect("a pattern");
        assert!(any.matches(b"dir/x", false));
        for bad in ["", "/", "a[", "{a", "[z-a]", &"x".repeat(5000)] {
            let e = Patterns::default().add(bad).expect_err("refused");
            assert_eq!(e.kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}
