//! What `cargo xtask check` cannot check on this machine. It is said at once, and again at the end, where the verdict is read.

use std::sync::Mutex;

static SKIPPED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Says what is skipped, and what would keep it from being skipped.
pub(crate) fn skip(what: &str) {
    eprintln!("xtask check: SKIPPED {what}");
    let mut all = SKIPPED.lock().unwrap_or_else(|e| e.into_inner());
    all.push(what.to_owned());
}

/// All that was skipped, for the end of the output.
pub(crate) fn summary() -> String {
    let all = SKIPPED.lock().unwrap_or_else(|e| e.into_inner());
    match &all[..] {
        [] => "nothing was skipped".to_owned(),
        all => format!("SKIPPED {}:\n  {}", all.len(), all.join("\n  ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_skipped_is_said_at_the_end() {
        skip("a thing: install it");
        let told = summary();
        assert!(told.starts_with("SKIPPED "), "{told}");
        assert!(told.contains("\n  a thing: install it"), "{told}");
    }
}
