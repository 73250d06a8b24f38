//! The checked-in header is what the source says.

use std::path::Path;

/// C hands over memory that it has not initialised, and structures of other versions. A reference says that there is a valid value, so a
/// function takes what it fills in as `MaybeUninit`, and structures with a size as pointers.
#[test]
fn no_function_takes_a_reference_to_what_c_need_not_have_initialised() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut functions = 0;
    for file in std::fs::read_dir(src).expect("a folder").flatten() {
        let text = std::fs::read_to_string(file.path()).expect("a source");
        for rest in text.split("pub extern \"C\" fn ").skip(1) {
            let signature = rest.split('{').next().unwrap_or_default();
            functions += 1;
            let results = signature.replace("&mut MaybeUninit<", "");
            assert!(!results.contains("&mut "), "{signature}");
            // The one structure that is only read and has no size.
            let inputs = signature.replace("&bw_time", "");
            assert!(!inputs.contains("&bw_"), "{signature}");
        }
    }
    assert!(functions > 50, "{functions}");
}

/// `BLESS=1` writes the header instead of comparing it.
#[test]
fn the_header_is_generated_from_this_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("settings");
    let made = cbindgen::generate_with_config(root, config).expect("a header");
    let mut text = Vec::new();
    made.write(&mut text);
    let text = String::from_utf8(text).expect("text");
    let path = root.join("include/blockwright.h");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "{} is not what the source says: BLESS=1 cargo test -p blockwright-capi --test header",
        path.display()
    );
}
