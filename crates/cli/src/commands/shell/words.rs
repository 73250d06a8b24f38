//! Lines become words: quotes, escapes, comments, patterns. Names become words of a line. Paths become absolute.

/// A word of a line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Word {
    /// The word without its quotes.
    pub text: String,
    /// The same as a pattern, if it has `*`, `?` or `[` outside of quotes.
    pub pattern: Option<String>,
}

/// A line, as far as it goes.
#[derive(Debug, Default)]
struct Line {
    /// The words. The last one may be incomplete.
    words: Vec<Word>,
    /// The quote that is open at the end, or a backslash.
    open: Option<char>,
    /// Where the last word begins, if nothing follows it.
    unfinished: Option<usize>,
    /// The end is in a comment.
    comment: bool,
}

/// Splits a line.
fn scan(line: &str) -> Line {
    let mut out = Line::default();
    let mut chars = line.char_indices().peekable();
    let mut word: Option<(Word, String, bool)> = None;
    let mut start = 0;
    while let Some((at, c)) = chars.next() {
        if c.is_whitespace() {
            finish(&mut out, &mut word);
            continue;
        }
        if word.is_none() {
            if c == '#' {
                out.comment = true;
                break;
            }
            start = at;
        }
        let (now, pattern, wild) = word.get_or_insert_default();
        let mut literal = |c: char, now: &mut Word| {
            now.text.push(c);
            if "*?[]{}\\".contains(c) {
                pattern.push('\\');
            }
            pattern.push(c);
        };
        match c {
            '\\' => match chars.next() {
                Some((_, c)) => literal(c, now),
                None => out.open = Some('\\'),
            },
            '\'' | '"' => {
                out.open = Some(c);
                while let Some((_, inner)) = chars.next() {
                    if inner == c {
                        out.open = None;
                        break;
                    }
                    let escapes = c == '"' && inner == '\\';
                    let next = chars.peek().map(|(_, c)| *c);
                    match next.filter(|next| escapes && "\"\\".contains(*next)) {
                        Some(next) => {
                            chars.next();
                            literal(next, now);
                        }
                        None => literal(inner, now),
                    }
                }
            }
            '*' | '?' | '[' | ']' => {
                *wild |= c != ']';
                now.text.push(c);
                pattern.push(c);
            }
            c => literal(c, now),
        }
    }
    out.unfinished = word.is_some().then_some(start);
    finish(&mut out, &mut word);
    out
}

fn finish(out: &mut Line, word: &mut Option<(Word, String, bool)>) {
    if let Some((mut word, pattern, wild)) = word.take() {
        word.pattern = wild.then_some(pattern);
        out.words.push(word);
    }
}

/// The words of a whole line.
///
/// # Errors
/// A quote that is not closed.
pub fn split(line: &str) -> Result<Vec<Word>, String> {
    let line = scan(line);
    match line.open {
        None => Ok(line.words),
        Some('\\') => Err("nothing follows the backslash at the end".to_owned()),
        Some(quote) => Err(format!("the quote {quote} is not closed")),
    }
}

/// A line up to the cursor, for completing its last word.
#[derive(Debug, PartialEq, Eq)]
pub struct Beginning {
    /// The words before the last one.
    pub before: Vec<Word>,
    /// The last word, as far as it is there; empty after a space.
    pub last: Word,
    /// Where the last word begins in the line, in bytes.
    pub start: usize,
    /// How it is quoted.
    pub quoting: Quoting,
}

/// The beginning of a line; `None` in a comment.
pub fn beginning(text: &str) -> Option<Beginning> {
    let mut line = scan(text);
    if line.comment {
        return None;
    }
    let last = match line.unfinished {
        Some(_) => line.words.pop().unwrap_or_default(),
        None => Word::default(),
    };
    let start = line.unfinished.unwrap_or(text.len());
    Some(Beginning {
        before: line.words,
        last,
        start,
        quoting: Quoting::of(&text[start..]),
    })
}

/// How a word of a line is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quoting {
    /// With a backslash before what has a meaning.
    Backslashes,
    /// Between these quotes.
    Quotes(char),
}

impl Quoting {
    fn of(word: &str) -> Self {
        match word.chars().next() {
            Some(quote @ ('\'' | '"')) => Quoting::Quotes(quote),
            _ => Quoting::Backslashes,
        }
    }

