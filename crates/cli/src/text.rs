//! Text from images, made safe to print.

/// Text that an image gives, for a line of a report: control characters, which could fool a terminal, are escaped.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}
