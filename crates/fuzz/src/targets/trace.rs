//! Trace files.

use super::no_bases;
use crate::Target;
use blockwright_device::trace::TraceReader;
use std::io::Write;

pub(crate) const TARGET: Target = Target {
    name: "trace",
    property: "any file is refused, or read to its end: no more events than it has room for",
    run,
    max_len: 4096,
    bases: no_bases,
    seeds,
};

fn run(data: &[u8]) {
    let Ok(mut file) = tempfile::NamedTempFile::new() else {
        return;
    };
    if file.write_all(data).is_err() {
        return;
    }
    let Ok(mut reader) = TraceReader::open(file.path()) else {
        return;
    };
    let mut events = 0;
    while let Ok(Some(event)) = reader.next_event() {
        assert!(
            event.offset.checked_add(event.bytes).is_some(),
            "{event:?} ends nowhere"
        );
        events += 1;
        assert!(
            events * 40 <= data.len(),
            "{events} events in {} bytes",
            data.len()
        );
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut head = b"BWTRACE1".to_vec();
    head.extend(40u32.to_le_bytes());
    head.extend(0u32.to_le_bytes());
    head.extend((1u64 << 30).to_le_bytes());
    head.extend(1_700_000_000_000_000_000u64.to_le_bytes());
    head.extend(4u32.to_le_bytes());
    head.extend(b"name");
    head.resize(128, 0);
    let mut record = |start: u64, kind: u8| {
        head.extend(start.to_le_bytes());
        head.extend(1000u64.to_le_bytes());
        head.extend(4096u64.to_le_bytes());
        head.extend(512u64.to_le_bytes());
        head.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
    };
    (0..6).for_each(|n| record(u64::from(n) * 10, n));
    (250..=255).for_each(|n| record(0, n));
    vec![head.clone(), head[..140].to_vec()]
}