    /// A text as a word of a line. It is left without its last quote where more may follow.
    pub fn write(self, text: &str, whole: bool) -> String {
        let mut out = String::with_capacity(text.len() + 2);
        match self {
            // Nothing has a meaning between single quotes, so one of them cannot be there.
            Quoting::Quotes('\'') if text.contains('\'') => {
                return Quoting::Backslashes.write(text, whole);
            }
            Quoting::Quotes(quote) => {
                out.push(quote);
                for c in text.chars() {
                    if quote == '"' && "\"\\".contains(c) {
                        out.push('\\');
                    }
                    out.push(c);
                }
                if whole {
                    out.push(quote);
                }
            }
            Quoting::Backslashes => {
                for c in text.chars() {
                    let first = out.is_empty();
                    if c.is_whitespace() || "\\'\"*?[]".contains(c) || first && c == '#' {
                        out.push('\\');
                    }
                    out.push(c);
                }
            }
        }
        out
    }
}

/// A path as an absolute one. `.` and `..` stay: commands refuse some of them, and a `..` behind a link is not the link's own parent.
/// A slash at the end stays.
pub fn absolute(directory: &str, path: &str) -> String {
    let start = if path.starts_with('/') { "" } else { directory };
    let names = start.split('/').chain(path.split('/'));
    let mut out = String::new();
    for name in names.filter(|name| !name.is_empty()) {
        out.push('/');
        out.push_str(name);
    }
    if path.ends_with('/') || out.is_empty() {
        out.push('/');
    }
    out
}

/// An absolute path without `.`, `..` and a slash at its end, for `cd`: as in sh, `..` goes back the way that was taken.
pub fn normalised(path: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Vec<String> {
        split(line).unwrap().into_iter().map(|w| w.text).collect()
    }

    #[test]
    fn quotes_and_escapes() {
        assert_eq!(
            texts(r#"a  'b c' "d \" e"f g\ h # rest"#),
            ["a", "b c", "d \" ef", "g h"]
        );
        assert_eq!(texts("'' a#b"), ["", "a#b"]);
        assert_eq!(texts(r#""a\n""#), [r"a\n"]);
        assert!(texts("  # nothing").is_empty());
        assert!(split("a 'b").is_err() && split("a \\").is_err());
    }

    #[test]
    fn patterns_are_what_is_outside_of_quotes() {
        let words = split(r#"a* 'b*' c\* "d?"? [x]"#).unwrap();
        let patterns: Vec<_> = words.iter().map(|w| w.pattern.as_deref()).collect();
        assert_eq!(
            patterns,
            [Some("a*"), None, None, Some(r"d\??"), Some("[x]")]
        );
    }

    #[test]
    fn a_beginning_has_the_word_at_its_end() {
        for (line, before, last, start) in [
            ("", 0, "", 0),
            ("ls", 0, "ls", 0),
            ("ls ", 1, "", 3),
            ("ls  a\\ b", 1, "a b", 4),
            ("ls 'a b/c", 1, "a b/c", 3),
            ("ls 'a b' ", 2, "", 9),
            ("ls \"", 1, "", 3),
            ("ä ö\\", 1, "ö", 3),
        ] {
            let beginning = beginning(line).unwrap();
            assert_eq!(beginning.before.len(), before, "{line}");
            assert_eq!(beginning.last.text, last, "{line}");
            assert_eq!(beginning.start, start, "{line}");
        }
        assert!(beginning("ls a*").unwrap().last.pattern.is_some());
        assert_eq!(beginning("ls # a"), None);
    }

    /// Any text is one word again, whichever way it is written.
    #[test]
    fn what_is_written_is_read_again() {
        for text in [
            "plain",
            "two words",
            "#no comment",
            "it's \"quoted\"",
            "a\\b",
            "a*b?[c]{d}",
            "nbsp\u{a0}here",
            "ends\\",
        ] {
            for quoting in [
                Quoting::Backslashes,
                Quoting::Quotes('\''),
                Quoting::Quotes('"'),
            ] {
                let written = quoting.write(text, true);
                let words = split(&format!("x {written} y")).unwrap();
                assert_eq!(words.len(), 3, "{written}");
                assert_eq!(words[1].text, text, "{written}");
                assert_eq!(words[1].pattern, None, "{written}");
                // Unfinished, it goes on.
                let open = quoting.write(text, false);
                let end = beginning(&format!("{open}/more")).unwrap();
                assert_eq!(end.last.text, format!("{text}/more"), "{open}");
            }
        }
    }

    #[test]
    fn paths_become_absolute() {
        for (directory, path, expected) in [
            ("/", "etc", "/etc"),
            ("/etc", "../usr//./lib/", "/etc/../usr/./lib/"),
            ("/a/b", "..", "/a/b/.."),
            ("/a", "/x//y", "/x/y"),
            ("/a", "", "/a"),
            ("/a", "/", "/"),
        ] {
            assert_eq!(absolute(directory, path), expected, "{directory} {path}");
        }
        for (path, expected) in [
            ("/etc/../usr/./lib/", "/usr/lib"),
            ("/a/b/../../..", "/"),
            ("/", "/"),
        ] {
            assert_eq!(normalised(path), expected, "{path}");
        }
    }
}
